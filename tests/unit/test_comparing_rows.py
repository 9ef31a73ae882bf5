"""Differences of rows, against a plain model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headgate.tables.diff import ChangedRow, RowChanges
from headgate.tables.row_diff import ReadSide, compare_rows

Rows = list[dict[str, Any]]

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("score", pa.float64())])
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.none() | st.integers(0, 5),
            "name": st.none() | st.sampled_from(["", "~", "a", "1:a", "a\x1f1:b"]),
            "score": st.none() | st.sampled_from([0.0, -0.0, 1.5, float("inf")]),
        }
    ),
    max_size=12,
)


def side(rows: Rows, key: Sequence[int] = (), schema: pa.Schema = SCHEMA) -> ReadSide:
    """Rows in batches of a few, as from a file."""
    found = pa.Table.from_pylist(rows, schema)
    return ReadSide(
        schema=schema,
        batches=found.to_batches(max_chunksize=3),
        row_count=len(rows),
        size_bytes=0,
        columns=schema.names,
        types=schema.types,
        key=key,
    )


def compare(before: Rows, after: Rows, key: Sequence[int] = (), **more: Any) -> RowChanges:
    more = {"samples": 100, "on_large": lambda rows, parts: None, **more}
    return compare_rows(side(before, key), side(after, key), **more)


def counted(rows: Rows) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row[name] for name in SCHEMA.names) for row in rows)


@given(ROWS, ROWS)
def test_rows_without_a_key_differ_as_multisets(before: Rows, after: Rows) -> None:
    found = compare(before, after)
    gone, come = counted(before) - counted(after), counted(after) - counted(before)
    assert (found.removed, found.added, found.changed) == (gone.total(), come.total(), 0)
    assert counted(found.added_rows) == counted([*map(_plain, _rows(come))])


@given(ROWS, ROWS)
def test_rows_with_a_key_are_paired_by_it(before: Rows, after: Rows) -> None:
    found = compare(before, after, key=[0])
    gone, come = counted(before) - counted(after), counted(after) - counted(before)
    keys_gone, keys_come = _keys(gone), _keys(come)
    pairs = (keys_gone & keys_come).total()
    assert found.changed == pairs
    assert found.removed == gone.total() - pairs
    assert found.added == come.total() - pairs


@given(ROWS, ROWS, st.sampled_from([(), (0,)]))
def test_rows_in_parts_on_disk_differ_as_in_memory(
    before: Rows, after: Rows, key: tuple[int, ...]
) -> None:
    whole, parted = compare(before, after, key), compare(before, after, key, part_rows=2)
    assert (whole.added, whole.removed, whole.changed) == (
        parted.added,
        parted.removed,
        parted.changed,
    )
    assert counted(whole.removed_rows) == counted(parted.removed_rows)


def test_changed_row_shows_only_what_differs() -> None:
    found = compare(
        [{"id": 1, "name": "a", "score": 1.0}], [{"id": 1, "name": "b", "score": 1.0}], key=[0]
    )
    assert found.changed_rows == [
        ChangedRow(key={"id": 1}, before={"name": "a"}, after={"name": "b"})
    ]


def test_samples_are_as_many_as_requested() -> None:
    before = [{"id": at, "name": "a", "score": None} for at in range(9)]
    after = [{"id": at, "name": "b", "score": None} for at in range(4, 20)]
    found = compare(before, after, key=[0], samples=2, part_rows=5)
    assert (found.removed, found.changed, found.added) == (4, 5, 11)
    shown = (found.removed_rows, found.changed_rows, found.added_rows)
    assert [len(rows) for rows in shown] == [2, 2, 2]
    assert compare(before, after, samples=0).added_rows == []


def test_parts_are_announced_only_where_there_are_several() -> None:
    announced: list[tuple[int, int]] = []
    rows = [{"id": at, "name": None, "score": None} for at in range(4)]
    compare(rows, rows, on_large=lambda rows, parts: announced.append((rows, parts)))
    compare(rows, rows, on_large=lambda rows, parts: announced.append((rows, parts)), part_rows=4)
    assert announced == [(8, 3)]


def test_rows_of_a_wider_type_are_compared_as_that() -> None:
    narrow, wide = pa.schema([("x", pa.float32())]), pa.schema([("x", pa.float64())])
    before = ReadSide(
        schema=narrow,
        batches=pa.table({"x": [0.1]}, narrow).to_batches(),
        row_count=1,
        size_bytes=0,
        columns=["x"],
        types=[pa.float64()],
        key=(),
    )
    after = side([{"x": float(pa.scalar(0.1, pa.float32()).as_py())}], schema=wide)
    assert not compare_rows(before, after, samples=1, on_large=lambda rows, parts: None)


def _rows(found: Counter[tuple[Any, ...]]) -> Rows:
    return [dict(zip(SCHEMA.names, row, strict=True)) for row in found.elements()]


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """A row with JSON values."""
    score = row["score"]
    return row | {"score": "Infinity" if score == float("inf") else score}


def _keys(found: Counter[tuple[Any, ...]]) -> Counter[Any]:
    return Counter(row[0] for row in found.elements())
