"""Spark in this process, on a cluster and on a Connect server, for the same statements."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import pytest

from headgate.spark.engines import connect_remote
from headgate.spark.session import LocalSpark, bind_catalog, start
from tests.support.spark import SHARED_SPARK
from tests.support.spark_servers import EXECUTOR_CONF, launch, running_cluster, running_connect

# PySpark sets it when a process uses Connect; other tests of the process must not see it.
_CONNECT_MODE = "SPARK_CONNECT_MODE_ENABLED"


class Place(Protocol):
    """Sessions of one Spark."""

    def session(self, conf: Mapping[str, str]) -> Any: ...

    def close(self) -> None: ...


class InThisProcess:
    """The local Spark that all tests share."""

    def session(self, conf: Mapping[str, str]) -> Any:
        return bind_catalog(SHARED_SPARK.get().session, conf)

    def close(self) -> None:
        """Keep it running for the next test."""


class OnCluster:
    """A driver in this process, with executors on a standalone cluster."""

    def __init__(self, master: str, directory: Path) -> None:
        SHARED_SPARK.stop()
        conf = {"spark.master": master, **EXECUTOR_CONF}
        self._spark: LocalSpark = start(launch(directory, conf))

    def session(self, conf: Mapping[str, str]) -> Any:
        return bind_catalog(self._spark.session, conf)

    def close(self) -> None:
        self._spark.stop()


class OnConnect:
    """Sessions of a Connect server."""

    def __init__(self, url: str) -> None:
        SHARED_SPARK.stop()
        self._url = url
        self._sessions: list[Any] = []

    def session(self, conf: Mapping[str, str]) -> Any:
        made = connect_remote(self._url, conf)
        self._sessions.append(made)
        return made

    def close(self) -> None:
        for session in self._sessions:
            session.stop()
        os.environ.pop(_CONNECT_MODE, None)


@pytest.fixture(scope="session")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a standalone cluster with two workers."""
    with running_cluster(tmp_path_factory.mktemp("cluster")) as master:
        yield master


@pytest.fixture(scope="session")
def spark_connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a Spark Connect server."""
    with running_connect(tmp_path_factory.mktemp("connect")) as url:
        yield url


@pytest.fixture(scope="module", params=["local", "cluster", "connect"])
def spark_place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    """Each Spark in turn: a module's tests all run on one before they run on the next."""
    place: Place
    match request.param:
        case "cluster":
            master = request.getfixturevalue("spark_cluster")
            place = OnCluster(master, tmp_path_factory.mktemp("driver"))
        case "connect":
            place = OnConnect(request.getfixturevalue("spark_connect"))
        case _:
            place = InThisProcess()
    yield place
    place.close()
