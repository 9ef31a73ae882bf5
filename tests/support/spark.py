"""One Spark for all tests of a process: starting it takes longer than most of them."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any

from headgate.spark.java import ensure_jars, find_java_home
from headgate.spark.jvm import Launch
from headgate.spark.session import LocalSpark, bind_catalog, catalog_conf, jvm_conf, start

_CACHE = Path(os.environ.get("HEADGATE_CACHE", "~/.cache/headgate")).expanduser()


class SharedSpark:
    """A local Spark that starts at the first use, and again after a stop."""

    def __init__(self) -> None:
        self._running: LocalSpark | None = None
        self._directory: Path | None = None

    def get(self) -> LocalSpark:
        if self._running is not None and (end := self._running._jvm.find_end()) is not None:
            assert self._directory is not None
            log = (self._directory / "jvm.log").read_text()[-4000:]
            self.stop()
            # The next test gets another.
            raise AssertionError(f"an earlier test ended the JVM: {end}\n{log}")
        if self._running is None:
            self._directory = Path(tempfile.mkdtemp(prefix="headgate-test-spark-"))
            self._running = start(_launch(self._directory))
        return self._running

    def stop(self) -> None:
        """Stop it if it runs: PySpark has one context per process, which other tests may need."""
        if self._running is not None:
            self._running.stop()
            self._running = None
            _let_sockets_go()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None


def _let_sockets_go() -> None:
    """Collect garbage now; otherwise a later test would be blamed for the open sockets."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def _launch(directory: Path) -> Launch:
    # The wheel's Java, as on a machine without its own.
    java_home = find_java_home({}, directory, places=())
    jars = ensure_jars(_CACHE, java_home=java_home, environ=os.environ)
    return Launch(
        java_home=java_home,
        conf={
            **jvm_conf(jars=jars, master="local[2]"),
            "spark.sql.shuffle.partitions": "2",
            # It serves hundreds of tests, each with sessions of its own.
            "spark.driver.memory": "2g",
            "spark.sql.warehouse.dir": (directory / "spark-warehouse").as_uri(),
        },
        environ=os.environ,
        log_path=directory / "jvm.log",
    )


def bind(spark: Any, *, uri: str, context: str, token: str | None = None) -> Any:
    """Return a new session whose catalog is that context of the endpoint."""
    return bind_catalog(spark, catalog_conf(uri=uri, warehouse=context, token=token))


class BorrowedSpark:
    """Spark of the process for a store, which may end its use but not the JVM."""

    def __init__(self, local: LocalSpark) -> None:
        self.session = local.session

    def stop(self) -> None:
        """Keep it running for the next test."""


SHARED_SPARK = SharedSpark()
