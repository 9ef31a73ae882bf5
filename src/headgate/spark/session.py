"""Spark inside this process: a local JVM, and sessions that each see one context."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headgate.errors import SparkUnavailable
from headgate.spark.conf import catalog_conf
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
        context.pythonExec = sys.executable
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
    return configure(spark.newSession(), conf)


def connect_remote(url: str, conf: Mapping[str, str]) -> SparkSession:
    """A new session of a Spark Connect server with these settings."""
    spark_home()
    if importlib.util.find_spec("grpc") is None:
        raise SparkUnavailable(
            reason=f"{url} is a Spark Connect server, and its client is not installed",
            remedy="pip install 'pyspark[connect]'",
        )
    from pyspark.sql import SparkSession  # noqa: PLC0415  (optional, and slow)

    session: SparkSession = SparkSession.builder.remote(url).create()
    return configure(session, conf)


def configure(session: Any, conf: Mapping[str, str]) -> SparkSession:
    for name, value in conf.items():
        session.conf.set(name, value)
    bound: SparkSession = session
    return bound
