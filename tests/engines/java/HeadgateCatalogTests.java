import java.util.Map;
import org.apache.iceberg.catalog.CatalogTests;
import org.apache.iceberg.rest.RESTCatalog;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;

/** Iceberg's own tests of a catalog, on one branch of a served store. */
class HeadgateCatalogTests extends CatalogTests<RESTCatalog> {
  private RESTCatalog catalog;

  @BeforeEach
  void open() {
    catalog = initCatalog("headgate", Map.of());
  }

  @AfterEach
  void empty() throws Exception {
    HeadgateStore.empty(catalog);
  }

  @Override
  protected RESTCatalog catalog() {
    return catalog;
  }

  @Override
  protected RESTCatalog initCatalog(String name, Map<String, String> additional) {
    return HeadgateStore.open(name, additional);
  }

  @Override
  protected boolean requiresNamespaceCreate() {
    return true;
  }

  @Override
  protected boolean supportsNestedNamespaces() {
    return true;
  }

  @Override
  protected boolean supportsServerSideRetry() {
    return true;
  }
}
