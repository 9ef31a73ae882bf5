"""Units of transactions, and single ones, as contexts: `txn:<id>`."""

from __future__ import annotations

from uuid import uuid4

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog

from headgate.catalog.log import list_publications
from headgate.catalog.records import load_unit
from headgate.errors import TransactionTypeViolated, ViewConflict
from headgate.iceberg.table_catalog import TableChange, Write
from headgate.model.changes import Caller
from headgate.model.contexts import parse_context
from headgate.model.ids import mint_content
from headgate.model.names import parse_dataset_name
from headgate.model.nouns import TransactionState, TransactionType
from tests.support.iceberg import (
    TABLES,
    RestClient,
    Served,
    at,
    create,
    error,
    load,
    refusal,
    rename,
    send,
    snapshot_of,
    table_change,
)
from tests.support.metadata import commit, two_columns
from tests.support.stores import expire_leases
from tests.support.stores import load as load_transaction


def test_unit_over_two_tables_is_seen_by_itself_and_then_by_all_at_once(
    two_tables: RestClient, served: Served
) -> None:
    before = served.publications
    with served.store.transaction(branch="master") as unit, served.client(unit.context) as inside:
        for name in ("t", "u"):
            assert send(inside, *commit(2, parent=1), name=name, requirements=[at(1)]).is_success
        send(inside, *commit(3, parent=2), requirements=[at(2)])
        assert (snapshot_of(inside, "t"), snapshot_of(inside, "u")) == (3, 2)
        assert (snapshot_of(two_tables, "t"), snapshot_of(two_tables, "u")) == (1, 1)
    assert (snapshot_of(two_tables, "t"), snapshot_of(two_tables, "u")) == (3, 2)
    assert served.publications == before + 1
    assert [t.type for t in served.history()] == ["SNAPSHOT", "APPEND", "APPEND"]


def test_unit_takes_a_commit_over_two_tables_whole_or_not_at_all(
    two_tables: RestClient, served: Served
) -> None:
    with served.client(served.store.transaction(branch="master").context) as inside:
        body = {
            "table-changes": [
                table_change("t", *commit(2, parent=1), requirements=[at(1)]),
                table_change("u", *commit(2, parent=1), requirements=[at(7)]),
            ]
        }
        assert inside.call("POST", "transactions/commit", body).status_code == 409
        assert (snapshot_of(inside, "t"), snapshot_of(inside, "u")) == (1, 1)
        body["table-changes"][1]["requirements"] = [at(1)]
        assert inside.call("POST", "transactions/commit", body).status_code == 204
        assert (snapshot_of(inside, "t"), snapshot_of(inside, "u")) == (2, 2)


def test_table_created_in_a_unit_is_there_once_the_unit_is_committed(
    client: RestClient, served: Served
) -> None:
    unit = served.store.transaction(branch="master")
    with served.client(unit.context) as inside:
        create(inside)
        twice = inside.call("POST", TABLES, {"name": "t", "schema": two_columns()})
        assert error(twice) == (409, "AlreadyExistsException")
        assert send(inside, *commit(1)).status_code == 200
        assert [one["name"] for one in inside.call("GET", TABLES).json()["identifiers"]] == ["t"]
    assert client.call("HEAD", f"{TABLES}/t").status_code == 404
    unit.commit()
    assert snapshot_of(client) == 1


def test_unit_that_was_aborted_is_closed_to_readers_and_writers(
    two_tables: RestClient, served: Served
) -> None:
    unit = served.store.transaction(branch="master")
    with served.client(unit.context) as inside:
        send(inside, *commit(2, parent=1))
        unit.abort()
        for path in (f"{TABLES}/t", f"{TABLES}/u", TABLES):
            assert refusal(inside.call("GET", path)) == (403, "transaction_not_open")
        assert refusal(send(inside, *commit(3))) == (403, "transaction_not_open")
    assert snapshot_of(two_tables) == 1


def test_unit_that_was_committed_shows_what_it_committed_and_refuses_writes(
    two_tables: RestClient, served: Served
) -> None:
    unit = served.store.transaction(branch="master")
    with served.client(unit.context) as inside:
        send(inside, *commit(2, parent=1), requirements=[at(1)])
        unit.commit()
        for name, parent in (("t", 2), ("u", 1)):
            assert send(two_tables, *commit(3, parent=parent), name=name).is_success
        # The unit shows its own table as committed, the other one as its branch shows it.
        assert (snapshot_of(inside, "t"), snapshot_of(inside, "u")) == (2, 3)
        listed = inside.call("GET", TABLES).json()["identifiers"]
        assert [one["name"] for one in listed] == ["t", "u"]
        for name in ("t", "u"):
            refused = send(inside, *commit(4, parent=3), name=name)
            assert refusal(refused) == (403, "transaction_not_open")
        created = inside.call("POST", TABLES, {"name": "v", "schema": two_columns()})
        assert refusal(created) == (403, "transaction_not_open")
        # A client whose response was lost repeats its commit, which has landed.
        again = send(inside, *commit(2, parent=1), requirements=[at(1)])
        assert again.json()["metadata"]["current-snapshot-id"] == 2
    assert (snapshot_of(two_tables, "t"), snapshot_of(two_tables, "u")) == (3, 3)


def test_single_transaction_that_was_committed_shows_what_it_committed(
    two_tables: RestClient, served: Served
) -> None:
    with (
        served.store.dataset("db.t").branch("master").transaction("APPEND") as one,
        served.client(f"txn:{one.id}") as inside,
    ):
        send(inside, *commit(2, parent=1))
    send(two_tables, *commit(3, parent=2))
    with served.client(f"txn:{one.id}") as inside:
        assert snapshot_of(inside) == 2
        assert refusal(send(inside, *commit(4, parent=2))) == (403, "transaction_not_open")


def test_unit_holds_its_branches_and_the_refusal_names_who(
    two_tables: RestClient, served: Served
) -> None:
    with served.client(served.store.transaction(branch="master", actor="bea").context) as inside:
        send(inside, *commit(2, parent=1))
    refused = send(two_tables, *commit(3, parent=1))
    assert error(refused) == (409, "CommitFailedException")
    facts = refused.json()["error"]["headgate"]
    assert (facts["code"], facts["holder"]) == ("open_transaction_exists", "bea")
    assert send(two_tables, *commit(3, parent=1), name="u").status_code == 200


def test_unit_prepared_on_a_view_that_moved_is_a_conflict_and_opens_nothing(
    two_tables: RestClient, served: Served
) -> None:
    context = parse_context(served.store.transaction(branch="master").context)
    base = served.catalog.resolve(context, parse_dataset_name("db.t"))
    assert base is not None
    send(two_tables, *commit(2, parent=1))
    change = TableChange(
        name=base.name,
        dataset_id=base.dataset_id,
        base=base,
        location=base.location,
        content_id=mint_content(),
        type=TransactionType.APPEND,
    )
    with pytest.raises(ViewConflict):
        served.catalog.commit(Write(caller=Caller(actor="ana"), context=context), [change])
    assert not served.store.dataset("db.t").branch("master").load().is_open


def test_use_of_a_unit_renews_its_lease(two_tables: RestClient, served: Served) -> None:
    unit = served.store.transaction(branch="master")
    opened = served.store.database.read(lambda c: load_unit(c, unit.id))
    with served.client(unit.context) as inside:
        send(inside, *commit(2, parent=1))
        for use in (lambda: load(inside, "u"), lambda: send(inside, *commit(3, parent=2))):
            expire_leases(served.store)
            use()
            found = served.store.database.read(lambda c: load_unit(c, unit.id))
            leases = [found.lease_until, *(t.lease_until or 0 for t in found.transactions)]
            assert min(leases) >= opened.lease_until


def test_unit_that_nobody_opened_is_404(client: RestClient, served: Served) -> None:
    create(client)
    with served.client("txn:u-nobody") as inside:
        assert inside.call("GET", f"{TABLES}/t").status_code == 404
        assert send(inside, *commit(1)).status_code == 404


def test_drop_and_rename_inside_a_unit_are_refused(two_tables: RestClient, served: Served) -> None:
    with served.client(served.store.transaction(branch="master").context) as inside:
        assert error(inside.call("DELETE", f"{TABLES}/t")) == (403, "ForbiddenException")
        renamed = inside.call("POST", "tables/rename", rename("t", "v"))
        assert error(renamed) == (403, "ForbiddenException")
        assert snapshot_of(inside) == 1


def test_key_sent_again_in_a_unit_stages_once(two_tables: RestClient, served: Served) -> None:
    headers = {"idempotency-key": str(uuid4())}
    property_ = {"action": "set-properties", "updates": {"a": "1"}}
    with served.client(served.store.transaction(branch="master").context) as inside:
        first = send(inside, property_, headers=headers)
        again = send(inside, property_, headers=headers)
        assert (first.status_code, again.json()) == (200, first.json())
        other = send(inside, *commit(2), headers=headers)
        assert refusal(other) == (400, "idempotency_key_reused")


def test_single_transaction_keeps_to_its_dataset_and_its_type(
    two_tables: RestClient, served: Served
) -> None:
    one = served.store.dataset("db.t").branch("master").transaction("APPEND")
    with served.client(f"txn:{one.id}") as inside:
        assert refusal(send(inside, *commit(2, parent=1), name="u")) == (403, "job_write_denied")
        assert (snapshot_of(inside, "u"), snapshot_of(inside)) == (1, 1)
        send(inside, *commit(2, parent=1))
        send(inside, *commit(3, parent=2, op="overwrite"))
        with pytest.raises(TransactionTypeViolated):
            one.commit()
        assert snapshot_of(inside) == 3
    assert load_transaction(served.store, one.id).state is TransactionState.OPEN
    one.abort()
    assert snapshot_of(two_tables) == 1


def test_single_transaction_commits_what_was_appended(
    two_tables: RestClient, served: Served
) -> None:
    with (
        served.store.dataset("db.t").branch("master").transaction("APPEND") as one,
        served.client(f"txn:{one.id}") as inside,
    ):
        send(inside, *commit(2, parent=1), requirements=[at(1)])
    assert snapshot_of(two_tables) == 2


def test_pyiceberg_writes_two_tables_in_one_unit(client: RestClient, served: Served) -> None:
    rows = pa.table({"id": pa.array([1, 2], pa.int64())})
    before = served.publications
    with served.store.transaction(branch="master") as unit:
        inside = RestCatalog("h", uri=served.url, warehouse=unit.context, token=served.token)
        for name in ("db.a", "db.b"):
            inside.create_table(name, rows.schema).append(rows)
        assert len(inside.load_table("db.b").scan().to_arrow()) == 2
    outside = RestCatalog("h", uri=served.url, warehouse="master", token=served.token)
    assert [len(outside.load_table(f"db.{n}").scan().to_arrow()) for n in "ab"] == [2, 2]
    commits = [p for p in _publications(served) if p > before]
    assert len(commits) == 3, "two empty roots, and one commit of both tables"


def test_snapshot_of_a_table_begins_with_its_columns_and_replaces_all_rows(
    client: RestClient, served: Served
) -> None:
    rows = pa.table({"id": pa.array([1, 2], pa.int64())})
    outside = RestCatalog("h", uri=served.url, warehouse="master", token=served.token)
    outside.create_table("db.a", rows.schema).append(rows)
    master = served.store.dataset("db.a").branch("master")
    with master.transaction("SNAPSHOT") as one:
        inside = RestCatalog("h", uri=served.url, warehouse=f"txn:{one.id}", token=served.token)
        inside.load_table("db.a").append(rows.slice(0, 1))
        assert len(outside.load_table("db.a").scan().to_arrow()) == 2
    assert outside.load_table("db.a").scan().to_arrow().to_pylist() == [{"id": 1}]
    assert master.history()[0].type is TransactionType.SNAPSHOT
    # A SNAPSHOT without writes empties the table, and does not drop it.
    with master.transaction("SNAPSHOT"):
        pass
    assert outside.load_table("db.a").scan().to_arrow().schema.names == ["id"]
    assert len(outside.load_table("db.a").scan().to_arrow()) == 0


def _publications(served: Served) -> list[int]:
    found = served.store.database.read(lambda c: list_publications(c, limit=50))
    return [publication.number for publication in found]
