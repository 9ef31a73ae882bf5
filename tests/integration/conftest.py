"""An endpoint over a real catalog for each test, behind one loopback server for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.iceberg import Front, RestClient, Served, create, send
from tests.support.metadata import commit
from tests.support.stores import new_store


@pytest.fixture(scope="session")
def front() -> Iterator[Front]:
    """Where all tests of this process are served, one after the other."""
    started = Front()
    yield started
    started.stop()


@pytest.fixture
def served(made_catalog_url: str, tmp_path: Path, front: Front) -> Iterator[Served]:
    """A fresh store behind its endpoint, once on each database."""
    with new_store(made_catalog_url, tmp_path) as store:
        yield Served(store, front)


@pytest.fixture
def client(served: Served) -> Iterator[RestClient]:
    """A client of master, with a namespace `db` to work in."""
    with served.client() as client:
        client.call("POST", "namespaces", {"namespace": ["db"]}).raise_for_status()
        yield client


@pytest.fixture
def two_tables(client: RestClient) -> RestClient:
    """Tables `db.t` and `db.u` on master, each with one snapshot."""
    for name in ("t", "u"):
        create(client, name)
        send(client, *commit(1), name=name)
    return client
