"""Settings of Spark as plain mappings: of the JVM, and of a session's catalog."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

CATALOG = "headgate"
_ICEBERG_EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
_LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")
_NOTHING: Mapping[str, str] = MappingProxyType({})


def jvm_conf(
    *,
    jars: Sequence[Path],
    master: str = "local[*]",
    app_name: str = "headgate",
    extra: Mapping[str, str] = _NOTHING,
) -> dict[str, str]:
    """What a JVM is started with: quiet, Iceberg on board; `extra` wins, lists are joined."""
    conf = {
        "spark.master": master,
        "spark.app.name": app_name,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.catalogImplementation": "in-memory",
        **extra,
    }
    if master.startswith("local"):
        # Spark's 200 is for a cluster; on one machine most of them are empty tasks.
        conf.setdefault("spark.sql.shuffle.partitions", "8")
    conf["spark.sql.extensions"] = _joined(extra.get("spark.sql.extensions"), _ICEBERG_EXTENSIONS)
    conf["spark.jars"] = _joined(extra.get("spark.jars"), *(jar.as_uri() for jar in jars))
    conf["spark.driver.extraJavaOptions"] = " ".join(
        part
        for part in (
            f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}",
            extra.get("spark.driver.extraJavaOptions"),
        )
        if part
    )
    return conf


def catalog_conf(
    *,
    uri: str,
    warehouse: str,
    token: str | None = None,
    name: str = CATALOG,
    s3: Mapping[str, str] = _NOTHING,
) -> dict[str, str]:
    """A session's catalog: one context of an Iceberg endpoint, which is the `warehouse`."""
    options = {
        "type": "rest",
        "uri": uri,
        "warehouse": warehouse,
        # A cached table would hide what others publish on the branch.
        "cache-enabled": "false",
        "rest-metrics-reporting-enabled": "false",
        **s3,
    }
    if token:
        # An opaque bearer token: there is nothing to refresh, nor anybody to ask for it.
        options |= {"token": token, "token-refresh-enabled": "false"}
    return named_catalog(name, options)


def named_catalog(name: str, options: Mapping[str, str]) -> dict[str, str]:
    """An Iceberg catalog under this name, which is also the session's current one."""
    prefix = f"spark.sql.catalog.{name}"
    return {
        prefix: "org.apache.iceberg.spark.SparkCatalog",
        **{f"{prefix}.{key}": value for key, value in options.items()},
        "spark.sql.defaultCatalog": name,
    }


def _joined(*parts: str | None) -> str:
    return ",".join(part for part in parts if part)
