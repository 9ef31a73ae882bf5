"""A store's Spark: its endpoint on loopback, its JVM, its sessions."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from headgate.catalog.database import Database
from headgate.endpoint.app import create_app
from headgate.endpoint.authorizing import EmbeddedTokens
from headgate.endpoint.loopback import LoopbackEndpoint
from headgate.endpoint.service import Service
from headgate.endpoint.truth import SqlTableCatalog
from headgate.errors import StorageUnavailable
from headgate.model.contexts import parse_context
from headgate.settings import Settings
from headgate.spark.conf import jvm_conf
from headgate.spark.gateway import Launch
from headgate.spark.jars import coordinates_for, ensure
from headgate.spark.java import find_java_home
from headgate.spark.jvm import SharedJvm
from headgate.spark.pool import ProcessPool
from headgate.spark.processes import JobProcess
from headgate.spark.session import bind, start
from headgate.tables.versions import TableVersions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession as SparkSession

# More would take the processor from the jobs that run.
_WAITING_PROCESSES = 2


class EmbeddedEndpoint:
    """The store's endpoint on loopback, for the sessions and jobs of this process."""

    def __init__(self, database: Database, tables: TableVersions) -> None:
        self.tokens = EmbeddedTokens(database)
        service = Service(
            catalog=SqlTableCatalog(database),
            versions=tables,
            authorize=self.tokens,
            read_outside=read_local_file,
        )
        self._endpoint = LoopbackEndpoint(create_app(service))
        self.url = self._endpoint.start()

    def stop(self) -> None:
        self._endpoint.stop()


def read_local_file(location: str) -> bytes:
    """A metadata file that is being registered, from this machine's disk."""
    try:
        return Path(location.removeprefix("file://")).read_bytes()
    except (OSError, ValueError) as error:
        raise StorageUnavailable(where=location, reason=str(error)) from error


def launch_request(settings: Settings, log_path: Path) -> Launch:
    """How this store's Spark is started: Java found, jars at hand."""
    java_home = find_java_home(settings.environ, settings.cache)
    jars = ensure(
        settings.cache,
        java_home=java_home,
        environ=settings.environ,
        coordinates=coordinates_for(settings.warehouse),
    )
    return Launch(
        java_home=java_home,
        conf=jvm_conf(jars=jars, master=settings.spark.master, extra=settings.spark.conf),
        environ=settings.environ,
        log_path=log_path,
    )


class EmbeddedSpark:
    """Spark in this process: sessions, each bound to one context of the store."""

    def __init__(
        self, settings: Settings, database: Database, tables: TableVersions, directory: Path
    ) -> None:
        self._actor = settings.actor
        directory.mkdir(parents=True, exist_ok=True)
        self._endpoint = EmbeddedEndpoint(database, tables)
        try:
            log = directory / f"spark-{os.getpid()}.log"
            self._spark = start(launch_request(settings, log))
        except BaseException:
            self._endpoint.stop()
            raise

    def session(self, context: str) -> SparkSession:
        """A SparkSession whose catalog `headgate` is that context."""
        parse_context(context)
        return bind(
            self._spark.session,
            uri=self._endpoint.url,
            context=context,
            token=self._endpoint.tokens.issue(self._actor),
        )

    def stop(self) -> None:
        self._spark.stop()
        self._endpoint.stop()


class Workplace:
    """Where the jobs of a store's builds work: one endpoint, one JVM, processes in waiting.

    Each is started when first needed and lives until `close`, so a second build finds them there.
    """

    def __init__(
        self,
        settings: Settings,
        database: Database,
        tables: TableVersions,
        directory: Path,
        jvm: SharedJvm | None = None,
    ) -> None:
        self._settings = settings
        self._database = database
        self._tables = tables
        self._directory = directory
        self._endpoint: EmbeddedEndpoint | None = None
        # One that is handed in belongs to somebody else.
        self._owned = jvm is None
        self._jvm = jvm
        self._processes: ProcessPool | None = None
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        with self._lock:
            if self._endpoint is None:
                self._endpoint = EmbeddedEndpoint(self._database, self._tables)
            return self._endpoint.url

    def jvm(self) -> SharedJvm:
        """The JVM that all jobs share; another one, if that has died."""
        with self._lock:
            if self._jvm is None or not self._jvm.alive:
                self._directory.mkdir(parents=True, exist_ok=True)
                log = self._directory / f"spark-jobs-{os.getpid()}.log"
                self._jvm = SharedJvm.start(launch_request(self._settings, log))
                self._owned = True
            return self._jvm

    def keep_ready(self, count: int) -> None:
        """Lets processes wait for jobs that will come soon, a few at a time."""
        jvm = self._jvm
        address = jvm.address if jvm is not None and jvm.alive else None
        self._pool().keep_ready(min(count, _WAITING_PROCESSES), address)

    def process(self) -> JobProcess:
        """A process that has joined the JVM, or is about to, and takes one job."""
        return self._pool().take(self.jvm().address)

    def cancel(self, tags: Iterable[str]) -> None:
        """Ends all that runs in the JVM under these tags."""
        if self._jvm is not None and self._jvm.alive:
            self._jvm.cancel(tags)

    def close(self) -> None:
        if self._processes is not None:
            self._processes.close()
        if self._jvm is not None and self._owned:
            self._jvm.stop()
        if self._endpoint is not None:
            self._endpoint.stop()

    def _pool(self) -> ProcessPool:
        with self._lock:
            if self._processes is None:
                self._directory.mkdir(parents=True, exist_ok=True)
                self._processes = ProcessPool(self._directory, self._settings.environ)
            return self._processes
