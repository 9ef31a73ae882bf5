"""Fixtures: an endpoint over a real catalog for each test, behind one shared loopback server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import headgate
from headgate.cli.init import settings_text
from headgate.model.access import Role
from tests.support.api import Api, served_to_the_command_line
from tests.support.cli import Cli, new_store_cli
from tests.support.iceberg import Front, RestClient, Served, create, send
from tests.support.metadata import commit
from tests.support.stores import new_settings, new_store


@pytest.fixture
def served(made_catalog_url: str, tmp_path: Path, front: Front) -> Iterator[Served]:
    """A new store behind its endpoint, once on each database."""
    with new_store(made_catalog_url, tmp_path) as store:
        yield Served(store, front)


@pytest.fixture
def client(served: Served) -> Iterator[RestClient]:
    """A client of master, with a namespace `db`."""
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


@pytest.fixture(params=["embedded", "served"])
def cli(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    front: Front,
) -> Iterator[Cli]:
    """Command line on a new store: in its directory, and as the client of its server."""
    made = new_store_cli(tmp_path, monkeypatch, capsys)
    if request.param == "embedded":
        yield made
        return
    with served_to_the_command_line(tmp_path, front, monkeypatch):
        yield made


@pytest.fixture
def place(catalog_url: str, tmp_path: Path) -> Path:
    """A directory with the headgate.toml of a store."""
    new_settings(catalog_url, tmp_path)
    text = settings_text(catalog=catalog_url, warehouse="warehouse", branch="master")
    (tmp_path / "headgate.toml").write_text(text)
    return tmp_path


@pytest.fixture(params=["embedded", "served"])
def hg(request: pytest.FixtureRequest, place: Path, front: Front) -> Iterator[headgate.Store]:
    """The same store, opened directly and through a server."""
    with headgate.open(place, actor="ana") as store:
        if request.param == "embedded":
            yield store
            return
        served = Api(store, front)
        token = served.token("ana", Role.ADMIN)
        with headgate.open(front.url, token=token) as remote:
            yield remote
        served.close()
