"""The columns that checks may name, and what their types can be compared with."""

from __future__ import annotations

import datetime
import decimal
import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from headgate.transforms.expected import ColumnOperand, NowOperand

_LISTED_COLUMNS = 20


class Family(enum.StrEnum):
    """Types whose values compare with one another."""

    NUMBER = "number"
    TEXT = "text"
    TRUTH = "truth"
    TIME = "time"
    OTHER = "other"


_FAMILIES = {
    **dict.fromkeys(
        ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal"), Family.NUMBER
    ),
    **dict.fromkeys(("string", "varchar", "char"), Family.TEXT),
    "boolean": Family.TRUTH,
    **dict.fromkeys(("date", "timestamp", "timestamp_ntz"), Family.TIME),
}


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column, or a field inside a struct: where it is, and its type as Spark writes it."""

    path: tuple[str, ...]
    type: str
    fields: tuple[Column, ...] = ()

    @property
    def name(self) -> str:
        return ".".join(self.path)

    @property
    def family(self) -> Family:
        return family_of_type(self.type)

    @property
    def element_type(self) -> str | None:
        """What an array holds; None for what is not an array."""
        return self.type[len("array<") : -1] if self.type.startswith("array<") else None


class Columns:
    """The columns of one dataset, found by name as Spark does: upper and lower case alike."""

    def __init__(self, columns: Iterable[Column]) -> None:
        self.all = tuple(columns)

    def find(self, name: str) -> Column | None:
        """The column of this name, or the field that a dotted name leads to."""
        return _find(self.all, name)

    def load(self, name: str) -> Column:
        """A column that is known to be there."""
        found = self.find(name)
        assert found is not None, f"{name} was looked for before"
        return found

    def lacking(self, names: Iterable[str]) -> str | None:
        """Which of these are not there, and what is; None if all are."""
        missing = [repr(name) for name in names if self.find(name) is None]
        if not missing:
            return None
        there = ", ".join(column.name for column in self.all[:_LISTED_COLUMNS]) or "none"
        more = len(self.all) - _LISTED_COLUMNS
        shown = f"{there} and {more} more" if more > 0 else there
        return f"there is no column {' nor '.join(missing)}; the columns are {shown}"


def _find(columns: tuple[Column, ...], name: str) -> Column | None:
    folded = name.casefold()
    alike = [column for column in columns if column.path[-1].casefold() == folded]
    for column in alike:
        if column.path[-1] == name:
            return column
    if alike:
        return alike[0]
    # A column's own name may have dots, so the longest one that fits goes first.
    for column in sorted(columns, key=lambda column: -len(column.path[-1])):
        own = column.path[-1]
        if folded.startswith(f"{own}.".casefold()):
            found = _find(column.fields, name[len(own) + 1 :])
            if found is not None:
                return found
    return None


def family_of_type(type_name: str) -> Family:
    return _FAMILIES.get(type_name.partition("(")[0], Family.OTHER)


def as_moment(text: str) -> datetime.date | None:
    """A date or a moment that is written as text, None if it is neither."""
    for kind in (datetime.date, datetime.datetime):
        try:
            return kind.fromisoformat(text)
        except ValueError:
            continue
    return None


def unlike(column: Column, value: Any) -> str | None:
    """Why this column cannot be compared with this value, None if it can."""
    reason = unlike_type(column.type, value)
    return None if reason is None else f"{column.name} is {column.type}, {reason}"


def unlike_type(type_name: str, value: Any) -> str | None:
    family = family_of_type(type_name)
    fits = family is not Family.OTHER and family is _family_of_value(value, family)
    return None if fits else f"which cannot be compared with {shown(value)}"


def unlike_columns(one: Column, other: Column) -> str | None:
    """Why these two cannot be compared, None if they can."""
    alike = one.family is other.family and one.family is not Family.OTHER
    if alike or one.type == other.type:
        return None
    return f"{one.name} is {one.type} and {other.name} is {other.type}: they do not compare"


def shown(value: Any) -> str:
    """A value as people write it in a sentence."""
    match value:
        case ColumnOperand(column=column):
            return column
        case NowOperand(offset_seconds=0):
            return "now"
        case NowOperand(offset_seconds=seconds):
            return f"now {'-' if seconds < 0 else '+'} {abs(seconds):g} s"
        case datetime.date():
            return value.isoformat()
        case float():
            return f"{value:.6g}"
        case decimal.Decimal():
            return str(value)
    return repr(value)


def _family_of_value(value: Any, wanted: Family) -> Family:
    match value:
        case bool():
            return Family.TRUTH
        case int() | float() | decimal.Decimal():
            return Family.NUMBER
        case str():
            is_moment = wanted is Family.TIME and as_moment(value) is not None
            return Family.TIME if is_moment else Family.TEXT
        case datetime.date() | NowOperand():
            return Family.TIME
    return Family.OTHER
