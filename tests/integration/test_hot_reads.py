"""Repeated loads of a table over HTTP: answered from memory, and never older than the catalog."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headgate.iceberg.table_catalog import TableCatalog
from headgate.model.access import Role
from headgate.model.names import parse_dataset_name
from tests.support.api import Api
from tests.support.iceberg import TABLES, RestClient, create, load, refusal, send, snapshot_of
from tests.support.metadata import commit

_TABLE = f"{TABLES}/t"


@pytest.fixture
def resolved(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tables that the catalog was asked for."""
    asked: list[str] = []
    resolve = TableCatalog.resolve

    def count(self: TableCatalog, context: Any, name: Any, *kind: Any) -> Any:
        asked.append(f"{context} {name}")
        return resolve(self, context, name, *kind)

    monkeypatch.setattr(TableCatalog, "resolve", count)
    return asked


@pytest.fixture
def client(api: Api) -> Iterator[RestClient]:
    """An admin's client of master with a table `db.t`."""
    token = api.token("ana", Role.ADMIN)
    with RestClient(f"{api.url}/iceberg", "master", token=token) as made:
        made.call("POST", "namespaces", {"namespace": ["db"]}).raise_for_status()
        create(made, "t")
        send(made, *commit(1), name="t")
        yield made


def _elsewhere(api: Api, statement: str) -> None:
    """Run a statement on the store `hg` in another process."""
    settings = api.store.settings
    script = (
        "from headgate.settings import Settings; from headgate.store.embedded import Store\n"
        "from pathlib import Path\n"
        f"hg = Store(Settings(root=Path({str(settings.root)!r}), catalog={settings.catalog!r}, "
        f"warehouse={settings.warehouse!r}, actor='bob'), recover_first=False)\n{statement}"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_repeated_loads_ask_the_catalog_once(client: RestClient, resolved: list[str]) -> None:
    first = client.call("GET", _TABLE)
    again = client.call("GET", _TABLE)
    assert (again.status_code, again.content) == (200, first.content)
    assert again.headers["etag"] == first.headers["etag"]
    assert again.headers["content-type"] == "application/json"
    assert resolved == ["master db.t"]
    known = {"if-none-match": first.headers["etag"]}
    answered = client.call("GET", _TABLE, headers=known)
    assert (answered.status_code, answered.content) == (304, b"")
    other = {"if-none-match": '"another"'}
    assert client.call("GET", _TABLE, headers=other).content == first.content
    assert len(resolved) == 1


def test_a_client_with_the_etag_fills_the_cache_too(
    api: Api, client: RestClient, resolved: list[str]
) -> None:
    etag = client.call("GET", f"{_TABLE}?snapshots=refs").headers["etag"]
    send(client, *commit(2, parent=1, **{"sequence-number": 2}), name="t")
    resolved.clear()
    for _ in range(3):
        found = client.call("GET", f"{_TABLE}?snapshots=refs", headers={"if-none-match": etag})
        assert found.status_code == 200
    newest = {"if-none-match": found.headers["etag"]}
    assert client.call("GET", f"{_TABLE}?snapshots=refs", headers=newest).status_code == 304
    assert len(resolved) == 1


def test_a_publication_is_seen_by_the_next_load(api: Api, client: RestClient) -> None:
    for number in range(2, 6):
        assert snapshot_of(client) == snapshot_of(client) == number - 1
        send(client, *commit(number, parent=number - 1, **{"sequence-number": number}), name="t")
    assert snapshot_of(client) == 5


def test_a_reset_in_another_process_is_seen_by_the_next_load(api: Api, client: RestClient) -> None:
    view = api.store.dataset("db.t").branch("master").load().view
    send(client, *commit(2, parent=1, **{"sequence-number": 2}), name="t")
    assert snapshot_of(client) == snapshot_of(client) == 2
    _elsewhere(api, f"hg.dataset('db.t').branch('master').reset({view!r})")
    assert snapshot_of(client) == 1


def test_a_token_revoked_in_another_process_is_refused_at_the_next_load(
    api: Api, client: RestClient
) -> None:
    made = api.store.create_token(actor="bo", role=Role.READER)
    with RestClient(f"{api.url}/iceberg", "master", token=made["token"]) as bo:
        etag = bo.call("GET", _TABLE).headers["etag"]
        assert bo.call("GET", _TABLE, headers={"if-none-match": etag}).status_code == 304
        _elsewhere(api, f"hg.revoke_token({made['id']!r})")
        # Rights come before the ETag.
        refused = bo.call("GET", _TABLE, headers={"if-none-match": etag})
        assert refusal(refused) == (401, "token_refused")
    assert snapshot_of(client) == 1


def test_an_expired_token_is_refused_though_its_load_is_kept(api: Api, client: RestClient) -> None:
    made = api.store.create_token(actor="bo", role=Role.READER, lifetime_seconds=2)
    with RestClient(f"{api.url}/iceberg", "master", token=made["token"]) as bo:
        assert bo.call("GET", _TABLE).status_code == bo.call("GET", _TABLE).status_code == 200
        time.sleep(2.1)
        assert refusal(bo.call("GET", _TABLE)) == (401, "token_refused")


def test_a_limited_token_gets_no_reply_that_was_kept_for_another(
    api: Api, client: RestClient
) -> None:
    assert load(client) == load(client)
    made = api.store.create_token(actor="bo", role=Role.READER, datasets=["other.*"])
    with RestClient(f"{api.url}/iceberg", "master", token=made["token"]) as bo:
        for _ in range(2):
            assert bo.call("GET", _TABLE).status_code == 404


def test_loads_in_a_transaction_or_of_the_past_are_not_kept(
    api: Api, client: RestClient, resolved: list[str]
) -> None:
    token = api.token("ana", Role.ADMIN)
    unit = api.store.transaction(branch="master")
    for context in (unit.context, "master@1"):
        with RestClient(f"{api.url}/iceberg", context, token=token) as inside:
            resolved.clear()
            for _ in range(2):
                inside.call("GET", _TABLE)
            assert len(resolved) == 2
    unit.abort()


def test_a_kept_load_counts_as_what_the_client_read(api: Api, client: RestClient) -> None:
    [options] = [m.kwargs for m in api.app.user_middleware if "stamps" in m.kwargs]
    service: Any = options["service"]
    load(client)
    service.served._last.clear()
    location = load(client)["metadata-location"]
    [(_, name)] = service.served._last
    assert name == parse_dataset_name("db.t")
    [found] = service.served._last.values()
    assert (found.location, found.marks_loads) == (location, True)


def test_replies_to_strangers_and_other_paths_pass_through(
    client: RestClient, resolved: list[str]
) -> None:
    assert client.call("GET", f"{TABLES}/nobody").status_code == 404
    assert client.call("GET", f"{TABLES}/nobody").status_code == 404
    assert client.call("GET", _TABLE, headers={"authorization": "Bearer no"}).status_code == 401
    assert client.call("GET", _TABLE, headers={"authorization": "Basic no"}).status_code == 401
    assert client.call("HEAD", _TABLE).status_code == 204


def test_concurrent_loads_and_publications_never_show_an_older_version(
    api: Api, client: RestClient
) -> None:
    done: list[int] = [1]

    def read() -> None:
        token = api.token("bo", Role.READER)
        with RestClient(f"{api.url}/iceberg", "master", token=token) as bo:
            while done[-1] < 15:
                least = done[-1]
                assert (snapshot_of(bo) or 0) >= least

    with ThreadPoolExecutor(4) as pool:
        readers = [pool.submit(read) for _ in range(4)]
        for number in range(2, 16):
            change = commit(number, parent=number - 1, **{"sequence-number": number})
            send(client, *change, name="t")
            done.append(number)
        for reader in readers:
            reader.result()
