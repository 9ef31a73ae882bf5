"""Lists, structs and maps by both engines of `load`: the same errors, the same rows."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.support.engines import Engines
from tests.support.rows import apply_text

pytestmark = pytest.mark.xdist_group("spark")

_TABLE = "shop.nested"
_KINDS = {
    "id": "long",
    "words": "list<string>",
    "numbers": "list<long>",
    "days": "list<date>",
    "moments": "list<timestamptz>",
    "counts": "map<string, long>",
    "times": "map<string, timestamp>",
    "deep": "map<string, list<struct<a: long, b: string>>>",
}
_NOON = datetime.datetime(2026, 11, 16, 12)


def _map(kind: pa.DataType, *entries: Any) -> pa.Array:
    return pa.array([*entries, None], pa.map_(pa.string(), kind))


_WRONG: list[tuple[str, pa.Array]] = [
    ("counts", _map(pa.bool_(), [("a", True)])),
    ("counts", _map(pa.string(), [("a", "0x1F")])),
    ("counts", _map(pa.timestamp("us"), [("a", _NOON)])),
    ("counts", _map(pa.float64(), [("a", 1.5)])),
    ("times", _map(pa.int64(), [("a", 5)])),
    ("times", _map(pa.timestamp("us"), [("a", 4 * 10**17)])),
    ("deep", _map(pa.list_(pa.struct([("a", pa.bool_())])), [("k", [{"a": True}])])),
    ("deep", _map(pa.list_(pa.struct([("c", pa.int64())])), [("k", [{"c": 1}])])),
    ("moments", pa.array([[5, 6], None])),
    ("days", pa.array([[10**7], None], pa.list_(pa.int32())).cast(pa.list_(pa.date32()))),
    ("days", pa.array([[_NOON], None])),
    ("numbers", pa.array([7, None])),
]
_GOOD: list[tuple[str, pa.Array]] = [
    ("words", pa.array([[7, None], None])),
    ("numbers", pa.array([["7", " -1 "], []])),
    ("numbers", pa.array([[7.0], [None]])),
    ("moments", pa.array([["2026-01-01T10:00:00+02:00", "2026-01-01 10:00:00"], None])),
    ("counts", _map(pa.string(), [("a", "7"), ("b", None)])),
    ("times", _map(pa.string(), [("a", "2026-01-01T10:00:00")])),
    (
        "deep",
        _map(
            pa.list_(pa.struct([("b", pa.int64()), ("a", pa.string())])),
            [("x", [{"a": "1", "b": 10}, None]), ("y", [])],
        ),
    ),
]


def test_load_engines_fit_what_is_within_as_what_stands_alone(engines: Engines) -> None:
    columns = ", ".join(f'{name} = "{kind}"' for name, kind in _KINDS.items())
    apply_text(engines.store, f'[dataset."{_TABLE}"]\ncolumns = {{{columns}}}\nkey = ["id"]')
    engines.on_both(_TABLE)
    for number, (name, values) in enumerate(_WRONG):
        file = engines.root / f"wrong-{number}.parquet"
        parquet.write_table(pa.table({"id": [1, 2], name: values}), file)
        said = engines.same({_TABLE: file}, "append")
        assert said.get("refused") == "invalid_rows", (name, values.type, said)
        assert [row["line"] for row in said["rows"]] == [1]
    for number, (name, values) in enumerate(_GOOD):
        file = engines.root / f"good-{number}.parquet"
        keys = [2 * number, 2 * number + 1]
        parquet.write_table(pa.table({"id": keys, name: values}), file)
        assert engines.same({_TABLE: file}, "append")[_TABLE]["inserted"] == 2, (name, values)
    assert len(engines.rows(_TABLE)) == 2 * len(_GOOD)
