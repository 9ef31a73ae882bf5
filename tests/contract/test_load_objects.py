"""`load` of Python objects: every value arrives unchanged, or its row is reported."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from headgate.errors import Invalid, InvalidRows
from headgate.store.embedded import Store
from tests.support.rows import rows_of, table_store

_TABLE = "shop.t"
_COLUMNS = {
    "x": "double",
    "d": "decimal(38,2)",
    "n": "decimal(38,0)",
    "b": "binary",
    "s": "string",
    "day": "date",
    "at": "timestamptz",
    "u": "uuid",
    "l": "list<double>",
    "place": "struct<x: double>",
}
_NOON = datetime.datetime(2026, 11, 16, 12, tzinfo=datetime.UTC)


@pytest.fixture
def store(made_sqlite_url: str, tmp_path: Path) -> Iterator[Store]:
    with table_store(made_sqlite_url, tmp_path, _TABLE, _COLUMNS) as opened:
        yield opened


def _arrived(store: Store, **given: Any) -> Any:
    store.load("master", {_TABLE: [{"id": 1, **given}]})
    [row] = rows_of(store, _TABLE)
    [name] = given
    return row[name]


@pytest.mark.parametrize(
    ("name", "given", "shown"),
    [
        ("x", math.nan, "NaN"),
        ("x", math.inf, "Infinity"),
        ("x", -math.inf, "-Infinity"),
        ("x", np.float64("nan"), "NaN"),
        ("x", np.float32(0.5), 0.5),
        ("d", Decimal("2.50"), "2.50"),
        ("d", Decimal("1E+3"), "1000.00"),
        ("n", 10**30, str(10**30)),
        ("n", -(2**63) - 1, str(-(2**63) - 1)),
        ("n", 2**64 - 1, str(2**64 - 1)),
        ("s", "ü", "ü"),
        ("day", datetime.date(2026, 1, 2), "2026-01-02"),
        ("at", _NOON, "2026-11-16T12:00:00+00:00"),
        ("u", UUID(int=7), str(UUID(int=7))),
        ("l", [1.5, None, np.float32(0.5)], [1.5, None, 0.5]),
        ("l", (1.5,), [1.5]),
        ("place", {"x": np.int64(2)}, {"x": 2.0}),
    ],
    ids=repr,
)
def test_value_of_an_object_arrives(store: Store, name: str, given: Any, shown: Any) -> None:
    assert _arrived(store, **{name: given}) == shown


def test_bytes_arrive_where_they_are_text(store: Store) -> None:
    assert _arrived(store, b=b"xx") == "eHg="


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"b": b"\xff"}, "utf-8"),
        ({"x": object()}, "object"),
        ({"x": {1, 2}}, "set"),
        ({"s": "\ud800"}, "surrogates"),
        ({"\ud800": 1}, "surrogates"),
        ({7: 1}, "key"),
        ({"at": datetime.timedelta(1)}, "timedelta"),
    ],
    ids=["bytes", "object", "set", "half a character", "half a name", "number as name", "span"],
)
def test_value_that_no_column_holds_names_its_row(
    store: Store, wrong: dict[Any, Any], reason: str
) -> None:
    rows = [{"id": 1}, {"id": 2, **wrong}, {"id": 3}]
    with pytest.raises(Invalid, match=f"row 2 cannot be loaded.*{reason}"):
        store.load("master", {_TABLE: rows})
    assert rows_of(store, _TABLE) == []


def test_no_number_within_a_list_is_refused_rather_than_lost(store: Store) -> None:
    with pytest.raises(InvalidRows):
        store.load("master", {_TABLE: [{"id": 1, "l": [1.0, math.nan]}]})
    assert rows_of(store, _TABLE) == []
