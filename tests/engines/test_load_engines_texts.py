"""Values in text columns, and types that Spark does not have, by both engines of `load`."""

from __future__ import annotations

import datetime
import uuid
from decimal import Decimal

import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.support.engines import Engines
from tests.support.rows import apply_text

pytestmark = pytest.mark.xdist_group("spark")

_TABLE = "shop.texts"
_NOON = datetime.datetime(2026, 11, 16, 12)
_TIMES = [_NOON, _NOON.replace(microsecond=500000), _NOON.replace(second=5)]
_COLUMNS = {
    "double": pa.array([1e20, 1.0, 0.1, 1e-5, 123456789.0, 0.001, 1e7, float("nan"), -0.0]),
    "float": pa.array([0.1, 1e10, 16777216.0, 1e-4], pa.float32()),
    "local": pa.array(_TIMES),
    "moment": pa.array(_TIMES, pa.timestamp("us", tz="UTC")),
    "decimal": pa.array([Decimal("1.50"), Decimal("0.00")]),
    "boolean": pa.array([True, False]),
    "date": pa.array([_NOON.date()]),
    "binary": pa.array(["é".encode()]),
    "long": pa.array([1, -5]),
    "hour": pa.array([datetime.time(7, 30)]),
    "nanoseconds": pa.array([_NOON], pa.timestamp("ns")),
    "half": pa.array([1.5], pa.float16()),
}


def test_load_engines_write_values_as_the_same_text(engines: Engines) -> None:
    columns = 'id = "long", text = "string", texts = "list<string>"'
    apply_text(engines.store, f'[dataset."{_TABLE}"]\ncolumns = {{{columns}}}\nkey = ["id"]')
    engines.on_both(_TABLE)
    for name, values in _COLUMNS.items():
        file = engines.root / f"{name}.parquet"
        lists = pa.array([[value] for value in values.to_pylist()], pa.list_(values.type))
        rows = {"id": list(range(len(values))), "text": values, "texts": lists}
        parquet.write_table(pa.table(rows), file)
        said = engines.same({_TABLE: file}, "overwrite")
        assert said[_TABLE]["inserted"] == len(values), name
        assert all(row["texts"] == [row["text"]] for row in engines.rows(_TABLE)), name
    lines = engines.root / "rows.jsonl"
    numbers = ["1e20", "0.00001", "12345678.9", "1.5"]
    lines.write_text("".join(f'{{"id": {n}, "text": {text}}}\n' for n, text in enumerate(numbers)))
    engines.same({_TABLE: lines}, "overwrite")


def test_load_engines_take_moments_of_data_frames_and_refuse_alike(engines: Engines) -> None:
    columns = (
        'id = "long", at = "timestamp", ats = "list<timestamptz>", xs = "list<float>", '
        'text = "string", raw = "binary"'
    )
    apply_text(engines.store, f'[dataset."shop.frames"]\ncolumns = {{{columns}}}\nkey = ["id"]')
    engines.on_both("shop.frames")
    nanoseconds = pa.timestamp("ns")
    rows = {
        "id": [1, 2],
        "at": pa.array([_NOON, None], nanoseconds),
        "ats": pa.array([[_NOON], None], pa.list_(nanoseconds)),
        "xs": pa.array([[1.5, 2.5], None], pa.list_(pa.float32(), 2)),
        "raw": pa.array([" a ", None]),
    }
    parquet.write_table(pa.table(rows), engines.root / "frame.parquet")
    assert engines.same({"shop.frames": engines.root / "frame.parquet"}, "append") != {}
    assert engines.rows("shop.frames")[0]["at"] == "2026-11-16T12:00:00"
    in_memory = pa.table({**rows, "id": [3, 4], "raw": pa.nulls(2)})
    assert engines.same({"shop.frames": in_memory}, "append")["shop.frames"]["inserted"] == 2
    wrong = {
        "at": pa.array([None, 1], pa.int64()).cast(nanoseconds),
        "text": pa.array([None, b"\xff"]),
        "raw": pa.array([None, 7]),
    }
    lists = {"text": pa.array([None, [1]]), "raw": pa.array([None, {"a": 1}])}
    for number, (name, values) in enumerate([*wrong.items(), *lists.items()]):
        file = engines.root / f"{number}.parquet"
        parquet.write_table(pa.table({"id": [5, 6], name: values}), file)
        said = engines.same({"shop.frames": file}, "append")
        assert [row["line"] for row in said["rows"]] == [2], (name, said)


def test_load_engines_take_uuids_as_text_and_as_uuids(engines: Engines) -> None:
    columns = 'id = "long", mark = "uuid", text = "string"'
    apply_text(engines.store, f'[dataset."shop.marks"]\ncolumns = {{{columns}}}\nkey = ["id"]')
    engines.on_both("shop.marks")
    given = uuid.UUID("0190c0c8-7f2b-7e6a-9a51-000000000001")
    kinds = {"text": (pa.string(), str(given)), "uuid": (pa.uuid(), given.bytes)}
    for number, (kind, value) in enumerate(kinds.values()):
        rows = {
            "id": [2 * number, 2 * number + 1],
            "mark": pa.array([value, None], kind),
            "text": pa.array([value, None], kind),
        }
        parquet.write_table(pa.table(rows), engines.root / "good.parquet")
        said = engines.same({"shop.marks": engines.root / "good.parquet"}, "append")
        assert said["shop.marks"]["inserted"] == 2
    assert [row["mark"] for row in engines.rows("shop.marks")] == [str(given), None] * 2
    wrong = pa.table({"id": [5, 6], "mark": [str(given), "0190c0c8"]})
    parquet.write_table(wrong, engines.root / "wrong.parquet")
    said = engines.same({"shop.marks": engines.root / "wrong.parquet"}, "append")
    assert [row["line"] for row in said["rows"]] == [2]


def test_load_engines_take_a_header_without_rows_alike(engines: Engines) -> None:
    file = engines.root / "header.csv"
    file.write_text("id,age\n")
    assert engines.same({"graph.person": file}, "merge") == {}
    file.write_text("age\n")
    assert engines.same({"graph.person": file}, "merge")["refused"] == "invalid"
    file.write_text("id,agee\n")
    assert "no column" in engines.same({"graph.person": file}, "append")["reason"]
    parquet.write_table(pa.table({"id": pa.array([], pa.int32())}), engines.root / "0.parquet")
    assert engines.same({"graph.person": engines.root / "0.parquet"}, "overwrite") != {}
