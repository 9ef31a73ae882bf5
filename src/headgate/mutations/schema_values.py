"""Values in schema files: defaults and members of enums, and which columns can hold them."""

from __future__ import annotations

import datetime
import decimal
import uuid
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

_WHOLE = frozenset({"int", "long"})
_REAL = frozenset({"float", "double"})


def _finite(text: str) -> decimal.Decimal:
    value = decimal.Decimal(text)
    if not value.is_finite():
        raise ValueError(text)
    return value


# What is written as text, and who can read it.
_READERS: Mapping[str, Callable[[str], object]] = MappingProxyType(
    {
        "date": datetime.date.fromisoformat,
        "time": datetime.time.fromisoformat,
        "timestamp": datetime.datetime.fromisoformat,
        "timestamptz": datetime.datetime.fromisoformat,
        "uuid": uuid.UUID,
        "decimal": _finite,
    }
)


def plain(value: Any) -> Any:
    """A document of TOML with its dates and times as text, as JSON and SQL have them."""
    match value:
        case dict():
            return {name: plain(item) for name, item in value.items()}
        case list():
            return [plain(item) for item in value]
        case datetime.date() | datetime.time():
            return value.isoformat()
    return value


def is_value_of(kind: str, value: Any) -> bool:
    """Whether a column of this type can hold the value."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    family = kind.split("(")[0].strip()
    if kind in _WHOLE:
        return is_number and isinstance(value, int)
    if kind in _REAL:
        return is_number
    if kind == "boolean":
        return isinstance(value, bool)
    if family == "decimal" and is_number:
        return True
    return isinstance(value, str) and _is_readable(family, value)


def _is_readable(family: str, text: str) -> bool:
    try:
        _READERS.get(family, str)(text)
    except (ValueError, decimal.InvalidOperation):
        return False
    return True
