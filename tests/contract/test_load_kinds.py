"""`load`: a value is converted to another type only if its meaning stays the same."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headgate.errors import InvalidRows
from headgate.store.embedded import Store
from tests.support.rows import rows_of, table_store

_TABLE = "shop.t"
_KINDS = {
    "flag": "boolean",
    "n": "int",
    "x": "double",
    "y": "float",
    "d": "decimal(9,2)",
    "day": "date",
    "hour": "time",
    "at": "timestamp",
    "moment": "timestamptz",
    "id_": "uuid",
    "raw": "binary",
    "list": "list<int>",
    "floats": "list<float>",
    "place": "struct<x: int, at: timestamptz>",
}
_NESTED = ("list", "floats", "place")
_NOON = datetime.datetime(2026, 11, 16, 12)


@pytest.fixture
def store(made_sqlite_url: str, tmp_path: Path) -> Iterator[Store]:
    with table_store(made_sqlite_url, tmp_path, _TABLE, _KINDS) as opened:
        yield opened


def _load(store: Store, source: Any) -> list[dict[str, Any]]:
    store.load("master", {_TABLE: source})
    return rows_of(store, _TABLE)


@pytest.mark.parametrize(
    ("field", "word"),
    [
        ('"flag": 7', "flag = 7 is not of type boolean"),
        ('"flag": 1.5', "flag = 1.5 is not of type boolean"),
        ('"n": true', "n = True is not of type int"),
        ('"x": false', "x = False is not of type double"),
        ('"x": "1e400"', "x = '1e400' is not of type double"),
        ('"y": 1e300', "y = 1e[+]300 is not of type float"),
        ('"n": "0x1F"', "n = '0x1F' is not of type int"),
        ('"d": true', "d = True is not of type decimal"),
        ('"day": 20000', "day = 20000 is not of type date"),
        ('"hour": 7', "hour = 7 is not of type time"),
        ('"hour": "25:00"', "hour = '25:00' is not of type time"),
        ('"hour": "7:00"', "hour = '7:00' is not of type time"),
        ('"hour": "2026-01-01T07:00"', "is not of type time"),
        ('"at": 1700000000', "at = 1700000000 is not of type timestamp"),
        ('"moment": 1700000000.5', "moment = 1700000000.5 is not of type timestamptz"),
        ('"moment": true', "moment = True is not of type timestamptz"),
        ('"list": [1, true]', "list"),
        ('"list": [true]', "list"),
        ('"list": ["0x1F"]', "list"),
        ('"floats": [1e300]', "floats"),
        ('"place": {"x": true}', "place"),
        ('"place": {"at": 5}', "place"),
    ],
)
def test_value_that_would_mean_something_else_is_refused(
    store: Store, field: str, word: str
) -> None:
    with pytest.raises(InvalidRows, match=word):
        _load(store, f'{{"id": 1, {field}}}\n'.encode())
    with pytest.raises(InvalidRows, match=word):
        _load(store, f'{{"id": 1}}\n{{"id": 2, {field}}}\n{{"id": 3}}\n'.encode())
    assert rows_of(store, _TABLE) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", pa.array([True])),
        ("n", pa.array([_NOON])),
        ("n", pa.array([datetime.date(2026, 1, 1)])),
        ("flag", pa.array([2])),
        ("flag", pa.array([Decimal("0.5")])),
        ("day", pa.array([7], pa.int32())),
        ("hour", pa.array([7], pa.int64())),
        ("hour", pa.array([_NOON])),
        ("moment", pa.array([7], pa.int64())),
        ("x", pa.array([_NOON])),
        ("list", pa.array([[_NOON]])),
    ],
    ids=lambda value: str(getattr(value, "type", value)),
)
def test_column_that_would_mean_something_else_is_refused(
    store: Store, name: str, value: pa.Array
) -> None:
    with pytest.raises(InvalidRows, match=f"{name} = .* is not of type "):
        _load(store, pa.table({"id": [1], name: value}))
    assert rows_of(store, _TABLE) == []


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("flag", pa.array([1]), True),
        ("flag", pa.array([0.0]), False),
        ("flag", pa.array([Decimal("1.00")]), True),
        ("hour", pa.array(["07:30"]), "07:30:00"),
        ("x", pa.array(["-inf"]), "-Infinity"),
        ("y", pa.array([float("inf")]), "Infinity"),
        ("y", pa.array([" Infinity "]), "Infinity"),
        ("n", pa.array([" -7 "]), -7),
        ("hour", pa.array(["07:30:15.25"]), "07:30:15.250000"),
        ("hour", pa.array([datetime.time(7)]), "07:00:00"),
        ("n", pa.array([Decimal("7.00")]), 7),
        ("moment", pa.array([datetime.date(2026, 1, 1)]), "2026-01-01T00:00:00+00:00"),
    ],
    ids=lambda value: str(getattr(value, "type", value)),
)
def test_value_that_means_the_same_is_taken(
    store: Store, name: str, value: pa.Array, shown: Any
) -> None:
    [row] = _load(store, pa.table({"id": [1], name: value}))
    assert row[name] == shown


@pytest.mark.parametrize("given", [pa.bool_(), pa.int64(), pa.date32(), pa.string(), pa.null()])
def test_nothing_is_nothing_of_every_type(store: Store, given: pa.DataType) -> None:
    [row] = _load(store, pa.table({"id": [1], **{name: pa.nulls(1, given) for name in _KINDS}}))
    assert {row[name] for name in _KINDS} == {None}


def test_csv_without_a_value_has_none_of_every_type(store: Store) -> None:
    names = ",".join(name for name in _KINDS if name not in _NESTED)
    commas = "," * names.count(",")
    [row] = _load(store, f"id,{names}\n1,{commas}\n".encode())
    assert {row[name] for name in _KINDS} == {None}
