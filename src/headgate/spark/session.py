"""Spark settings as plain mappings, a Spark in this process, and sessions that each have a catalog.

The catalog of a session is one context of an Iceberg endpoint.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from headgate.model.names import DatasetName
from headgate.settings import Settings
from headgate.spark.java import coordinates_for, ensure_jars, find_java_home
from headgate.spark.jvm import JvmProcess, Launch, open_gateway, spark_home, starting_jvm
from headgate.spark.sql import quote

if TYPE_CHECKING:
    # Re-exported: this room is the only one that imports PySpark, and others annotate with these.
    from pyspark.sql import DataFrame as DataFrame
    from pyspark.sql import SparkSession as SparkSession

CATALOG = "headgate"
# The Python of workers on other machines; by default they get the path of this process's Python.
WORKER_PYTHON = "spark.pyspark.python"
_DEFAULT_CATALOG = "spark.sql.defaultCatalog"
_ICEBERG_EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
_LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")
# The variables that Java's S3 client reads.
_CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_NOTHING: Mapping[str, str] = MappingProxyType({})


def jvm_conf(
    *, jars: Sequence[Path], master: str = "local[*]", extra: Mapping[str, str] = _NOTHING
) -> dict[str, str]:
    """Return the settings of a JVM with Iceberg; `extra` overrides them, and lists are joined."""
    conf = {
        "spark.master": master,
        "spark.app.name": "headgate",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.catalogImplementation": "in-memory",
        # PySpark's own default. With isolation, executors hide the files that a job ships from
        # the sessions that need them.
        "spark.sql.artifact.isolation.enabled": "false",
        **extra,
    }
    if master.startswith("local"):
        # Spark's 200 is for a cluster; on one machine most of them are empty tasks.
        conf.setdefault("spark.sql.shuffle.partitions", "8")
    conf["spark.sql.extensions"] = _joined(extra.get("spark.sql.extensions"), _ICEBERG_EXTENSIONS)
    conf["spark.jars"] = _joined(extra.get("spark.jars"), *(jar.as_uri() for jar in jars))
    conf["spark.driver.extraJavaOptions"] = _joined(
        f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}",
        extra.get("spark.driver.extraJavaOptions"),
        separator=" ",
    )
    return conf


def _joined(*parts: str | None, separator: str = ",") -> str:
    return separator.join(part for part in parts if part)


def executor_credentials(settings: Settings) -> dict[str, str]:
    """Return this process's S3 credentials as the environment of a cluster's executors.

    A local JVM inherits this process's environment. The names make Spark redact the values wherever
    it shows its settings.
    """
    if settings.spark.master.startswith("local") or not settings.warehouse.startswith("s3:"):
        return {}
    return {
        f"spark.executorEnv.{name}": settings.environ[name]
        for name in _CREDENTIALS
        if settings.environ.get(name)
    }


def launch_request(settings: Settings, log_path: Path) -> Launch:
    """Return how to start a JVM for this store; finds Java and fetches the jars."""
    java_home = find_java_home(settings.environ, settings.cache)
    jars = ensure_jars(
        settings.cache,
        java_home=java_home,
        environ=settings.environ,
        coordinates=coordinates_for(settings.warehouse),
    )
    # Spark creates this directory for its own catalog, by default in the working directory.
    own_catalog = {"spark.sql.warehouse.dir": (log_path.parent / "spark-warehouse").as_uri()}
    return Launch(
        java_home=java_home,
        conf={
            **executor_credentials(settings),
            **own_catalog,
            **jvm_conf(jars=jars, master=settings.spark.master, extra=settings.spark.conf),
        },
        environ=settings.environ,
        log_path=log_path,
    )


def catalog_conf(*, uri: str, warehouse: str, token: str | None = None) -> dict[str, str]:
    """Return the settings of a session's catalog: one context, the `warehouse`, of an endpoint."""
    options = {
        "type": "rest",
        "uri": uri,
        "warehouse": warehouse,
        # A cached table would hide what other writers publish on the branch.
        "cache-enabled": "false",
        "rest-metrics-reporting-enabled": "false",
        # Where the store offers access to its bucket, the session uses no key of its own.
        "header.X-Iceberg-Access-Delegation": "vended-credentials,remote-signing",
    }
    if token:
        # An opaque bearer token: the endpoint has no OAuth server that could refresh it.
        options |= {"token": token, "token-refresh-enabled": "false"}
    return iceberg_catalog_conf(options)


def iceberg_catalog_conf(options: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of an Iceberg catalog `headgate`, the session's current catalog."""
    prefix = f"spark.sql.catalog.{CATALOG}"
    return {
        prefix: "org.apache.iceberg.spark.SparkCatalog",
        **{f"{prefix}.{key}": value for key, value in options.items()},
        _DEFAULT_CATALOG: CATALOG,
    }


def table_identifier(name: DatasetName) -> str:
    """Return the quoted name of a dataset in Spark SQL."""
    return ".".join(map(quote, (CATALOG, *name.namespace, name.name)))


class LocalSpark:
    """A JVM of this process with one SparkContext; `bind_catalog` makes sessions of it."""

    def __init__(self, jvm: JvmProcess, session: SparkSession) -> None:
        self._jvm = jvm
        self.session = session

    def stop(self) -> None:
        """End the session and its JVM; PySpark may then start another in this process."""
        from pyspark import SparkContext  # noqa: PLC0415  (optional, and slow)
        from pyspark.sql import SparkSession  # noqa: PLC0415  (optional, and slow)

        gateway = SparkContext._gateway
        # A JVM that was killed has nothing to stop, and PySpark would wait for its answer.
        if self._jvm.alive:
            self.session.stop()
            if gateway is not None:
                gateway.shutdown()
        SparkContext._active_spark_context = None
        SparkSession._instantiatedSession = None
        SparkContext._gateway = None
        SparkContext._jvm = None
        self._jvm.end()


def start(request: Launch) -> LocalSpark:
    """Start a JVM and the SparkSession of this process; nothing is printed on the terminal."""
    spark_home()
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415  (optional, and slow)
    from pyspark.sql import SparkSession  # noqa: PLC0415  (optional, and slow)

    with starting_jvm(request) as jvm:
        conf = SparkConf(loadDefaults=False)
        conf.setAll(list(request.conf.items()))
        context = SparkContext(conf=conf, gateway=open_gateway(jvm.address, jvm))
        context.pythonExec = request.conf.get(WORKER_PYTHON, sys.executable)
        return LocalSpark(jvm, SparkSession(context))


def bind_catalog(spark: SparkSession, conf: Mapping[str, str]) -> SparkSession:
    """Return a new session with these settings: the catalog of a session cannot be changed."""
    return use_catalog(spark.newSession(), conf)


def use_catalog(session: SparkSession, conf: Mapping[str, str]) -> SparkSession:
    """Set the settings of a new session, load its catalog at once, and make it current.

    Some calls of Spark read the settings of the session that was active last in their thread. A
    catalog that such a call loads first would be another session's, on another branch.
    """
    configure(session, {name: conf[name] for name in conf if name != _DEFAULT_CATALOG})
    if catalog := conf.get(_DEFAULT_CATALOG):
        # Before it is the default: USE does nothing if the catalog is current already.
        session.sql(f"use {quote(catalog)}")
        configure(session, {_DEFAULT_CATALOG: catalog})
    return session


def configure(session: SparkSession, conf: Mapping[str, str]) -> SparkSession:
    """Set the settings of a session."""
    for name, value in conf.items():
        session.conf.set(name, value)
    return session
