"""Spark inside this process: a local JVM, and sessions that each see one context."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from headgate.settings import Settings
from headgate.spark.jvm import JvmProcess, Launch, connect, launch, spark_home, startup_failed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Settings of Spark as plain mappings: of the JVM, and of a session's catalog.

CATALOG = "headgate"
# Where workers on other machines have their Python; else they are given this process's path.
PYTHON_OF_WORKERS = "spark.pyspark.python"
DEFAULT_CATALOG = "spark.sql.defaultCatalog"
_ICEBERG_EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
_LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")
# What Java's S3 client reads from its environment.
_CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
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
        # As PySpark has it: else executors keep what a job ships from the sessions that need it.
        "spark.sql.artifact.isolation.enabled": "false",
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


def executor_credentials(settings: Settings) -> dict[str, str]:
    """The S3 credentials of this process for the executors of a cluster, as their environment.

    A local JVM has this process's environment. The names make Spark redact the values wherever it
    shows its settings.
    """
    if settings.spark.master.startswith("local") or not settings.warehouse.startswith("s3:"):
        return {}
    return {
        f"spark.executorEnv.{name}": settings.environ[name]
        for name in _CREDENTIALS
        if settings.environ.get(name)
    }


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
        DEFAULT_CATALOG: name,
    }


def _joined(*parts: str | None) -> str:
    return ",".join(part for part in parts if part)


class LocalSpark:
    """A JVM of this process with one SparkContext; `bind` makes sessions of it."""

    def __init__(self, jvm: JvmProcess, session: SparkSession) -> None:
        self._jvm = jvm
        self.session = session

    @property
    def jvm_pid(self) -> int:
        return self._jvm.pid

    def stop(self) -> None:
        """Ends the session and its JVM; PySpark may then start another in this process."""
        from pyspark import SparkContext  # noqa: PLC0415  (optional, and slow)

        self.session.stop()
        gateway = SparkContext._gateway
        if gateway is not None:
            gateway.shutdown()
        SparkContext._gateway = None
        SparkContext._jvm = None
        self._jvm.end()


def start(request: Launch) -> LocalSpark:
    """A JVM and the SparkSession of this process, with nothing said on the terminal."""
    spark_home()
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415  (optional, and slow)
    from pyspark.sql import SparkSession  # noqa: PLC0415  (optional, and slow)

    jvm = launch(request)
    try:
        conf = SparkConf(loadDefaults=False)
        conf.setAll(list(request.conf.items()))
        context = SparkContext(conf=conf, gateway=connect(jvm.address))
        context.pythonExec = request.conf.get(PYTHON_OF_WORKERS, sys.executable)
        return LocalSpark(jvm, SparkSession(context))
    except BaseException as error:
        jvm.end()
        if isinstance(error, Exception):
            raise startup_failed("its SparkContext", request.log_path) from error
        raise


def bind(
    spark: SparkSession,
    *,
    uri: str,
    context: str,
    token: str | None = None,
    s3: Mapping[str, str] | None = None,
) -> SparkSession:
    """A new session of the same JVM whose catalog `headgate` is that context of the endpoint."""
    return bind_catalog(spark, catalog_conf(uri=uri, warehouse=context, token=token, s3=s3 or {}))


def bind_catalog(spark: SparkSession, conf: Mapping[str, str]) -> SparkSession:
    """A new session with these settings: a catalog is read at first use and never re-pointed."""
    return point(spark.newSession(), conf)


def point(session: Any, conf: Mapping[str, str]) -> SparkSession:
    """Gives a session its settings and its catalog, which is loaded and made current at once.

    Some of Spark's calls read the settings of whichever session was active last in their thread:
    a catalog that such a call loads first would be another session's, on another branch.
    """
    configure(session, {name: conf[name] for name in conf if name != DEFAULT_CATALOG})
    if catalog := conf.get(DEFAULT_CATALOG):
        # Before it is the default: USE does nothing where it believes to be there already.
        session.sql(f"use `{catalog}`")
        configure(session, {DEFAULT_CATALOG: catalog})
    bound: SparkSession = session
    return bound


def configure(session: Any, conf: Mapping[str, str]) -> SparkSession:
    for name, value in conf.items():
        session.conf.set(name, value)
    bound: SparkSession = session
    return bound
