import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.catalog.CatalogTests;
import org.apache.iceberg.catalog.Namespace;
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
    for (Namespace namespace : catalog.listNamespaces()) {
      drop(namespace);
    }
    catalog.close();
  }

  private void drop(Namespace namespace) {
    catalog.listTables(namespace).forEach(table -> catalog.dropTable(table, false));
    catalog.listNamespaces(namespace).forEach(this::drop);
    catalog.dropNamespace(namespace);
  }

  @Override
  protected RESTCatalog catalog() {
    return catalog;
  }

  @Override
  protected RESTCatalog initCatalog(String name, Map<String, String> additional) {
    Map<String, String> properties = new HashMap<>();
    properties.put("uri", System.getProperty("headgate.uri"));
    properties.put("token", System.getProperty("headgate.token"));
    properties.put("warehouse", System.getProperty("headgate.branch"));
    // The suite expects that the catalog was configured with these.
    for (String key : List.of("default-key1", "default-key2")) {
      properties.put("table-default." + key, "catalog-" + key);
    }
    properties.put("table-default.override-key3", "catalog-default-key3");
    for (String key : List.of("override-key3", "override-key4")) {
      properties.put("table-override." + key, "catalog-" + key);
    }
    properties.putAll(additional);
    RESTCatalog opened = new RESTCatalog();
    opened.setConf(new Configuration());
    opened.initialize(name, properties);
    return opened;
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
