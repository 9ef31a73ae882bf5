"""`load`: values stay as they are in the file, or their row is reported."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headgate.errors import InvalidRows
from headgate.store.embedded import Store
from tests.support.rows import rows_of, table_store

_TABLE = "shop.t"
_COLUMNS = {
    "n": "int",
    "at": "timestamptz",
    "day": "date",
    "s": "string",
    "place": "struct<x: int, y: int>",
    "places": "list<struct<x: int>>",
}


@pytest.fixture
def store(made_sqlite_url: str, tmp_path: Path) -> Iterator[Store]:
    """A store with an empty table that has columns of several types."""
    with table_store(made_sqlite_url, tmp_path, _TABLE, _COLUMNS) as opened:
        yield opened


def _loaded(store: Store, content: bytes) -> list[dict[str, Any]]:
    store.load("master", {_TABLE: content})
    return sorted(rows_of(store, _TABLE), key=lambda row: int(row["id"]))


def test_load_of_moments_with_and_without_a_zone_keeps_them_all(store: Store) -> None:
    rows = _loaded(
        store, b"id,at\n1,2024-01-01T02:00:00+02:00\n2,2024-01-01 05:06\n3,2024-01-01\n4,\n"
    )
    assert [row["at"] and row["at"][:16] for row in rows] == [
        *("2024-01-01T00:00", "2024-01-01T05:06", "2024-01-01T00:00"),
        None,
    ]


def test_load_of_bad_moments_among_good_ones_names_only_those(store: Store) -> None:
    content = b"id,at\n1,2024-01-01T02:00:00+02:00\n2,never\n3,2024-01-01\n4,2024-13-01\n"
    with pytest.raises(InvalidRows) as refused:
        _loaded(store, content)
    assert [row["line"] for row in refused.value.facts["rows"]] == [3, 5]


def test_load_of_true_among_numbers_is_not_taken_for_one(store: Store) -> None:
    with pytest.raises(InvalidRows, match="'true' is not of type int"):
        _loaded(store, b'{"id": 1, "n": 2}\n{"id": 2, "n": true}\n')
    rows = _loaded(store, b'{"id": 3, "s": 5}\n{"id": 4, "s": true}\n{"id": 5, "s": 2.0}\n')
    assert [row["s"] for row in rows] == ["5", "true", "2.0"]


@pytest.mark.parametrize(
    "line",
    [
        b'{"id": 1, "place": {"x": 1, "z": 2}}',
        b'{"id": 1, "places": [{"x": 1}, {"z": 2}]}',
        b'{"id": 1, "place": 7}',
        b'{"id": 1, "place": {"x": 1.5}}',
    ],
)
def test_load_of_fields_that_a_column_does_not_have_names_the_row(
    store: Store, line: bytes
) -> None:
    with pytest.raises(InvalidRows) as refused:
        _loaded(store, b'{"id": 0}\n' + line)
    assert [row["line"] for row in refused.value.facts["rows"]] == [2]


def test_load_of_a_moment_into_a_date_is_refused_unless_a_day_begins(store: Store) -> None:
    days = pa.array([0, 86_400, 86_401], pa.timestamp("s"))
    rows = pa.table({"id": [1, 2, 3], "day": days})
    with pytest.raises(InvalidRows) as refused:
        store.load("master", {_TABLE: rows})
    assert [row["line"] for row in refused.value.facts["rows"]] == [3]
    store.load("master", {_TABLE: rows.slice(0, 2)})
    assert [row["day"] for row in rows_of(store, _TABLE)] == ["1970-01-01", "1970-01-02"]
