"""`load`: values inside lists, structs and maps are converted like top-level values."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headgate.errors import InvalidRows
from headgate.store.embedded import Store
from tests.support.rows import rows_of, table_store

_TABLE = "shop.nested"
_KINDS = {
    "n": "long",
    "flag": "boolean",
    "at": "timestamp",
    "words": "list<string>",
    "flags": "list<boolean>",
    "numbers": "list<long>",
    "prices": "list<decimal(9,2)>",
    "moments": "list<timestamptz>",
    "hours": "list<time>",
    "days": "list<date>",
    "counts": "map<string, long>",
    "times": "map<string, timestamp>",
    "deep": "map<string, list<struct<a: long, b: string>>>",
    "place": "struct<x: long, tags: list<long>>",
}
_NOON = datetime.datetime(2026, 11, 16, 12)
_YEAR_14645 = pa.array([[4 * 10**17]], pa.list_(pa.timestamp("us")))


@pytest.fixture
def store(made_sqlite_url: str, tmp_path: Path) -> Iterator[Store]:
    with table_store(made_sqlite_url, tmp_path, _TABLE, _KINDS) as opened:
        yield opened


def _column(store: Store, name: str, values: pa.Array | pa.ChunkedArray) -> list[Any]:
    ids = list(range(len(values)))
    store.load("master", {_TABLE: pa.table({"id": ids, name: values})})
    rows = sorted(rows_of(store, _TABLE), key=lambda row: row["id"])
    return [row[name] for row in rows]


def _map(kind: pa.DataType, *entries: Any) -> pa.Array:
    return pa.array(entries, pa.map_(pa.string(), kind))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("counts", _map(pa.bool_(), [("a", True)])),
        ("counts", _map(pa.string(), [("a", "0x1F")])),
        ("counts", _map(pa.timestamp("us"), [("a", _NOON)])),
        ("counts", pa.array([{"a": 1}])),
        ("counts", pa.array([[1]])),
        ("times", _map(pa.int64(), [("a", 5)])),
        ("deep", _map(pa.list_(pa.struct([("a", pa.bool_())])), [("k", [{"a": True}])])),
        ("deep", _map(pa.list_(pa.struct([("c", pa.int64())])), [("k", [{"c": 1}])])),
        ("moments", pa.array([[5, 6]], pa.list_(pa.int64(), 2))),
        ("moments", pa.array([[5, 6]], pa.list_view(pa.int64()))),
        ("moments", _YEAR_14645),
        ("numbers", pa.array([[True]])),
        ("numbers", pa.array([7])),
        ("numbers", pa.array(["[7]"])),
        ("place", pa.array([{"x": 1, "tags": [True]}])),
        ("place", pa.array([{"x": 1, "z": 2}])),
        ("place", pa.array([[1]])),
        ("at", pa.array([5]).dictionary_encode()),
        ("n", pa.array([True]).dictionary_encode()),
        ("n", pa.array(["0x1F"]).dictionary_encode()),
        ("n", pa.array(["0x1F"], pa.string_view())),
        ("n", pc.run_end_encode(pa.array([True]))),
    ],
    ids=lambda value: str(getattr(value, "type", value)),
)
def test_value_within_that_would_mean_something_else_is_refused(
    store: Store, name: str, values: pa.Array
) -> None:
    with pytest.raises(InvalidRows, match=f"{name} = .* is not of type ") as refused:
        _column(store, name, pa.chunked_array([pa.nulls(2, values.type), values]))
    assert [row["line"] for row in refused.value.facts["rows"]] == [3]
    assert rows_of(store, _TABLE) == []


@pytest.mark.parametrize(
    ("name", "values", "shown"),
    [
        ("words", pa.array([[1.0, 2.5], None, []]), [["1.0", "2.5"], None, []]),
        ("words", pa.array([["a", None]]), [["a", None]]),
        ("flags", pa.array([["yes", "no"], [None]]), [[True, False], [None]]),
        ("numbers", pa.array([[1, 2], None], pa.list_(pa.int16(), 2)), [[1, 2], None]),
        ("numbers", pa.array([[3], [1, 2]], pa.list_view(pa.int32())), [[3], [1, 2]]),
        ("numbers", pa.array([["7"]], pa.large_list(pa.string_view())), [[7]]),
        ("prices", pa.array([[0.1, 3], [None]]), [["0.10", "3.00"], [None]]),
        (
            "moments",
            pa.array([["2026-01-01T10:00:00+02:00", "2026-01-01 10:00:00"]]),
            [["2026-01-01T08:00:00+00:00", "2026-01-01T10:00:00+00:00"]],
        ),
        ("hours", pa.array([["07:30"]]), [["07:30:00"]]),
        ("days", pa.array([[_NOON.replace(hour=0)]]), [["2026-11-16"]]),
        ("counts", _map(pa.string(), [("a", "7"), ("b", None)], None, []), None),
        ("counts", _map(pa.float64(), [("a", 7.0)]), [{"a": 7}]),
        ("place", pa.array([{"tags": [1.0]}, None]), [{"x": None, "tags": [1]}, None]),
        ("n", pa.array(["7", None, "7"]).dictionary_encode(), [7, None, 7]),
        ("flag", pa.array(["yes"], pa.string_view()), [True]),
        ("n", pc.run_end_encode(pa.array([7, 7])), [7, 7]),
    ],
    ids=lambda value: str(getattr(value, "type", "")),
)
def test_value_within_that_means_the_same_is_taken(
    store: Store, name: str, values: pa.Array, shown: Any
) -> None:
    expected = [{"a": 7, "b": None}, None, {}] if shown is None else shown
    assert _column(store, name, values) == expected


def test_map_of_lists_of_structs_keeps_every_part_in_its_place(store: Store) -> None:
    kind = pa.list_(pa.struct([("b", pa.int64()), ("a", pa.string())]))
    whole = _map(
        kind,
        [("x", [{"a": "1", "b": 10}, None]), ("y", [])],
        None,
        [("z", None)],
        [("w", [{"a": None, "b": None}])],
    )
    expected = [
        {"x": [{"a": 1, "b": "10"}, None], "y": []},
        None,
        {"z": None},
        {"w": [{"a": None, "b": None}]},
    ]
    # Includes a slice of a longer column, which begins in the middle of its values.
    assert _column(store, "deep", whole) == expected
    store.load("master", {_TABLE: pa.table({"id": [0, 1, 2], "deep": whole[1:]})}, mode="overwrite")
    rows = sorted(rows_of(store, _TABLE), key=lambda row: row["id"])
    assert [row["deep"] for row in rows] == expected[1:]
