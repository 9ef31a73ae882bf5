"""Spark of a server's client: sessions here, or on a Connect server, over its Iceberg endpoint."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from headgate.model.contexts import parse_context
from headgate.settings import Settings
from headgate.spark.conf import catalog_conf
from headgate.spark.connect import connect_remote
from headgate.spark.jvm import SharedJvm
from headgate.spark.session import LocalSpark, bind_catalog, start
from headgate.spark.workplace import Workplace, launch_request

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
