"""A store's Spark: its endpoint on loopback, its JVM, its sessions."""

from __future__ import annotations

import os
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlencode

from headgate.catalog.database import Database
from headgate.catalog.tokens import create_token, revoke_token
from headgate.errors import EndpointNotNamed, SparkUnavailable
from headgate.iceberg.app import LoopbackEndpoint, create_app
from headgate.iceberg.authorization import EmbeddedTokens
from headgate.iceberg.service import Service
from headgate.iceberg.sql_catalog import SqlTableCatalog
from headgate.model.access import Role
from headgate.model.contexts import parse_context
from headgate.settings import Settings, split_endpoint
from headgate.spark.connect import ConnectServer, connect_remote
from headgate.spark.engines import Engine
from headgate.spark.java import coordinates_for, ensure, find_java_home
from headgate.spark.job_processes import JobProcess, ProcessPool
from headgate.spark.jvm import Launch, SharedJvm
from headgate.spark.session import (
    LocalSpark,
    bind,
    bind_catalog,
    catalog_conf,
    executor_credentials,
    jvm_conf,
    start,
)
from headgate.storage.address import client_properties, read_outside
from headgate.tables.versions import TableVersions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame as DataFrame  # re-exported: annotations of other rooms
    from pyspark.sql import SparkSession as SparkSession


# An endpoint that others serve: a `headgate serve` on this store, by the URL that Spark knows.

# Longer than any session lasts that nobody closes.
_TOKEN_SECONDS = 24 * 3600
_ANSWER_SECONDS = 10


class ServedEndpoint:
    """Lends sessions a token of the store's own, or the one that was given, and takes it back."""

    def __init__(self, url: str, database: Database, token: str | None) -> None:
        self.url = url.rstrip("/")
        self._database = database
        self._given = token
        self._lent: list[str] = []
        _check_answers(self.url)

    def issue(self, actor: str) -> str:
        """A token for one session, which may do what a session of this process may."""
        if self._given is not None:
            return self._given
        token, record = create_token(
            self._database,
            actor=actor,
            role=Role.WRITER,
            branches=["*"],
            lifetime_seconds=_TOKEN_SECONDS,
            created_by=actor,
        )
        self._lent.append(record.id)
        return token

    def stop(self) -> None:
        """The tokens lent are good for nothing any more."""
        while self._lent:
            revoke_token(self._database, self._lent.pop())


def _check_answers(url: str) -> None:
    """Whoever answers at all is taken for the server; tokens decide the rest."""
    question = f"{url}/v1/config?{urlencode({'warehouse': 'master'})}"
    try:
        with urllib.request.urlopen(question, timeout=_ANSWER_SECONDS):
            pass
    except urllib.error.HTTPError as refused:
        refused.close()
    except (OSError, ValueError) as error:
        raise SparkUnavailable(
            reason=f"nobody answers at {url}, which [spark] endpoint names ({error})",
            remedy="Start `headgate serve` on this store there, or let port 0 stand for a free "
            "one of this machine: this process then listens itself.",
        ) from error


# More would take the processor from the jobs that run.
_WAITING_PROCESSES = 2


class Endpoint(Protocol):
    """Where jobs find the tables of the store."""

    @property
    def url(self) -> str: ...

    def stop(self) -> None:
        """Ends it, if it is ours."""
        ...


class EmbeddedEndpoint:
    """The store's endpoint on loopback, for the sessions and jobs of this process."""

    def __init__(
        self,
        database: Database,
        tables: TableVersions,
        environ: Mapping[str, str] | None = None,
        *,
        host: str = "127.0.0.1",
    ) -> None:
        options = environ or {}
        self.tokens = EmbeddedTokens(database)
        service = Service(
            catalog=SqlTableCatalog(database),
            versions=tables,
            authorize=self.tokens,
            read_outside=partial(read_outside, options=options),
            client_defaults=client_properties(options),
        )
        self._endpoint = LoopbackEndpoint(create_app(service), host=host)
        self.url = self._endpoint.start()

    def issue(self, actor: str) -> str:
        """A token for one session of this process."""
        return self.tokens.issue(actor)

    def stop(self) -> None:
        self._endpoint.stop()


def open_endpoint(
    settings: Settings, database: Database, tables: TableVersions
) -> EmbeddedEndpoint | ServedEndpoint:
    """The endpoint that this store's Spark can reach: in this process, or where settings say."""
    named = settings.spark.endpoint
    if named is None:
        if settings.spark.remote is not None:
            raise EndpointNotNamed(remote=settings.spark.remote)
        return EmbeddedEndpoint(database, tables, settings.environ)
    host, port = split_endpoint(named)
    if port == 0:
        return EmbeddedEndpoint(database, tables, settings.environ, host=host)
    return ServedEndpoint(named, database, settings.token)


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
        conf={
            **executor_credentials(settings),
            **jvm_conf(jars=jars, master=settings.spark.master, extra=settings.spark.conf),
        },
        environ=settings.environ,
        log_path=log_path,
    )


class EmbeddedSpark:
    """Spark in this process: sessions, each bound to one context of the store.

    A JVM that is handed in is joined, and goes on when this ends; else one is started.
    """

    def __init__(
        self,
        settings: Settings,
        database: Database,
        tables: TableVersions,
        directory: Path,
        jvm: SharedJvm | None = None,
    ) -> None:
        self._actor = settings.actor
        directory.mkdir(parents=True, exist_ok=True)
        self._endpoint = open_endpoint(settings, database, tables)
        self._started: LocalSpark | None = None
        try:
            if jvm is not None:
                self._session = _join(jvm)
            else:
                log = directory / f"spark-{os.getpid()}.log"
                self._started = start(launch_request(settings, log))
                self._session = self._started.session
        except BaseException:
            self._endpoint.stop()
            raise

    def session(
        self, context: str, token: str | None = None, *, actor: str | None = None
    ) -> SparkSession:
        """A SparkSession whose catalog `headgate` is that context; an attempt brings its token."""
        parse_context(context)
        return bind(
            self._session,
            uri=self._endpoint.url,
            context=context,
            token=token or self._endpoint.issue(actor or self._actor),
        )

    def stop(self) -> None:
        if self._started is not None:
            self._started.stop()
        self._endpoint.stop()


class RemoteSpark:
    """Sessions of a Spark Connect server, each bound to one context of the store."""

    def __init__(
        self, url: str, settings: Settings, database: Database, tables: TableVersions
    ) -> None:
        self._url = url
        self._actor = settings.actor
        self._endpoint = open_endpoint(settings, database, tables)
        self._sessions: list[SparkSession] = []

    def session(
        self, context: str, token: str | None = None, *, actor: str | None = None
    ) -> SparkSession:
        """A SparkSession whose catalog `headgate` is that context; an attempt brings its token."""
        parse_context(context)
        shown = token or self._endpoint.issue(actor or self._actor)
        conf = catalog_conf(uri=self._endpoint.url, warehouse=context, token=shown)
        session = connect_remote(self._url, conf)
        self._sessions.append(session)
        return session

    def stop(self) -> None:
        while self._sessions:
            self._sessions.pop().stop()
        self._endpoint.stop()


def open_spark(
    settings: Settings,
    database: Database,
    tables: TableVersions,
    directory: Path,
    jvm: SharedJvm | None = None,
) -> EmbeddedSpark | RemoteSpark:
    """Where a store's sessions are: in a JVM of this process, or on the server that it names."""
    if settings.spark.remote is not None:
        return RemoteSpark(settings.spark.remote, settings, database, tables)
    return EmbeddedSpark(settings, database, tables, directory, jvm)


def _join(jvm: SharedJvm) -> SparkSession:
    from headgate.spark.attach import join  # noqa: PLC0415  (optional, and slow: PySpark)

    return join(jvm.address)


class Workplace:
    """Where the jobs of a store's builds work: one endpoint, one engine, processes in waiting.

    Each is started when first needed and lives until `close`, so a second build finds them there.
    """

    def __init__(
        self,
        settings: Settings,
        open_endpoint: Callable[[], Endpoint],
        directory: Path,
        jvm: SharedJvm | None = None,
    ) -> None:
        self._settings = settings
        self._open_endpoint = open_endpoint
        self._directory = directory
        self._endpoint: Endpoint | None = None
        # One that is handed in belongs to somebody else.
        self._owned = jvm is None
        self._engine: Engine | None = jvm
        self._processes: ProcessPool | None = None
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        with self._lock:
            if self._endpoint is None:
                self._endpoint = self._open_endpoint()
            return self._endpoint.url

    def engine(self) -> Engine:
        """What all jobs compute on; another one, if that has died."""
        with self._lock:
            if self._engine is None or not self._engine.alive:
                self._engine = self._start()
                self._owned = True
            return self._engine

    def keep_ready(self, count: int) -> None:
        """Lets processes wait for jobs that will come soon, a few at a time."""
        engine = self._engine
        address = engine.address if engine is not None and engine.alive else None
        self._pool().keep_ready(min(count, _WAITING_PROCESSES), address)

    def process(self) -> JobProcess:
        """A process that has joined the engine, or is about to, and takes one job."""
        return self._pool().take(self.engine().address)

    def cancel(self, tags: Iterable[str]) -> None:
        """Ends all that runs under these tags."""
        if self._engine is not None and self._engine.alive:
            self._engine.cancel(tags)

    def close(self) -> None:
        if self._processes is not None:
            self._processes.close()
        if self._engine is not None and self._owned:
            self._engine.stop()
        if self._endpoint is not None:
            self._endpoint.stop()

    def _start(self) -> Engine:
        if self._settings.spark.remote is not None:
            return ConnectServer(self._settings.spark.remote)
        self._directory.mkdir(parents=True, exist_ok=True)
        log = self._directory / f"spark-jobs-{os.getpid()}.log"
        return SharedJvm.start(launch_request(self._settings, log))

    def _pool(self) -> ProcessPool:
        with self._lock:
            if self._processes is None:
                self._directory.mkdir(parents=True, exist_ok=True)
                self._processes = ProcessPool(self._directory, self._settings.environ)
            return self._processes


# Spark of a server's client: sessions here, or on a Connect server, over its Iceberg endpoint.


@dataclass(frozen=True, kw_only=True)
class _ServersEndpoint:
    """Where a server has its tables; it is not ours to end."""

    url: str

    def stop(self) -> None: ...


def client_workplace(
    settings: Settings, url: str, directory: Path, *, on_s3: bool, jvm: SharedJvm | None
) -> Workplace:
    """Where a client does the jobs of its builds: its own engine, the server's tables."""
    endpoint = _ServersEndpoint(url=url)
    return Workplace(_placed(settings, on_s3=on_s3), lambda: endpoint, directory, jvm)


def _placed(settings: Settings, *, on_s3: bool) -> Settings:
    """Which jars are needed depends on where the server keeps its bytes."""
    return replace(settings, warehouse="s3://" if on_s3 else "/")


class ClientSpark:
    """Sessions that are each bound to one context there; the token says what they may."""

    def __init__(self, settings: Settings, url: str, directory: Path, *, on_s3: bool) -> None:
        self._settings = settings
        self._url = url
        self._directory = directory
        self._on_s3 = on_s3
        self._local: LocalSpark | None = None
        self._sessions: list[SparkSession] = []

    def session(self, context: str, token: str | None = None) -> SparkSession:
        """A SparkSession whose catalog `headgate` is that context; a job's needs its own token."""
        parse_context(context)
        shown = token or self._settings.token
        conf = catalog_conf(uri=self._url, warehouse=context, token=shown)
        if self._settings.spark.remote is None:
            return bind_catalog(self._started().session, conf)
        session = connect_remote(self._settings.spark.remote, conf)
        self._sessions.append(session)
        return session

    def _started(self) -> LocalSpark:
        if self._local is None:
            self._directory.mkdir(parents=True, exist_ok=True)
            log = self._directory / f"spark-{os.getpid()}.log"
            placed = _placed(self._settings, on_s3=self._on_s3)
            self._local = start(launch_request(placed, log))
        return self._local

    def stop(self) -> None:
        while self._sessions:
            self._sessions.pop().stop()
        if self._local is not None:
            self._local.stop()
