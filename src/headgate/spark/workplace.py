"""Spark as a store uses it: the Iceberg endpoint, the sessions of its user, the jobs of its builds.

All of it runs in this process, unless the settings name a Spark Connect server or the URL of a
`headgate serve`. A client of a server has its own Spark and the server's endpoint.
"""

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
from headgate.iceberg.app import IcebergApp, LoopbackEndpoint
from headgate.iceberg.delegation import Delegation
from headgate.iceberg.service import EmbeddedTokens, Service
from headgate.iceberg.table_catalog import TableCatalog
from headgate.model.access import Grant, Role
from headgate.model.contexts import parse_context
from headgate.model.rules import RowRules
from headgate.settings import Settings, split_endpoint
from headgate.spark.engines import ConnectServer, Engine, SharedJvm, connect_remote
from headgate.spark.job_processes import JobProcess, ProcessPool
from headgate.spark.session import LocalSpark, bind_catalog, catalog_conf, launch_request, start
from headgate.spark.sql import reporting_end
from headgate.storage.address import client_properties, read_outside
from headgate.storage.local import make_private_directory
from headgate.tables.versions import TableVersions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Longer than a session that its user forgets to close.
_TOKEN_SECONDS = 24 * 3600
_ANSWER_SECONDS = 10


class Endpoint(Protocol):
    """The Iceberg endpoint through which Spark reaches the store's tables."""

    @property
    def url(self) -> str: ...

    def issue(self, actor: str) -> str | None:
        """Return a token for one session, which may do what this process may."""

    def stop(self) -> None:
        """End the endpoint, if this process started it."""


class EmbeddedEndpoint:
    """An endpoint in this process, on loopback unless another host is given."""

    def __init__(
        self,
        database: Database,
        tables: TableVersions,
        rules: RowRules,
        environ: Mapping[str, str] | None = None,
        *,
        host: str = "127.0.0.1",
        delegation: Delegation | None = None,
    ) -> None:
        options = environ or {}
        self.tokens = EmbeddedTokens(database)
        service = Service(
            catalog=TableCatalog(database),
            versions=tables,
            authorize=self.tokens,
            rules=rules,
            read_outside=partial(read_outside, options=options),
            client_defaults=client_properties(options),
            delegation=delegation,
        )
        self._endpoint = LoopbackEndpoint(IcebergApp(service), host=host)
        self.url = self._endpoint.start()

    def issue(self, actor: str) -> str:
        return self.tokens.issue(actor)

    def stop(self) -> None:
        self._endpoint.stop()


class ServedEndpoint:
    """The endpoint of a `headgate serve` on this store; issues the given token, or new ones."""

    def __init__(self, url: str, database: Database, token: str | None) -> None:
        self.url = url.rstrip("/")
        self._database = database
        self._given = token
        self._created: list[str] = []
        _check_answers(self.url)

    def issue(self, actor: str) -> str:
        if self._given is not None:
            return self._given
        token, record = create_token(
            self._database,
            Grant(actor=actor, role=Role.WRITER),
            lifetime_seconds=_TOKEN_SECONDS,
            created_by=actor,
        )
        self._created.append(record.id)
        return token

    def stop(self) -> None:
        """Revoke the tokens that were created."""
        while self._created:
            revoke_token(self._database, self._created.pop())


@dataclass(frozen=True, kw_only=True)
class ClientEndpoint:
    """The endpoint of the server that this process is a client of."""

    url: str
    token: str | None

    def issue(self, actor: str) -> str | None:
        return self.token

    def stop(self) -> None:
        """Do nothing: the server outlives its clients."""


def _check_answers(url: str) -> None:
    """Raise unless a server answers; any HTTP status will do, since tokens decide the rest."""
    question = f"{url}/v1/config?{urlencode({'warehouse': 'master'})}"
    try:
        with urllib.request.urlopen(question, timeout=_ANSWER_SECONDS):
            pass
    except urllib.error.HTTPError as answer:
        answer.close()
    except (OSError, ValueError) as error:
        raise SparkUnavailable(
            reason=f"no server answers at {url}, the URL in [spark] endpoint ({error})",
            remedy="Start `headgate serve` on this store there, or set port 0, which lets this "
            "process listen on a free port itself.",
        ) from error


def open_endpoint(
    settings: Settings, database: Database, tables: TableVersions, rules: RowRules
) -> EmbeddedEndpoint | ServedEndpoint:
    """Open the endpoint that this store's Spark can reach: here, or at the URL in the settings."""
    delegation = Delegation.open(settings)
    named = settings.spark.endpoint
    open_here = partial(
        EmbeddedEndpoint, database, tables, rules, settings.environ, delegation=delegation
    )
    if named is None:
        if settings.spark.remote is not None:
            raise EndpointNotNamed(remote=settings.spark.remote)
        return open_here()
    host, port = split_endpoint(named)
    if port == 0:
        return open_here(host=host)
    return ServedEndpoint(named, database, settings.token)


class StoreSpark:
    """Spark sessions that are each bound to one context of the store.

    They are on the Connect server in the settings, in the given JVM, or in a JVM that is started
    here and ends with this object.
    """

    def __init__(
        self, settings: Settings, endpoint: Endpoint, directory: Path, jvm: SharedJvm | None = None
    ) -> None:
        self._settings = settings
        self._endpoint = endpoint
        self._remote: list[SparkSession] = []
        self._started: LocalSpark | None = None
        self._joined = jvm
        self._local: SparkSession | None = None
        try:
            if settings.spark.remote is None:
                self._local = self._start(directory) if jvm is None else self._join(jvm)
        except BaseException:
            self._endpoint.stop()
            raise

    @reporting_end()
    def session(
        self, context: str, token: str | None = None, *, actor: str | None = None
    ) -> SparkSession:
        """Open a session whose catalog `headgate` is that context; an attempt has its own token."""
        parse_context(context)
        conf = catalog_conf(
            uri=self._endpoint.url,
            warehouse=context,
            token=token or self._endpoint.issue(actor or self._settings.actor),
        )
        if self._local is not None:
            session = bind_catalog(self._local, conf)
            if self._joined is not None:
                # A task of a job that is cancelled would otherwise keep its core to its end.
                session.sparkContext.setInterruptOnCancel(True)
                self._joined.lend(session._jsparkSession.sessionJobTag())
            return session
        assert self._settings.spark.remote is not None
        session = connect_remote(self._settings.spark.remote, conf)
        self._remote.append(session)
        return session

    def stop(self) -> None:
        while self._remote:
            self._remote.pop().stop()
        if self._started is not None:
            self._started.stop()
        if self._joined is not None and self._joined.is_borrowed:
            from headgate.spark.job_session import leave  # noqa: PLC0415  (optional, and slow: PySpark)

            leave()
        self._endpoint.stop()

    def _start(self, directory: Path) -> SparkSession:
        make_private_directory(directory)
        log = directory / f"spark-{os.getpid()}.log"
        self._started = start(launch_request(self._settings, log))
        return self._started.session

    def _join(self, jvm: SharedJvm) -> SparkSession:
        from headgate.spark.job_session import join  # noqa: PLC0415  (optional, and slow: PySpark)

        return join(jvm.address, jvm.process)


def client_settings(settings: Settings, *, on_s3: bool) -> Settings:
    """Return settings whose warehouse selects the jars for the server's storage."""
    return replace(settings, warehouse="s3://" if on_s3 else "/")


# More would take processor time from the jobs that run.
_WAITING_PROCESSES = 2


class Workplace:
    """The endpoint, the engine and the waiting processes for the jobs of a store's builds.

    Each is started when first needed and lives until `close`, so that a second build reuses it.
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
        # The caller stops a JVM that it passed in.
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
        """Return the engine of all jobs; start another one if it has died."""
        with self._lock:
            if self._engine is None or not self._engine.alive:
                if self._engine is not None and self._owned:
                    self._engine.stop()
                self._engine = self._start()
                self._owned = True
            return self._engine

    def keep_ready(self, count: int) -> None:
        """Let processes wait for jobs that will start soon, a few at a time."""
        engine = self._engine
        address = engine.address if engine is not None and engine.alive else None
        self._pool().keep_ready(min(count, _WAITING_PROCESSES), address)

    def process(self) -> tuple[JobProcess, Engine]:
        """Return a process for one job, and the engine that it has joined or is about to join."""
        engine = self.engine()
        return self._pool().take(engine.address), engine

    def cancel(self, tags: Iterable[str]) -> None:
        """End everything that runs under these tags."""
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
        make_private_directory(self._directory)
        log = self._directory / f"spark-jobs-{os.getpid()}.log"
        return SharedJvm.start(launch_request(self._settings, log))

    def _pool(self) -> ProcessPool:
        with self._lock:
            if self._processes is None:
                make_private_directory(self._directory)
                self._processes = ProcessPool(self._directory, self._settings.environ)
            return self._processes


def client_workplace(
    settings: Settings, url: str, directory: Path, jvm: SharedJvm | None
) -> Workplace:
    """Return the workplace of a server's client: its own engine, the server's endpoint."""
    endpoint = ClientEndpoint(url=url, token=settings.token)
    return Workplace(settings, lambda: endpoint, directory, jvm)
