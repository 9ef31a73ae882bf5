"""Tables, request by request."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from headgate.tables.creation import DEFAULT_PROPERTIES
from tests.support.iceberg import (
    TABLES,
    RestClient,
    Served,
    at,
    create,
    creation,
    error,
    load,
    refusal,
    rename,
    send,
)
from tests.support.metadata import commit, point, snapshot, two_columns


def test_table_is_created_below_its_dataset_and_served_with_gc_off(
    client: RestClient, served: Served
) -> None:
    made = create(client, properties={"gc.enabled": "true", "a": "b"})
    dataset = served.store.dataset("db.t").load().id
    above, _, own = made["metadata"]["location"].rpartition("/")
    assert above.endswith(f"/warehouse/tables/{dataset}")
    assert own
    kept = {**DEFAULT_PROPERTIES, "a": "b"}
    assert made["metadata"]["properties"] == {**kept, "gc.enabled": "false"}
    stored = Path(made["metadata-location"].removeprefix("file://")).read_bytes()
    assert orjson.loads(stored)["properties"] == kept


def test_table_loads_once_for_each_version(client: RestClient) -> None:
    create(client)
    first = client.call("GET", f"{TABLES}/t")
    known = {"if-none-match": first.headers["etag"]}
    assert client.call("GET", f"{TABLES}/t", headers=known).status_code == 304
    assert client.call("GET", f"{TABLES}/t?snapshots=refs", headers=known).status_code == 200
    send(client, *commit(1))
    assert client.call("GET", f"{TABLES}/t", headers=known).status_code == 200


def test_table_loaded_by_refs_has_only_the_snapshots_named(client: RestClient) -> None:
    create(client)
    send(client, *commit(1), *commit(2, parent=1))
    assert len(load(client, query="?snapshots=refs")["metadata"]["snapshots"]) == 1
    assert len(load(client)["metadata"]["snapshots"]) == 2
    assert client.call("GET", f"{TABLES}/t?snapshots=none").status_code == 400


def test_staged_table_is_invisible_until_its_commit(client: RestClient) -> None:
    staged = create(client, "t", **{"stage-create": True})
    assert "metadata-location" not in staged
    assert client.call("HEAD", f"{TABLES}/t").status_code == 404
    response = send(client, *creation(staged), requirements=[{"type": "assert-create"}])
    assert response.status_code == 200
    assert response.json()["metadata"]["table-uuid"] == staged["metadata"]["table-uuid"]


def test_staged_table_whose_name_was_taken_is_409(client: RestClient, served: Served) -> None:
    staged = create(client, "t", **{"stage-create": True})
    create(client)
    response = send(client, *creation(staged), requirements=[{"type": "assert-create"}])
    assert error(response) == (409, "AlreadyExistsException")
    served.store.dataset("raw.scans").create(kind="files", branch="other", create=True)
    with served.client("other") as other:
        response = send(other, *creation(staged), requirements=[{"type": "assert-create"}])
        assert error(response) == (409, "CommitFailedException")


def test_table_outside_the_warehouse_is_refused(client: RestClient) -> None:
    body = {"name": "t", "schema": two_columns(), "location": "file:///elsewhere"}
    assert error(client.call("POST", TABLES, body)) == (400, "BadRequestException")
    staged = create(client, "t", **{"stage-create": True})
    moved = {"action": "set-location", "location": "file:///elsewhere"}
    updates = [*creation(staged), moved]
    assert send(client, *updates, requirements=[{"type": "assert-create"}]).status_code == 400
    create(client)
    assert send(client, moved).status_code == 400


@pytest.mark.parametrize(
    "setting",
    [
        *("write.data.path", "write.metadata.path", "write.object-storage.path"),
        *("write.folder-storage.path", "write.location-provider.impl"),
    ],
)
def test_setting_that_puts_files_elsewhere_is_refused_by_name(
    client: RestClient, setting: str
) -> None:
    outside = {setting: "s3://elsewhere/x"}
    body = {"name": "t", "schema": two_columns(), "properties": outside}
    for more in ({}, {"stage-create": True}):
        refused = client.call("POST", TABLES, {**body, **more})
        assert refusal(refused) == (400, "table_place_refused")
        assert setting in refused.json()["error"]["message"]
    staged = create(client, "t", **{"stage-create": True})
    update = {"action": "set-properties", "updates": outside}
    made = send(client, *creation(staged), update, requirements=[{"type": "assert-create"}])
    assert refusal(made) == (400, "table_place_refused")
    create(client)
    assert refusal(send(client, update)) == (400, "table_place_refused")


@pytest.mark.parametrize(
    "place",
    ["file:///etc/snap.avro", "s3://elsewhere/snap.avro", "{0}/../../d-2/snap.avro", "{0}/.."],
)
def test_snapshot_whose_files_lie_elsewhere_is_refused(
    client: RestClient, served: Served, place: str
) -> None:
    root = create(client)["metadata"]["location"]
    added = snapshot(1) | {"manifest-list": place.format(root)}
    before = served.publications
    refused = send(client, {"action": "add-snapshot", "snapshot": added}, point(1))
    assert refusal(refused) == (400, "table_place_refused")
    assert "manifest-list" in refused.json()["error"]["message"]
    assert served.publications == before


def test_setting_that_keeps_files_below_the_table_is_taken(client: RestClient) -> None:
    place = create(client)["metadata"]["location"]
    inside = {"write.data.path": f"{place}/data/new", "write.metadata.path": f"{place}/metadata/"}
    assert send(client, {"action": "set-properties", "updates": inside}).is_success
    beside = {"write.data.path": f"{place}/../../d-other/data"}
    assert send(client, {"action": "set-properties", "updates": beside}).status_code == 400


def test_table_in_no_namespace_is_404_and_twice_is_409(client: RestClient) -> None:
    body = {"name": "t", "schema": two_columns()}
    missing = client.call("POST", "namespaces/nowhere/tables", body)
    assert error(missing) == (404, "NoSuchNamespaceException")
    create(client)
    assert error(client.call("POST", TABLES, body)) == (409, "AlreadyExistsException")


def test_metadata_table_name_is_no_such_table(client: RestClient) -> None:
    create(client)
    response = client.call("GET", "namespaces/db%1Ft/tables/files")
    assert error(response) == (404, "NoSuchTableException")


def test_tables_list_in_pages_and_by_context(client: RestClient, served: Served) -> None:
    for name in ("a", "b", "c"):
        create(client, name)
    first = client.call("GET", f"{TABLES}?pageToken=&pageSize=2").json()
    assert [one["name"] for one in first["identifiers"]] == ["a", "b"]
    served.store.dataset("raw.scans").create(kind="files", branch="elsewhere", create=True)
    with served.client("elsewhere") as other:
        assert other.call("GET", TABLES).json()["identifiers"] == []


def test_branch_reads_its_fallback_and_writes_for_itself(
    client: RestClient, served: Served
) -> None:
    create(client)
    send(client, *commit(1))
    with served.client("feature>master") as feature:
        assert send(feature, *commit(2, parent=1), requirements=[at(1)]).status_code == 200
        assert load(feature)["metadata"]["current-snapshot-id"] == 2
    assert load(client)["metadata"]["current-snapshot-id"] == 1


@pytest.mark.parametrize("options", ["", "?purgeRequested=True"])
def test_drop_leaves_a_tombstone_and_the_files_also_with_purge(
    client: RestClient, served: Served, options: str
) -> None:
    create(client)
    with served.client("feature>master") as feature:
        assert feature.call("DELETE", f"{TABLES}/t{options}").status_code == 204
        assert feature.call("HEAD", f"{TABLES}/t").status_code == 404
    assert client.call("HEAD", f"{TABLES}/t").status_code == 204


def test_rename_keeps_the_version(client: RestClient) -> None:
    made = create(client)
    body = rename("t", "u")
    assert client.call("POST", "tables/rename", body).status_code == 204
    assert load(client, "u")["metadata-location"] == made["metadata-location"]
    assert error(client.call("POST", "tables/rename", body)) == (404, "NoSuchTableException")
    create(client)
    assert error(client.call("POST", "tables/rename", body)) == (409, "AlreadyExistsException")


def test_registered_table_keeps_its_rows_and_writes_below_the_warehouse(
    client: RestClient, served: Served
) -> None:
    create(client)
    outside = send(client, *commit(1)).json()["metadata-location"]
    body = {"name": "taken_in", "metadata-location": outside}
    made = client.call("POST", "namespaces/db/register", body).json()
    assert made["metadata"]["current-snapshot-id"] == 1
    assert made["metadata"]["location"] != load(client)["metadata"]["location"]
    assert served.store.dataset("db.taken_in").load().owned is False


def test_metrics_are_taken_and_forgotten(client: RestClient) -> None:
    assert client.call("POST", f"{TABLES}/t/metrics", {"report-type": "x"}).status_code == 204
