"""Appends that were prepared on an older version of a table, by clients that do not retry."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.types import StringType

from headgate.catalog.publish import publish
from headgate.catalog.records import load_transaction
from headgate.catalog.transactions import add_on_branch
from headgate.model.changes import Caller, PublishRequest
from headgate.model.nouns import PublicationKind, TransactionType
from tests.support.iceberg import RestClient, Served, at, create, error, load, send, table_change
from tests.support.metadata import commit

_NO_RETRY = {"commit.retry.num-retries": "0"}
_MERGING = {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"}


@pytest.fixture
def catalog(served: Served) -> RestCatalog:
    found = connect(served)
    found.create_namespace("db")
    return found


def connect(served: Served, context: str = "master") -> RestCatalog:
    return RestCatalog("headgate", uri=served.url, warehouse=context, token=served.token)


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def new_table(catalog: RestCatalog, *ids: int, **properties: str) -> Any:
    table = catalog.create_table("db.t", rows(1).schema, properties=_NO_RETRY | properties)
    if ids:
        table.append(rows(*ids))
    return table


def stale(served: Served, context: str = "master") -> Any:
    """Return the table as another client has loaded it."""
    return connect(served, context).load_table("db.t")


def ids(served: Served, context: str = "master") -> list[int]:
    return sorted(stale(served, context).scan().to_arrow()["id"].to_pylist())


def test_append_on_an_older_snapshot_lands_on_the_newest_with_numbers_of_its_own(
    catalog: RestCatalog, served: Served
) -> None:
    new_table(catalog, 1)
    first, second = stale(served), stale(served)
    first.append(rows(2))
    second.append(rows(3, 4))
    table = stale(served)
    assert ids(served) == [1, 2, 3, 4]
    snapshots = table.metadata.snapshots
    assert [one.parent_snapshot_id for one in snapshots] == [
        None,
        *(one.snapshot_id for one in snapshots[:-1]),
    ]
    assert [one.sequence_number for one in snapshots] == [1, 2, 3]
    assert second.metadata.current_snapshot_id == snapshots[-1].snapshot_id
    newest = snapshots[-1].summary
    assert (newest["total-records"], newest["total-data-files"]) == ("4", "3")
    assert newest["added-records"] == "2"
    files = table.inspect.entries().to_pylist()
    assert sorted(entry["sequence_number"] for entry in files) == [1, 2, 3]
    assert served.publications == 4


def test_append_of_a_fork_lands_on_the_branch_that_another_append_created(
    catalog: RestCatalog, served: Served
) -> None:
    new_table(catalog, 1)
    first, second = stale(served, "feature>master"), stale(served, "feature>master")
    first.append(rows(2))
    second.append(rows(3))
    assert ids(served, "feature>master") == [1, 2, 3]
    assert ids(served) == [1]


def test_merging_append_brings_back_no_row_that_was_deleted_meanwhile(
    catalog: RestCatalog, served: Served
) -> None:
    new_table(catalog, 1, **_MERGING).append(rows(2))
    deletes, appends = stale(served), stale(served)
    deletes.delete("id = 1")
    # Its merged manifest lists the file of the deleted row.
    appends.append(rows(3))
    assert ids(served) == [2, 3]
    newest = stale(served).current_snapshot()
    assert newest.summary["total-records"] == "2"
    merged = [
        one for one in newest.manifests(appends.io) if one.added_snapshot_id == newest.snapshot_id
    ]
    assert [(one.added_files_count, one.existing_files_count) for one in merged] == [(1, 0)]


def test_transaction_of_two_appends_is_moved_as_a_whole(
    catalog: RestCatalog, served: Served
) -> None:
    new_table(catalog, 1)
    first, second = stale(served), stale(served)
    first.append(rows(2))
    with second.transaction() as both:
        both.append(rows(3))
        both.append(rows(4))
    assert ids(served) == [1, 2, 3, 4]
    assert [one.sequence_number for one in stale(served).metadata.snapshots] == [1, 2, 3, 4]


def test_append_after_a_column_was_added_has_nulls_in_it(
    catalog: RestCatalog, served: Served
) -> None:
    table = new_table(catalog, 1)
    older = stale(served)
    with table.update_schema() as change:
        change.add_column("day", StringType())
    table.append(pa.table({"id": pa.array([2], pa.int64()), "day": ["mon"]}))
    older.append(rows(3))
    found = stale(served).scan().to_arrow().sort_by("id").to_pylist()
    assert [row["day"] for row in found] == [None, "mon", None]


def test_append_prepared_on_rows_that_a_reset_removed_is_a_conflict(
    catalog: RestCatalog, served: Served
) -> None:
    table = new_table(catalog, 1)
    kept = served.history()[-1].id
    table.append(rows(2))
    older = stale(served)
    served.store.dataset("db.t").branch("master").reset(to=kept)
    # Moved on since, so the version that the client read is not the newest either.
    stale(served).append(rows(3))
    with pytest.raises(CommitFailedException, match="Requirement failed"):
        older.append(rows(4))
    assert ids(served) == [1, 3]


def test_append_prepared_on_rows_that_an_adopted_version_does_not_have_is_a_conflict(
    catalog: RestCatalog, served: Served
) -> None:
    """A build publishes the version of another branch, which shares only older snapshots."""
    new_table(catalog, 1)
    served.store.dataset("db.t").branch("feature").create(parent="master")
    stale(served, "feature").append(rows(2))
    stale(served).append(rows(3))
    older = stale(served)
    show_version_of(served, "feature")
    stale(served).append(rows(4))
    with pytest.raises(CommitFailedException, match="Requirement failed"):
        older.append(rows(5))
    assert ids(served) == [1, 2, 4]


def test_append_prepared_on_files_that_a_merge_by_version_replaced_is_a_conflict(
    catalog: RestCatalog, served: Served
) -> None:
    """The target has the rows of the fork in other files, so the merge takes the version whole."""
    new_table(catalog, 1).append(rows(2))
    served.store.dataset("db.t").branch("feature").create(parent="master")
    stale(served, "feature").append(rows(3))
    assert served.store.rows.optimize("db.t", branch="master").publication is not None
    older = stale(served)
    served.store.merge("feature", into="master")
    stale(served).append(rows(4))
    with pytest.raises(CommitFailedException, match="Requirement failed"):
        older.append(rows(5))
    assert ids(served) == [1, 2, 3, 4]


def show_version_of(served: Served, source: str) -> None:
    """Commit the version that another branch shows, as a build that adopts it does."""
    database = served.store.database
    view = served.store.dataset("db.t").branch(source).load().view
    assert view is not None
    version = database.read(lambda c: load_transaction(c, view)).version
    branch = served.store.dataset("db.t").branch("master").load()
    changes = add_on_branch(
        "master",
        branch.dataset_id,
        branch=branch,
        source=None,
        type=TransactionType.UPDATE,
        version=version,
    )
    caller = Caller(actor="ana")
    publish(
        database,
        PublishRequest(caller=caller, kind=PublicationKind.COMMIT, changes=tuple(changes)),
    )


def test_append_to_a_table_that_was_replaced_is_a_conflict(
    catalog: RestCatalog, served: Served
) -> None:
    new_table(catalog, 1)
    older = stale(served)
    catalog.drop_table("db.t")
    new_table(catalog, 2).append(rows(3))
    with pytest.raises(CommitFailedException):
        older.append(rows(4))
    assert ids(served) == [2, 3]


def test_delete_prepared_on_an_older_snapshot_is_a_conflict(
    catalog: RestCatalog, served: Served
) -> None:
    new_table(catalog, 1, 2)
    first, second = stale(served), stale(served)
    first.append(rows(3))
    with pytest.raises(CommitFailedException):
        second.delete("id = 1")
    assert ids(served) == [1, 2, 3]


def test_append_in_a_unit_on_an_older_working_version_is_a_conflict(
    catalog: RestCatalog, served: Served
) -> None:
    new_table(catalog, 1)
    with served.store.transaction(branch="master") as unit:
        first, second = (stale(served, f"txn:{unit.id}") for _ in range(2))
        first.append(rows(2))
        with pytest.raises(CommitFailedException):
            second.append(rows(3))
    assert ids(served) == [1, 2]


def test_append_while_a_transaction_is_open_is_a_conflict_at_once(
    catalog: RestCatalog, served: Served
) -> None:
    new_table(catalog, 1)
    older = stale(served)
    stale(served).append(rows(2))
    served.store.dataset("db.t").branch("master").transaction("APPEND")
    with pytest.raises(CommitFailedException, match="OPEN"):
        older.append(rows(3))


def test_moved_append_sent_again_lands_once(client: RestClient, served: Served) -> None:
    create(client)
    assert send(client, *commit(1), requirements=[at(None)]).status_code == 200
    for _ in range(2):
        assert send(client, *commit(2), requirements=[at(None)]).status_code == 200
    found = load(client)["metadata"]["snapshots"]
    assert [one["snapshot-id"] for one in found] == [1, 2]
    assert found[1]["parent-snapshot-id"] == 1


@pytest.mark.parametrize(("operation", "status"), [("append", 204), ("delete", 409)])
def test_commit_to_two_tables_is_moved_only_if_both_append(
    two_tables: RestClient, served: Served, operation: str, status: int
) -> None:
    client = two_tables
    assert send(client, *commit(2, parent=1), name="u").status_code == 200
    before = served.publications
    changes = [
        table_change("t", *commit(3, parent=1, op=operation), requirements=[at(1)]),
        table_change("u", *commit(4, parent=1), requirements=[at(1)]),
    ]
    response = client.call("POST", "transactions/commit", {"table-changes": changes})
    assert response.status_code == status, response.text
    assert served.publications == before + (status == 204)


def test_unknown_parent_is_a_conflict_and_not_moved(client: RestClient) -> None:
    create(client)
    send(client, *commit(1), requirements=[at(None)]).raise_for_status()
    response = send(client, *commit(2, parent=99), requirements=[at(99)])
    assert error(response) == (409, "CommitFailedException")


def test_sixteen_appends_on_one_snapshot_all_land_without_a_conflict(
    catalog: RestCatalog, served: Served
) -> None:
    new_table(catalog, 0)
    tables = [stale(served) for _ in range(16)]
    together = Barrier(len(tables))

    def append(number: int) -> None:
        together.wait()
        tables[number].append(rows(number + 1))

    with ThreadPoolExecutor(len(tables)) as pool:
        list(pool.map(append, range(len(tables))))
    assert ids(served) == list(range(17))
