"""PyIceberg as a client of the endpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import ForbiddenError, NoSuchTableError, ValidationException
from pyiceberg.types import LongType, StringType

from headgate.model.nouns import TransactionType
from tests.support.iceberg import Served

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "day": ["mon", "tue", "wed"]})


@pytest.fixture
def client(served: Served) -> RestCatalog:
    catalog = connect(served, "master")
    catalog.create_namespace("db")
    return catalog


def connect(served: Served, context: str) -> RestCatalog:
    return RestCatalog("headgate", uri=served.url, warehouse=context, token=served.token)


def ids(table: Any) -> list[int]:
    return sorted(table.scan().to_arrow()["id"].to_pylist())


def test_rows_appended_overwritten_and_deleted_are_read_back(
    client: RestCatalog, served: Served
) -> None:
    table = client.create_table("db.t", ROWS.schema)
    table.append(ROWS)
    assert ids(client.load_table("db.t")) == [1, 2, 3]
    table.overwrite(ROWS.slice(0, 1))
    assert ids(client.load_table("db.t")) == [1]
    table.append(ROWS.slice(1))
    table.delete("id = 3")
    assert ids(client.load_table("db.t")) == [1, 2]
    assert served.history()[1].type is TransactionType.APPEND


def test_column_added_by_a_client_is_there_for_the_next(
    client: RestCatalog, served: Served
) -> None:
    table = client.create_table("db.t", ROWS.schema)
    table.append(ROWS)
    with table.update_schema() as update:
        update.add_column("note", StringType())
    found = connect(served, "feature>master").load_table("db.t")
    assert found.schema().column_names == ["id", "day", "note"]
    assert found.schema().find_field("note").field_id == 3
    assert ids(found) == [1, 2, 3]


def test_rows_upserted_by_key_are_updated_or_added(client: RestCatalog, served: Served) -> None:
    table = client.create_table("db.t", ROWS.schema)
    table.append(ROWS)
    changed = pa.table({"id": pa.array([2, 4], pa.int64()), "day": ["TUE", "thu"]})
    result = table.upsert(changed, join_cols=["id"])
    assert (result.rows_updated, result.rows_inserted) == (1, 1)
    found = client.load_table("db.t").scan().to_arrow().sort_by("id")
    assert found["day"].to_pylist() == ["mon", "TUE", "wed", "thu"]
    assert ids(connect(served, "feature>master").load_table("db.t")) == [1, 2, 3, 4]


def test_overwrite_by_filter_and_of_partitions_leaves_the_rest(client: RestCatalog) -> None:
    table = client.create_table("db.t", ROWS.schema)
    with table.update_spec() as update:
        update.add_identity("day")
    table.append(ROWS)
    table.overwrite(
        pa.table({"id": pa.array([20], pa.int64()), "day": ["tue"]}), overwrite_filter="day = 'tue'"
    )
    assert ids(client.load_table("db.t")) == [1, 3, 20]
    table.dynamic_partition_overwrite(pa.table({"id": pa.array([30], pa.int64()), "day": ["wed"]}))
    assert ids(client.load_table("db.t")) == [1, 20, 30]


def test_columns_renamed_widened_and_dropped_by_a_client_stay_on_its_branch(
    client: RestCatalog, served: Served
) -> None:
    narrow = pa.table({"id": pa.array([1], pa.int32()), "day": ["mon"], "gone": ["x"]})
    client.create_table("db.t", narrow.schema).append(narrow)
    feature = connect(served, "feature>master").load_table("db.t")
    with feature.update_schema(allow_incompatible_changes=True) as update:
        update.rename_column("day", "weekday")
        update.update_column("id", LongType())
        update.delete_column("gone")
    feature.append(pa.table({"id": pa.array([2**40], pa.int64()), "weekday": ["tue"]}))
    found = connect(served, "feature>master").load_table("db.t").scan().to_arrow().sort_by("id")
    assert found.to_pylist() == [
        {"id": 1, "weekday": "mon"},
        {"id": 2**40, "weekday": "tue"},
    ]
    assert client.load_table("db.t").schema().column_names == ["id", "day", "gone"]


def test_earlier_snapshot_and_tag_are_read_by_a_client(client: RestCatalog) -> None:
    table = client.create_table("db.t", ROWS.schema)
    table.append(ROWS.slice(0, 1))
    first = table.current_snapshot()
    assert first is not None
    table.manage_snapshots().create_tag(first.snapshot_id, "before").commit()
    table.append(ROWS.slice(1))
    found = client.load_table("db.t")
    assert found.scan(snapshot_id=first.snapshot_id).to_arrow().num_rows == 1
    assert found.refs()["before"].snapshot_id == first.snapshot_id
    assert ids(found) == [1, 2, 3]


def test_snapshot_is_not_removed_by_a_client_who_is_told_of_cleanup(client: RestCatalog) -> None:
    table = client.create_table("db.t", ROWS.schema)
    table.append(ROWS.slice(0, 1))
    first = table.current_snapshot()
    assert first is not None
    table.append(ROWS.slice(1))
    with pytest.raises(ForbiddenError, match="headgate cleanup"):
        table.maintenance.expire_snapshots().by_id(first.snapshot_id).commit()
    assert client.load_table("db.t").scan(snapshot_id=first.snapshot_id).count() == 1


def test_append_on_a_branch_leaves_its_fallback_alone(client: RestCatalog, served: Served) -> None:
    client.create_table("db.t", ROWS.schema).append(ROWS)
    feature = connect(served, "feature>master")
    feature.load_table("db.t").append(ROWS.slice(0, 1))
    assert ids(feature.load_table("db.t")) == [1, 1, 2, 3]
    assert ids(client.load_table("db.t")) == [1, 2, 3]


def test_second_of_two_appends_on_one_view_is_told_and_both_are_kept(
    client: RestCatalog, served: Served
) -> None:
    client.create_table("db.t", ROWS.schema)
    first, second = client.load_table("db.t"), connect(served, "master").load_table("db.t")
    first.append(ROWS)
    second.append(ROWS)
    assert ids(client.load_table("db.t")) == [1, 1, 2, 2, 3, 3]
    assert served.publications == 3


def test_overwrite_of_rows_never_seen_is_refused(client: RestCatalog, served: Served) -> None:
    client.create_table("db.t", ROWS.schema).append(ROWS)
    first, second = client.load_table("db.t"), connect(served, "master").load_table("db.t")
    first.append(ROWS.slice(0, 1))
    with pytest.raises(ValidationException):
        second.overwrite(ROWS.slice(2))
    assert ids(client.load_table("db.t")) == [1, 1, 2, 3]


def test_staged_creation_is_seen_whole_or_not_at_all(client: RestCatalog) -> None:
    with client.create_table_transaction("db.t", ROWS.schema) as staged:
        staged.append(ROWS)
        with pytest.raises(NoSuchTableError):
            client.load_table("db.t")
    assert ids(client.load_table("db.t")) == [1, 2, 3]


def test_purge_drops_the_table_and_leaves_every_file(client: RestCatalog, tmp_path: Path) -> None:
    client.create_table("db.t", ROWS.schema).append(ROWS)
    files = {path for path in (tmp_path / "warehouse").rglob("*") if path.is_file()}
    client.purge_table("db.t")
    assert not client.table_exists("db.t")
    assert files <= set((tmp_path / "warehouse").rglob("*"))
