"""Rows encoded as bytes: equal exactly where the rows are."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import pyarrow as pa
import pytest

from headgate.tables.row_diff import encode_rows

NOON = datetime.datetime(2026, 11, 15, 12)
VALUES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int32(), [0, -1, 7]),
    (pa.bool_(), [True, False]),
    (pa.float32(), [0.5, float("nan"), float("inf"), float("-inf")]),
    (pa.string(), ["", "~", "1:a", "\x1f", "é"]),
    (pa.large_string(), ["", "a"]),
    (pa.binary(), [b"", b"~", b"\x00", b"\xff\xfe"]),
    (pa.binary(2), [b"ab", b"\x00\xff"]),
    (pa.uuid(), [b"0" * 16, b"1" * 16]),
    (pa.decimal128(9, 2), [decimal.Decimal("1.50"), decimal.Decimal("-1.50")]),
    (pa.date32(), [NOON.date(), datetime.date(1969, 1, 1)]),
    (pa.time64("us"), [NOON.time(), datetime.time(0, 0, 0, 1)]),
    (pa.timestamp("us"), [NOON, NOON.replace(microsecond=1)]),
    (pa.timestamp("us", "UTC"), [NOON, NOON.replace(year=1900)]),
    (pa.list_(pa.int64()), [[], [1], [1, None], [None]]),
    (pa.struct([("a", pa.int64())]), [{"a": 1}, {"a": None}]),
    (pa.map_(pa.string(), pa.int64()), [[], [("a", 1)], [("a", 2)]]),
]


@pytest.mark.parametrize(("kind", "values"), VALUES, ids=lambda value: str(value)[:24])
def test_encoding_of_each_type_separates_its_values_and_null(
    kind: pa.DataType, values: list[Any]
) -> None:
    column = pa.array([*values, None, *values, None], kind)
    encoded = encode_rows([column]).to_pylist()
    half = len(values) + 1
    assert encoded[:half] == encoded[half:]
    assert len(set(encoded)) == half


def test_encoding_does_not_let_columns_run_into_each_other() -> None:
    texts = pa.array(["a", "a\x1f1:b", "", "a"]), pa.array(["b\x1f1:c", "c", "~", None])
    more = pa.array(["c", "", None, "~"])
    assert len(set(encode_rows([*texts, more]).to_pylist())) == 4


def test_encoding_has_one_zero() -> None:
    assert len(set(encode_rows([pa.array([0.0, -0.0])]).to_pylist())) == 1


def test_encoding_does_not_depend_on_how_wide_offsets_are() -> None:
    wide, narrow = pa.array(["a"], pa.large_string()), pa.array(["a"], pa.string())
    assert encode_rows([wide]) == encode_rows([narrow])
