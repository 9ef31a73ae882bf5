"""Differences by metadata alone: counts and appends, without reading a file."""

from __future__ import annotations

import sys
from typing import Any

import orjson
import pytest

from headgate.errors import MissingExtra
from headgate.tables.diff import Basis, DiffOptions, TableDifference, compare_tables
from headgate.tables.inspect import find_row_count, partitioning_of, read_rows, recorded_row_count
from headgate.tables.schemas import type_text
from headgate.tables.versions import StoredVersion
from tests.support.metadata import change, commit, table

OUTLINE = DiffOptions(options={}, reads_files=False)
NO_DELETES = {"total-delete-files": "0"}


def version(metadata: dict[str, Any]) -> StoredVersion:
    return StoredVersion(location="file:///none", content=b"", metadata=metadata)


def grown(
    base: dict[str, Any], id_: int, added: int | None, total: int, op: str = "append"
) -> dict[str, Any]:
    """The table after one more snapshot."""
    summary = {"total-records": str(total), **NO_DELETES, "added-data-files": "1"}
    if added is not None:
        summary["added-records"] = str(added)
    known = base.get("current-snapshot-id")
    return change(base, *commit(id_, parent=known, op=op, summary=summary))


def outline(before: dict[str, Any] | None, after: dict[str, Any] | None) -> TableDifference:
    sides = [version(metadata) if metadata else None for metadata in (before, after)]
    return compare_tables(sides[0], sides[1], OUTLINE)


def test_appends_are_added_up_over_snapshots_and_rewrites() -> None:
    one = grown(table(), 1, 5, 5)
    later = grown(grown(grown(one, 2, 3, 8), 3, 8, 8, op="replace"), 4, 1, 9)
    found = outline(one, later)
    assert (found.basis, found.before_count, found.after_count) == (Basis.METADATA, 5, 9)
    assert found.rows is not None and (found.rows.added, found.rows.removed) == (4, 0)
    back = outline(later, one)
    assert back.rows is not None and (back.rows.added, back.rows.removed) == (0, 4)


def test_rewrite_alone_changes_no_rows() -> None:
    one = grown(table(), 1, 5, 5)
    assert outline(one, grown(one, 2, 5, 5, op="replace")).is_identical


@pytest.mark.parametrize("op", ["overwrite", "delete"])
def test_other_operations_are_not_known_by_metadata(op: str) -> None:
    one = grown(table(), 1, 5, 5)
    found = outline(one, grown(grown(one, 2, 1, 6), 3, 1, 4, op=op))
    assert found.rows is None and not found.is_identical
    assert (found.before_count, found.after_count) == (5, 4)


def test_branches_that_both_appended_are_not_known_by_metadata() -> None:
    one = grown(table(), 1, 5, 5)
    assert outline(grown(one, 2, 1, 6), grown(one, 3, 1, 6)).rows is None


def test_append_whose_writer_did_not_count_is_not_known_by_metadata() -> None:
    one = grown(table(), 1, 5, 5)
    assert outline(one, grown(one, 2, None, 6)).rows is None


def test_table_against_none_is_all_added_or_all_removed() -> None:
    one = grown(table(), 1, 5, 5)
    come, gone = outline(None, one), outline(one, None)
    assert come.rows is not None and (come.rows.added, come.before_count) == (5, 0)
    assert gone.rows is not None and (gone.rows.removed, gone.after_count) == (5, 0)
    assert outline(None, None).is_identical


@pytest.mark.parametrize(
    ("summary", "count"),
    [
        ({"total-records": "7", **NO_DELETES}, 7),
        ({"total-records": "7"}, None),
        ({"total-records": "7", "total-delete-files": "1"}, None),
        ({"total-records": "7", **NO_DELETES, "total-equality-deletes": "2"}, None),
        (NO_DELETES, None),
    ],
)
def test_row_count_is_recorded_only_where_there_are_no_deletes(
    summary: dict[str, str], count: int | None
) -> None:
    made = change(table(), *commit(1, summary=summary))
    assert recorded_row_count(made) == count
    assert recorded_row_count(table()) == 0


def test_reading_rows_without_the_extra_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "headgate.tables.scan", None)
    made = version(change(table(), *commit(1)))
    with pytest.raises(MissingExtra, match=r"headgate\[arrow\]"):
        read_rows(made, limit=1, options={})
    assert find_row_count(made, options={}) is None
    assert read_rows(made, limit=0, options={}) == []


def test_comparing_rows_without_the_extra_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "headgate.tables.row_diff", None)
    one = grown(table(), 1, 5, 5)
    sides = version(one), version(grown(one, 2, 1, 4, op="delete"))
    with pytest.raises(MissingExtra):
        compare_tables(*sides, DiffOptions(options={}))


def test_types_and_partitions_are_written_as_sql_writes_them() -> None:
    struct = orjson.loads(
        b'{"type":"struct","fields":[{"id":2,"name":"a","type":{"type":"map","key":"string",'
        b'"value":{"type":"list","element":"int"}}}]}'
    )
    assert type_text(struct) == "struct<a: map<string, list<int>>>"
    fields = [
        {"source-id": 1, "transform": "bucket[16]", "name": "id_bucket"},
        {"source-id": 2, "transform": "identity", "name": "day"},
        {"source-id": 2, "transform": "month", "name": "day_month"},
    ]
    request: dict[str, Any] = {"partition-spec": {"fields": fields}}
    made = table(**request)
    assert partitioning_of(made) == ["bucket(16, id)", "day", "month(day)"]
