"""Numbers and timestamps as text."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.rows.cast import text_column

_NOON = datetime.datetime(2026, 11, 16, 12)


def _text(value: Any, kind: pa.DataType | None = None) -> Any:
    made = text_column(pa.chunked_array([pa.array([value, None], kind)]), pa.large_string())
    assert (made.type, made[1].as_py()) == (pa.large_string(), None)
    return made[0].as_py()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1.0"),
        (0.1, "0.1"),
        (-2.5, "-2.5"),
        (0.001, "0.001"),
        (0.00099, "9.9E-4"),
        (9999999.0, "9999999.0"),
        (1e7, "1.0E7"),
        (-123456789.0, "-1.23456789E8"),
        (1e20, "1.0E20"),
        (1.5e300, "1.5E300"),
        (5e-324, "5.0E-324"),
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (float("nan"), "NaN"),
        (float("inf"), "Infinity"),
        (float("-inf"), "-Infinity"),
    ],
)
def test_double_is_written_as_spark_writes_it(value: float, text: str) -> None:
    assert _text(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.1, "0.1"), (1e10, "1.0E10"), (16777216.0, "1.6777216E7")]
)
def test_float_is_written_in_its_own_precision(value: float, text: str) -> None:
    assert _text(value, pa.float32()) == text


@given(st.floats(allow_nan=False))
def test_text_of_a_double_means_that_double(value: float) -> None:
    assert float(_text(value)) == value


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (_NOON, pa.timestamp("us"), "2026-11-16 12:00:00"),
        (_NOON, pa.timestamp("s"), "2026-11-16 12:00:00"),
        (_NOON.replace(microsecond=500000), pa.timestamp("us"), "2026-11-16 12:00:00.5"),
        (_NOON.replace(microsecond=10), pa.timestamp("us"), "2026-11-16 12:00:00.00001"),
        (_NOON, pa.timestamp("us", tz="UTC"), "2026-11-16 12:00:00Z"),
        (_NOON, pa.timestamp("ms", tz="Europe/Berlin"), "2026-11-16 12:00:00Z"),
        (
            _NOON.replace(microsecond=250000),
            pa.timestamp("us", tz="UTC"),
            "2026-11-16 12:00:00.25Z",
        ),
        (_NOON.date(), None, "2026-11-16"),
        (datetime.time(7, 30), None, "07:30:00"),
        (datetime.time(7, 30, 0, 250000), None, "07:30:00.25"),
        (True, None, "true"),
        (7, None, "7"),
        (Decimal("1.50"), None, "1.50"),
    ],
)
def test_other_value_is_written_as_spark_writes_it(
    value: Any, kind: pa.DataType | None, text: str
) -> None:
    assert _text(value, kind) == text
