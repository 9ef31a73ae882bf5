"""Views, request by request."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import orjson
import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import BadRequestError, NoSuchTableError, TableAlreadyExistsError

from headgate.model.nouns import TransactionType
from tests.support.iceberg import TABLES, RestClient, Served, create, error, refusal, rename
from tests.support.views import (
    SPARK,
    VIEWS,
    make_view,
    post_view,
    query_of,
    replace_view,
    send_view,
    to_replace,
    view_schema,
    view_version,
)

OTHER = "SELECT id FROM db.t WHERE id > 1"


def test_view_is_one_publication_and_its_document_is_stored_as_sent(
    client: RestClient, served: Served
) -> None:
    before = served.publications
    made = post_view(client, properties={"comment": "ids", "a": "b"})
    assert made.status_code == 200
    assert served.publications == before + 1
    metadata = made.json()["metadata"]
    assert metadata["format-version"] == 1
    assert metadata["properties"] == {"comment": "ids", "a": "b"}
    assert metadata["versions"] == [{**view_version({"spark": SPARK}), "schema-id": 0}]
    assert metadata["version-log"] == [{"version-id": 1, "timestamp-ms": 1_700_000_000_000}]
    stored = Path(made.json()["metadata-location"].removeprefix("file://")).read_bytes()
    assert orjson.loads(stored) == metadata
    assert client.call("GET", f"{VIEWS}/v").json()["metadata"] == metadata
    assert client.call("HEAD", f"{VIEWS}/v").status_code == 204
    (first,) = served.history("db.v")
    assert first.type is TransactionType.SNAPSHOT


def test_view_without_namespace_or_query_is_refused(client: RestClient) -> None:
    body = {"name": "v", "schema": view_schema(), "view-version": view_version({"spark": SPARK})}
    assert error(client.call("POST", "namespaces/nowhere/views", body)) == (
        404,
        "NoSuchNamespaceException",
    )
    for version, words in (
        (view_version({}), "it has no query"),
        ({**view_version({}), "representations": [{"type": "python"}]}, "'python'"),
    ):
        response = client.call("POST", VIEWS, {**body, "view-version": version})
        assert response.status_code == 400
        assert words in response.json()["error"]["message"]
    twice = view_version({"spark": SPARK, "SPARK": OTHER})
    response = client.call("POST", VIEWS, {**body, "view-version": twice})
    assert response.status_code == 400
    assert "Cannot add multiple queries for dialect spark" in response.json()["error"]["message"]


def test_views_and_tables_are_listed_apart(client: RestClient) -> None:
    create(client)
    make_view(client)
    for path, name in ((VIEWS, "v"), (TABLES, "t")):
        listed = client.call("GET", path).json()["identifiers"]
        assert listed == [{"namespace": ["db"], "name": name}]
    assert error(client.call("GET", f"{TABLES}/v")) == (404, "NoSuchTableException")
    assert error(client.call("GET", f"{VIEWS}/t")) == (404, "NoSuchViewException")


def test_view_and_table_of_one_name_are_409_in_the_words_of_iceberg(client: RestClient) -> None:
    create(client)
    make_view(client)
    taken = post_view(client, "t")
    assert error(taken) == (409, "AlreadyExistsException")
    assert taken.json()["error"]["message"].startswith("Table with same name already exists: db.t")
    for more in ({}, {"stage-create": True}):
        body = {"name": "v", "schema": view_schema(), **more}
        taken = client.call("POST", TABLES, body)
        assert error(taken) == (409, "AlreadyExistsException")
        message = taken.json()["error"]["message"]
        assert message.startswith("View with same name already exists: db.v")
    again = post_view(client)
    assert again.json()["error"]["message"].startswith("View already exists: db.v")
    for kind, source, target, found in (
        ("tables", "t", "v", "View"),
        ("views", "v", "t", "Table"),
        ("views", "v", "v", "View"),
    ):
        refused = client.call("POST", f"{kind}/rename", rename(source, target))
        assert error(refused) == (409, "AlreadyExistsException")
        told = f"Cannot rename db.{source} to db.{target}. {found} already exists"
        assert refused.json()["error"]["message"].startswith(told)


def test_name_of_a_dropped_table_is_kept_for_tables(client: RestClient) -> None:
    create(client)
    assert client.call("DELETE", f"{TABLES}/t").status_code == 204
    assert refusal(post_view(client, "t")) == (409, "name_taken")


def test_name_of_another_kind_is_not_found_by_pyiceberg_and_stays_of_its_kind(
    client: RestClient, served: Served
) -> None:
    catalog = RestCatalog("h", uri=served.url, warehouse="master", token=served.token)
    columns = pa.schema([("id", pa.int64())])
    make_view(client)
    served.store.dataset("db.f").create("files", branch="master")
    for name in ("v", "f"):
        assert not catalog.table_exists(f"db.{name}")
        with pytest.raises(NoSuchTableError, match=f"Table does not exist: db.{name} on master"):
            catalog.load_table(f"db.{name}")
        with pytest.raises(NoSuchTableError):
            catalog.drop_table(f"db.{name}")
    assert catalog.list_tables("db") == []
    assert catalog.list_views("db") == [("db", "v")]
    with pytest.raises(BadRequestError, match=r"db.f is a tree of files, not a table"):
        catalog.create_table("db.f", columns)
    catalog.drop_view("db.v")
    with pytest.raises(TableAlreadyExistsError, match=r"View with same name .* keeps its kind"):
        catalog.create_table("db.v", columns)
    make_view(client)
    catalog.create_table("db.t", columns)
    catalog.drop_table("db.t")
    catalog.create_table("db.t", columns)
    assert catalog.list_views("db") == [("db", "v")]


def test_view_on_a_branch_is_read_there_and_not_on_its_fallback(
    client: RestClient, served: Served
) -> None:
    make_view(client)
    with served.client("feature>master") as feature:
        assert query_of(feature) == SPARK
        replace_view(feature, OTHER)
        make_view(feature, "w")
        assert query_of(feature) == OTHER
        assert query_of(client) == SPARK
        assert query_of(client, "w") is None
        assert feature.call("DELETE", f"{VIEWS}/v").status_code == 204
        assert query_of(feature) is None
    assert query_of(client) == SPARK


def test_view_of_a_moment_is_read_only(client: RestClient, served: Served) -> None:
    make_view(client)
    made = served.publications
    replace_view(client, OTHER)
    with served.client(f"master@{made}") as past:
        assert query_of(past) == SPARK
        assert refusal(send_view(past, *to_replace({"spark": "SELECT 1"}))) == (
            403,
            "context_read_only",
        )
    assert query_of(client) == OTHER


def test_replaced_view_keeps_its_versions_and_each_dialect(client: RestClient) -> None:
    first = make_view(client)
    both = {"spark": OTHER, "trino": 'SELECT "id" FROM db.t WHERE id > 1'}
    made = send_view(
        client,
        *to_replace(both),
        requirements=[{"type": "assert-view-uuid", "uuid": first["view-uuid"]}],
    ).json()["metadata"]
    assert [one["version-id"] for one in made["versions"]] == [1, 2]
    assert [one["version-id"] for one in made["version-log"]] == [1, 2]
    assert made["current-version-id"] == 2
    queries = {one["dialect"]: one["sql"] for one in made["versions"][1]["representations"]}
    assert queries == both
    lost = send_view(client, *to_replace({"spark": SPARK}))
    assert refusal(lost) == (400, "view_dialect_lost")
    allowed = {"replace.drop-dialect.allowed": "true"}
    send_view(client, {"action": "set-properties", "updates": allowed})
    assert send_view(client, *to_replace({"spark": SPARK})).status_code == 200
    # The first version behaves the same, so it is the current one again.
    again = client.call("GET", f"{VIEWS}/v").json()["metadata"]
    assert again["current-version-id"] == 1
    assert [one["version-id"] for one in again["version-log"]] == [1, 2, 1]


def test_view_of_another_uuid_is_409(client: RestClient, served: Served) -> None:
    make_view(client)
    other = {"type": "assert-view-uuid", "uuid": str(uuid4())}
    before = served.publications
    response = send_view(client, *to_replace({"spark": OTHER}), requirements=[other])
    assert error(response) == (409, "CommitFailedException")
    message = response.json()["error"]["message"]
    assert message.startswith("Requirement failed: view UUID does not match: expected")
    assert served.publications == before


def test_versions_beyond_the_history_size_expire_with_their_log(client: RestClient) -> None:
    make_view(client, properties={"version.history.num-entries": "2"})
    for at in range(3):
        made = replace_view(client, f"SELECT {at} AS id")
    assert [one["version-id"] for one in made["versions"]] == [3, 4]
    assert [one["version-id"] for one in made["version-log"]] == [3, 4]
    bad = {"action": "set-properties", "updates": {"version.history.num-entries": "0"}}
    assert send_view(client, bad).status_code == 400


def test_change_of_properties_keeps_the_content_of_the_view(
    client: RestClient, served: Served
) -> None:
    make_view(client)
    send_view(client, {"action": "set-properties", "updates": {"comment": "ids"}})
    replace_view(client, OTHER)
    first, second, third = served.history("db.v")
    contents = [one.version.content_id for one in (first, second, third) if one.version]
    assert contents[0] == contents[1] != contents[2]
    assert [one.type for one in (second, third)] == [
        TransactionType.UPDATE,
        TransactionType.SNAPSHOT,
    ]
    before = served.publications
    assert send_view(client, {"action": "set-properties", "updates": {"comment": "ids"}}).is_success
    assert served.publications == before


def test_repeated_key_of_a_view_is_answered_without_a_second_write(
    client: RestClient, served: Served
) -> None:
    key = {"idempotency-key": str(uuid4())}
    first = post_view(client, headers=key)
    replace_view(client, OTHER)
    made = served.publications
    assert post_view(client, headers=key).json() == first.json()
    assert served.publications == made
    gone = {"idempotency-key": str(uuid4())}
    for _ in range(2):
        assert client.call("DELETE", f"{VIEWS}/v", headers=gone).status_code == 204
    assert served.publications == made + 1


def test_renamed_view_continues_its_history(client: RestClient, served: Served) -> None:
    made = make_view(client)
    assert client.call("POST", "views/rename", rename("v", "w")).status_code == 204
    assert client.call("GET", f"{VIEWS}/w").json()["metadata"] == made
    assert query_of(client) is None
    first, dropped = served.history("db.v")
    assert dropped.version is None
    *_, new = served.history("db.w")
    assert new.renamed_from == first.id
    assert error(client.call("POST", "views/rename", rename("v", "x"))) == (
        404,
        "NoSuchViewException",
    )


def test_reset_and_restore_show_the_earlier_view(client: RestClient, served: Served) -> None:
    make_view(client)
    first = served.history("db.v")[0].id
    replace_view(client, OTHER)
    branch = served.store.dataset("db.v").branch("master")
    branch.reset(to=first)
    assert query_of(client) == SPARK
    with served.client("feature>master") as feature:
        replace_view(feature, OTHER)
        served.store.dataset("db.v").branch("feature").delete()
        assert query_of(feature) == SPARK
        served.store.dataset("db.v").branch("feature").restore()
        assert query_of(feature) == OTHER


def test_write_of_a_view_in_a_unit_lands_with_the_unit(client: RestClient, served: Served) -> None:
    with (
        served.store.transaction(branch="master") as unit,
        served.client(f"txn:{unit.id}") as inside,
    ):
        make_view(inside)
        replace_view(inside, OTHER)
        create(inside)
        assert query_of(inside) == OTHER
        assert query_of(client) is None
        before = served.publications
    assert served.publications == before + 1
    assert query_of(client) == OTHER
    assert client.call("HEAD", f"{TABLES}/t").status_code == 204
    with pytest.raises(ZeroDivisionError), served.store.transaction(branch="master") as unit:
        with served.client(f"txn:{unit.id}") as inside:
            replace_view(inside, "SELECT 1 AS id")
        raise ZeroDivisionError
    assert query_of(client) == OTHER


def test_namespace_with_a_view_on_any_branch_is_not_empty(
    client: RestClient, served: Served
) -> None:
    make_view(client)
    with served.client("feature>master") as feature:
        replace_view(feature, OTHER)
        assert client.call("DELETE", f"{VIEWS}/v").status_code == 204
        refused = client.call("DELETE", "namespaces/db")
        assert error(refused) == (409, "NamespaceNotEmptyException")
        assert "db.v on branch 'feature'" in refused.json()["error"]["message"]
        assert feature.call("DELETE", f"{VIEWS}/v").status_code == 204
    assert client.call("DELETE", "namespaces/db").status_code == 204


def test_reader_reads_a_view_and_writes_none(client: RestClient, served: Served) -> None:
    make_view(client)
    with served.client(token=served.reader) as reader:
        assert query_of(reader) == SPARK
        for refused in (
            post_view(reader, "w"),
            send_view(reader, *to_replace({"spark": OTHER})),
            reader.call("DELETE", f"{VIEWS}/v"),
            reader.call("POST", "views/rename", rename("v", "w")),
        ):
            assert error(refused) == (403, "ForbiddenException")
    assert query_of(client) == SPARK


def test_replacements_of_one_view_by_many_clients_all_happen(
    client: RestClient, served: Served
) -> None:
    make_view(client, properties={"version.history.num-entries": "100"})

    def write(number: int) -> int:
        with served.client() as one:
            changes = to_replace({"spark": f"SELECT {number} AS id"})
            return send_view(one, *changes).status_code

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(write, range(8))) == {200}
    metadata = client.call("GET", f"{VIEWS}/v").json()["metadata"]
    queries = {one["representations"][0]["sql"] for one in metadata["versions"]}
    assert queries == {SPARK, *(f"SELECT {number} AS id" for number in range(8))}


def test_view_created_by_many_clients_at_once_is_created_once(
    client: RestClient, served: Served
) -> None:
    def write(_: int) -> int:
        with served.client() as one:
            return post_view(one).status_code

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(write, range(8))) == [200, *[409] * 7]
    assert len(served.history("db.v")) == 1
