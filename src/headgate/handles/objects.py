"""Rows as Python objects, as lines of JSON: every value arrives, or is refused by its row."""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Sequence
from typing import Any

import orjson

from headgate.errors import Invalid

_LEAST, _MOST = -(2**63), 2**64 - 1


def write_lines(rows: Sequence[Any]) -> bytes:
    """A line for each; what JSON knows no number for is written as text, which columns read."""
    return b"".join(_write(row, number) + b"\n" for number, row in enumerate(rows, start=1))


def _write(row: Any, number: int) -> bytes:
    try:
        # Nearly all rows; orjson itself would write NaN and infinities as null.
        if not _has_odd_number(row):
            return orjson.dumps(row)
    except TypeError:
        pass
    try:
        return orjson.dumps(_plain(row))
    except (TypeError, UnicodeDecodeError) as error:
        raise Invalid(
            f"row {number} cannot be loaded: {error}. Give texts, numbers, dates, and lists and "
            "objects of them, or rows that speak Arrow.",
            row=number,
        ) from error


def _has_odd_number(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(map(_has_odd_number, value.values()))
    return isinstance(value, list | tuple) and any(map(_has_odd_number, value))


def _plain(value: Any) -> Any:
    """The same in types that JSON has."""
    match value:
        case bool():
            return value
        case dict():
            return {name: _plain(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_plain(inner) for inner in value]
        case float() if math.isfinite(value):
            return float(value)
        case float():
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case int() if not _LEAST <= value <= _MOST:
            return str(value)
        case decimal.Decimal():
            return str(value)
        case bytes():
            return value.decode()
        case datetime.date() | datetime.time():
            return value.isoformat()
    # A number of NumPy, whose types only an optional library knows.
    return _plain(value.item()) if callable(getattr(value, "item", None)) else value
