"""Namespaces that are dropped, their history, and names and places of tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from headgate.errors import Invalid
from headgate.iceberg.table_catalog import TableCatalog
from headgate.model.access import Role
from headgate.store.embedded import Store
from tests.integration.test_endpoint_races import at_once, statuses
from tests.support.api import Api
from tests.support.iceberg import (
    TABLES,
    Front,
    RestClient,
    Served,
    create,
    creation,
    error,
    load,
    send,
)
from tests.support.metadata import commit, two_columns
from tests.support.stores import new_settings

_DB = "namespaces/db"


def drop_table(client: RestClient, name: str = "t") -> None:
    client.call("DELETE", f"{TABLES}/{name}").raise_for_status()


def names(client: RestClient) -> list[Any]:
    found: list[Any] = client.call("GET", "namespaces").json()["namespaces"]
    return found


def test_namespace_whose_tables_were_dropped_is_dropped_and_its_history_stays(
    client: RestClient, served: Served
) -> None:
    create(client)
    send(client, *commit(1))
    written = served.publications
    drop_table(client)
    assert client.call("DELETE", _DB).status_code == 204
    assert error(client.call("GET", _DB)) == (404, "NoSuchNamespaceException")
    assert names(client) == []
    assert [t.type for t in served.history()] == ["SNAPSHOT", "APPEND", "DELETE"]
    with served.client(f"master@{written}") as past:
        assert names(past) == [["db"]]
        assert past.call("HEAD", _DB).status_code == 204
        assert load(past)["metadata"]["current-snapshot-id"] == 1
        listed = past.call("GET", TABLES).json()["identifiers"]
        assert listed == [{"namespace": ["db"], "name": "t"}]


def test_namespace_dropped_and_created_again_has_new_tables_under_the_old_names(
    client: RestClient, served: Served
) -> None:
    before = create(client)["metadata"]
    drop_table(client)
    client.call("DELETE", _DB).raise_for_status()
    assert error(client.call("POST", TABLES, {"name": "t", "schema": two_columns()})) == (
        404,
        "NoSuchNamespaceException",
    )
    client.call("POST", "namespaces", {"namespace": ["db"]}).raise_for_status()
    after = create(client)["metadata"]
    assert after["table-uuid"] != before["table-uuid"]
    assert after["location"] != before["location"]
    assert [t.type for t in served.history()] == ["SNAPSHOT", "DELETE", "SNAPSHOT"]


def test_reset_of_a_branch_brings_its_dropped_namespace_back(
    client: RestClient, served: Served
) -> None:
    create(client)
    branch = served.store.dataset("db.t").branch("master")
    view = branch.load().view
    assert view is not None
    drop_table(client)
    client.call("DELETE", _DB).raise_for_status()
    branch.reset(view)
    assert names(client) == [["db"]]
    assert client.call("HEAD", f"{TABLES}/t").status_code == 204
    assert error(client.call("DELETE", _DB)) == (409, "NamespaceNotEmptyException")
    change = client.call("POST", f"{_DB}/properties", {"updates": {"owner": "ana"}})
    assert change.json()["updated"] == ["owner"]
    create(client, "u")


def test_namespace_that_another_branch_shows_tables_in_is_kept_and_the_branch_named(
    client: RestClient, served: Served
) -> None:
    create(client)
    with served.client("feature>master") as feature:
        send(feature, *commit(1))
        drop_table(client)
        refused = client.call("DELETE", _DB)
        assert error(refused) == (409, "NamespaceNotEmptyException")
        assert "db.t on branch 'feature'" in refused.json()["error"]["message"]
        drop_table(feature)
    assert client.call("DELETE", _DB).status_code == 204


def test_namespace_in_which_a_transaction_is_open_is_kept(
    client: RestClient, served: Served
) -> None:
    create(client)
    drop_table(client)
    opened = served.store.dataset("db.t").branch("master").transaction("SNAPSHOT")
    assert error(client.call("DELETE", _DB)) == (409, "NamespaceNotEmptyException")
    opened.abort()
    assert client.call("DELETE", _DB).status_code == 204


def test_refusal_counts_what_the_token_may_not_read(api: Api) -> None:
    with RestClient(f"{api.url}/iceberg", "master", token=api.token("ana", Role.ADMIN)) as admin:
        admin.call("POST", "namespaces", {"namespace": ["db"]}).raise_for_status()
        for name in ("t", "secret"):
            create(admin, name)
    made = api.store.create_token(actor="bo", role=Role.WRITER, datasets=("db.[!s]*",))
    with RestClient(f"{api.url}/iceberg", "master", token=made["token"]) as limited:
        refused = limited.call("DELETE", _DB)
        assert error(refused) == (409, "NamespaceNotEmptyException")
        told = refused.json()["error"]["message"]
        assert "it holds db.t on branch 'master', 1 more." in told
        assert "secret" not in refused.text


def test_drop_beside_creations_leaves_every_created_table_in_an_existing_namespace(
    client: RestClient, served: Served, rounds: int
) -> None:
    for number in range(max(2, rounds // 5)):
        create(client, f"first{number}")
        drop_table(client, f"first{number}")

        def act(own: RestClient, which: int, number: int = number) -> httpx.Response:
            if which == 0:
                return own.call("DELETE", _DB)
            # An old name, whose dataset exists, and new ones.
            name = f"first{number}" if which == 1 else f"t{number}x{which}"
            body = {"name": name, "schema": two_columns()}
            return own.call("POST", TABLES, body)

        responses = at_once(served, act, clients=4)
        assert set(statuses(responses)) <= {200, 204, 404, 409}
        created = [json["metadata"] for r in responses[1:] if r.is_success and (json := r.json())]
        if created:
            assert client.call("HEAD", _DB).status_code == 204
            listed = client.call("GET", TABLES).json()["identifiers"]
            assert len(listed) == len(created)
            assert error(client.call("DELETE", _DB)) == (409, "NamespaceNotEmptyException")
            for item in listed:
                drop_table(client, item["name"])
        if client.call("HEAD", _DB).status_code == 404:
            client.call("POST", "namespaces", {"namespace": ["db"]}).raise_for_status()


@pytest.mark.parametrize("name", ["ta.ble", "tab/le", "a b"])
def test_table_with_a_dot_or_slash_is_reached_by_every_interface(api: Api, name: str) -> None:
    with RestClient(f"{api.url}/iceberg", "master", token=api.token("ana", Role.ADMIN)) as client:
        client.call("POST", "namespaces", {"namespace": ["new/d.b"]}).raise_for_status()
        tables = f"namespaces/{quote('new/d.b', safe='')}/tables"
        body = {"name": name, "schema": two_columns()}
        client.call("POST", tables, body).raise_for_status()
        assert client.call("HEAD", f"{tables}/{quote(name, safe='')}").status_code == 204
    text = f"`new/d.b`.`{name}`"
    path = quote(text, safe="")
    assert api.admin.get(f"/datasets/{path}")["dataset"] == text
    assert len(api.admin.get(f"/history/{path}")) == 1
    assert api.admin.get(f"/branches/{path}/master")["dataset"] == text
    assert api.store.dataset(text).load().name.name == name
    other = api.store.create_token(actor="bo", role=Role.READER, datasets=("new/d.*",))
    # A dot inside a part separates nothing, so this pattern covers another namespace.
    assert api.bearing(other["token"]).get("/datasets") == []


def test_location_of_a_new_table_has_directories_and_no_file(
    client: RestClient, served: Served
) -> None:
    staged = create(client, "staged", **{"stage-create": True})
    for made in (staged, create(client)):
        place = Path(made["metadata"]["location"].removeprefix("file://"))
        assert sorted(found.name for found in place.rglob("*")) == ["data", "metadata"]
    send(client, *creation(staged), name="staged", requirements=[{"type": "assert-create"}])
    assert load(client, "staged")["metadata"]["location"] == staged["metadata"]["location"]


def test_format_version_1_is_upgraded_with_a_warning(client: RestClient) -> None:
    body = {"name": "t", "schema": two_columns(), "properties": {"format-version": "1"}}
    for more in ({"stage-create": True}, {}):
        made = client.call("POST", TABLES, {**body, **more})
        assert made.json()["metadata"]["format-version"] == 2
        assert "the table has version 2" in made.headers["warning"]


@pytest.fixture
def outside(made_sqlite_url: str, tmp_path: Path, front: Front) -> Iterator[RestClient]:
    """A client of a store that allows tables in a directory beside its warehouse."""
    settings = new_settings(made_sqlite_url, tmp_path)
    with Store(replace(settings, allowed_locations=(str(tmp_path / "lake"),))) as store:
        served = Served(store, front)
        with served.client() as client:
            client.call("POST", "namespaces", {"namespace": ["db"]}).raise_for_status()
            yield client


def test_table_lies_where_the_settings_allow_it_and_nowhere_else(
    outside: RestClient, tmp_path: Path
) -> None:
    place = f"file:{tmp_path}/lake/t"
    body = {"name": "t", "schema": two_columns()}
    made = outside.call("POST", TABLES, {**body, "location": place}).json()
    assert made["metadata"]["location"] == place
    assert f"{tmp_path}/warehouse/tables/" in made["metadata-location"]
    beside = {**body, "name": "u", "location": f"file:{tmp_path}/lake2/u"}
    refused = outside.call("POST", TABLES, beside)
    assert error(refused) == (400, "BadRequestException")
    assert "allowed_locations" in refused.json()["error"]["message"]
    move = {"action": "set-location", "location": f"file:{tmp_path}/elsewhere"}
    assert send(outside, move).status_code == 400
    assert send(outside, {**move, "location": f"file:{tmp_path}/lake/moved"}).status_code == 200
    staged = outside.call(
        "POST", TABLES, {**body, "name": "s", "location": f"{place}2", "stage-create": True}
    )
    done = send(
        outside, *creation(staged.json()), name="s", requirements=[{"type": "assert-create"}]
    )
    assert done.json()["metadata"]["location"] == f"{place}2"


def test_allowed_location_over_the_warehouse_is_refused(
    made_sqlite_url: str, tmp_path: Path
) -> None:
    settings = new_settings(made_sqlite_url, tmp_path)
    with (
        Store(replace(settings, allowed_locations=(str(tmp_path),))) as store,
        pytest.raises(Invalid, match="overlaps the warehouse"),
    ):
        TableCatalog(store.database)
        _ = store.tables
