import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.catalog.Namespace;
import org.apache.iceberg.rest.RESTCatalog;

/** One branch of a served store, as a catalog for Iceberg's own tests. */
final class HeadgateStore {
  private HeadgateStore() {}

  static RESTCatalog open(String name, Map<String, String> additional) {
    Map<String, String> properties = new HashMap<>();
    properties.put("uri", System.getProperty("headgate.uri"));
    properties.put("token", System.getProperty("headgate.token"));
    properties.put("warehouse", System.getProperty("headgate.branch"));
    // The suites expect that the catalog was configured with these.
    for (String key : List.of("default-key1", "default-key2")) {
      properties.put("table-default." + key, "catalog-" + key);
    }
    properties.put("table-default.override-key3", "catalog-default-key3");
    for (String key : List.of("override-key3", "override-key4")) {
      properties.put("table-override." + key, "catalog-" + key);
    }
    for (String key : List.of("key1", "key2", "key3")) {
      properties.put("view-default." + key, "catalog-default-" + key);
    }
    for (String key : List.of("key3", "key4")) {
      properties.put("view-override." + key, "catalog-override-" + key);
    }
    properties.putAll(additional);
    RESTCatalog opened = new RESTCatalog();
    opened.setConf(new Configuration());
    opened.initialize(name, properties);
    return opened;
  }

  static void empty(RESTCatalog catalog) throws Exception {
    for (Namespace namespace : catalog.listNamespaces()) {
      drop(catalog, namespace);
    }
    catalog.close();
  }

  private static void drop(RESTCatalog catalog, Namespace namespace) {
    catalog.listViews(namespace).forEach(catalog::dropView);
    catalog.listTables(namespace).forEach(table -> catalog.dropTable(table, false));
    catalog.listNamespaces(namespace).forEach(below -> drop(catalog, below));
    catalog.dropNamespace(namespace);
  }
}
