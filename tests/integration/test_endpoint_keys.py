"""Idempotency keys: the same request gets the same response, another one is rejected."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import httpx
import pytest

from headgate.iceberg.table_catalog import Idempotency, TableChange, Write
from headgate.model.changes import Caller
from headgate.model.contexts import parse_context
from headgate.model.names import parse_dataset_name
from headgate.model.nouns import TransactionType
from tests.support.iceberg import (
    TABLES,
    RestClient,
    Served,
    create,
    error,
    load,
    refusal,
    rename,
    send,
    snapshot_of,
    table_change,
)
from tests.support.metadata import commit, point, two_columns


def new_key() -> dict[str, str]:
    return {"idempotency-key": str(uuid4())}


def test_key_sent_again_has_one_effect_and_the_same_answer(
    client: RestClient, served: Served
) -> None:
    headers = {"idempotency-key": str(uuid4())}
    body = {"name": "t", "schema": two_columns()}
    first = client.call("POST", TABLES, body, headers=headers)
    again = client.call("POST", TABLES, body, headers=headers)
    assert (first.status_code, again.status_code) == (200, 200)
    assert again.json() == first.json()
    assert served.publications == 1


def test_key_of_a_refusal_hears_it_again(client: RestClient) -> None:
    headers = {"idempotency-key": str(uuid4())}
    update = {"action": "set-properties", "updates": {"a": "1"}}
    assert send(client, update, headers=headers).status_code == 404
    create(client)
    assert send(client, update, headers=headers).status_code == 404
    assert send(client, update).status_code == 200


def test_key_with_another_request_or_of_a_wrong_form_is_400(client: RestClient) -> None:
    create(client)
    headers = {"idempotency-key": str(uuid4())}
    assert send(client, *commit(1), headers=headers).status_code == 200
    reused = send(client, *commit(2, parent=1), headers=headers)
    assert reused.json()["error"]["headgate"]["code"] == "idempotency_key_reused"
    assert send(client, point(1), headers={"idempotency-key": "k"}).status_code == 400


def test_key_of_a_commit_hears_its_own_version_whatever_came_after(
    client: RestClient, served: Served
) -> None:
    create(client)
    headers = new_key()
    first = send(client, *commit(1), headers=headers)
    with served.client() as other:
        send(other, *commit(2, parent=1))
        assert send(client, *commit(1), headers=headers).json() == first.json()
        other.call("DELETE", f"{TABLES}/t").raise_for_status()
    before = served.publications
    assert send(client, *commit(1), headers=headers).json() == first.json()
    assert served.publications == before


def test_catalog_itself_answers_a_key_on_record_as_it_did_then(
    client: RestClient, served: Served
) -> None:
    create(client)
    context, ana = parse_context("master"), Caller(actor="ana")
    base = served.catalog.resolve(context, parse_dataset_name("db.t"))
    assert base is not None
    key = Idempotency(key=str(uuid4()), request_hash="h")
    change = TableChange(
        name=base.name,
        dataset_id=base.dataset_id,
        base=base,
        location=base.location,
        content_id=base.content_id,
        type=TransactionType.UPDATE,
    )
    write = Write(caller=ana, context=context, idempotency=key)
    first = served.catalog.commit(write, [change])
    served.catalog.drop(Write(caller=ana, context=context), first[0])
    assert served.catalog.commit(write, [change]) == first
    assert served.catalog.recall(write) == first


REQUESTS: dict[str, tuple[str, str, Any]] = {
    "drop": ("DELETE", f"{TABLES}/t", None),
    "rename": ("POST", "tables/rename", rename("t", "v")),
    "register": ("POST", "namespaces/db/register", {"name": "r", "metadata-location": "?"}),
    "commit over two tables": (
        "POST",
        "transactions/commit",
        {"table-changes": [table_change(name, *commit(2, parent=1)) for name in "tu"]},
    ),
    "create namespace": ("POST", "namespaces", {"namespace": ["x"], "properties": {"a": "b"}}),
    "change namespace": (
        "POST",
        "namespaces/db/properties",
        {"removals": ["owner", "nobody"], "updates": {"a": "1"}},
    ),
    "drop namespace": ("DELETE", "namespaces/empty", None),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_key_sent_again_with_any_write_has_one_effect_and_the_same_answer(
    two_tables: RestClient, served: Served, name: str
) -> None:
    two_tables.call("POST", "namespaces", {"namespace": ["empty"]}).raise_for_status()
    owner = {"updates": {"owner": "ana"}}
    two_tables.call("POST", "namespaces/db/properties", owner).raise_for_status()
    method, path, body = REQUESTS[name]
    if name == "register":
        body = {**body, "metadata-location": load(two_tables)["metadata-location"]}
    headers = new_key()

    def ask() -> httpx.Response:
        return two_tables.call(method, path, body, headers=headers)

    first, after = ask(), served.publications
    again = ask()
    assert first.is_success, first.text
    assert (again.status_code, again.content) == (first.status_code, first.content)
    assert served.publications == after


def test_key_of_one_branch_means_nothing_on_another(client: RestClient, served: Served) -> None:
    create(client)
    headers = new_key()
    assert send(client, *commit(1), headers=headers).status_code == 200
    with served.client("feature>master") as feature:
        assert send(feature, *commit(2, parent=1), headers=headers).status_code == 200
        assert (snapshot_of(feature), snapshot_of(client)) == (2, 1)


def test_key_of_a_namespace_with_another_request_is_400(client: RestClient) -> None:
    headers = new_key()
    client.call("POST", "namespaces", {"namespace": ["x"]}, headers=headers).raise_for_status()
    other = client.call("POST", "namespaces", {"namespace": ["y"]}, headers=headers)
    assert refusal(other) == (400, "idempotency_key_reused")
    assert error(client.call("GET", "namespaces/y")) == (404, "NoSuchNamespaceException")
