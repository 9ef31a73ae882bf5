"""Spark inside this process: a local JVM, and sessions that each see one context."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headgate.spark.conf import DEFAULT_CATALOG, PYTHON_OF_WORKERS, catalog_conf
from headgate.spark.gateway import JvmProcess, Launch, connect, launch, startup_failed
from headgate.spark.library import spark_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
