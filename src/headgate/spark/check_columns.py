"""The columns of a checked dataset, and what a schema alone decides about an expectation.

It decides whether the columns exist, whether their types support the expectation, and the whole
verdict on expectations of the schema itself.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from headgate.model.checks import Verdict
from headgate.transforms.expectation_tree import (
    ColumnOperand,
    Expectation,
    NowOperand,
    Op,
    Property,
    operand_value,
)

_LISTED_COLUMNS = 20


class Family(enum.StrEnum):
    """Types whose values can be compared with one another."""

    NUMBER = "number"
    TEXT = "text"
    BOOLEAN = "boolean"
    TIME = "time"
    OTHER = "other"


_FAMILIES = {
    **dict.fromkeys(
        ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal"), Family.NUMBER
    ),
    **dict.fromkeys(("string", "varchar", "char"), Family.TEXT),
    "boolean": Family.BOOLEAN,
    **dict.fromkeys(("date", "timestamp", "timestamp_ntz"), Family.TIME),
}


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column, or a field inside a struct: its path, and its type as Spark writes it."""

    path: tuple[str, ...]
    type: str
    fields: tuple[Column, ...] = ()

    @property
    def name(self) -> str:
        return ".".join(self.path)

    @property
    def family(self) -> Family:
        return _FAMILIES.get(self.type.partition("(")[0], Family.OTHER)

    @property
    def element(self) -> Column | None:
        """The elements of an array, as a column; None if this is not an array."""
        if not self.type.startswith("array<"):
            return None
        return Column(path=self.path, type=self.type[len("array<") : -1])


class Columns:
    """The columns of one dataset, looked up as Spark does: case-insensitive."""

    def __init__(self, columns: Iterable[Column]) -> None:
        self.all = tuple(columns)

    def find(self, name: str) -> Column | None:
        """Return the column of this name, or the struct field of a dotted name."""
        return _find(self.all, name)

    def load(self, name: str) -> Column:
        """Return a column that is known to exist."""
        found = self.find(name)
        assert found is not None, f"{name} was looked up before"
        return found

    def missing(self, names: Iterable[str]) -> str | None:
        """Return a sentence about the names without a column; None if all have one."""
        missing = [repr(name) for name in names if self.find(name) is None]
        if not missing:
            return None
        listed = ", ".join(column.name for column in self.all[:_LISTED_COLUMNS]) or "none"
        more = len(self.all) - _LISTED_COLUMNS
        shown = f"{listed} and {more} more" if more > 0 else listed
        return f"there is no column {' nor '.join(missing)}; the columns are {shown}"


def _find(columns: tuple[Column, ...], name: str) -> Column | None:
    folded = name.casefold()
    alike = [column for column in columns if column.path[-1].casefold() == folded]
    for column in alike:
        if column.path[-1] == name:
            return column
    if alike:
        return alike[0]
    # A column's own name may contain dots, so the longest match goes first.
    for column in sorted(columns, key=lambda column: -len(column.path[-1])):
        own = column.path[-1]
        if folded.startswith(f"{own}.".casefold()):
            found = _find(column.fields, name[len(own) + 1 :])
            if found is not None:
                return found
    return None


def columns_named(expectation: Expectation) -> list[str]:
    """Return all columns that an expectation names, each once, its subject first."""
    found: list[str] = []
    if expectation.op in {Op.IS_UNIQUE, Op.PRIMARY_KEY}:
        found += expectation.operand
    elif (subject := expectation.subject) is not None:
        found += [subject.column] if subject.column is not None else []
        found += subject.group_by
        if isinstance(other := operand_value(expectation.operand), ColumnOperand):
            found.append(other.column)
    for part in expectation.parts:
        found += columns_named(part)
    return list(dict.fromkeys(found))


# --- types: which of them support an expectation ---------------------------------------------

# Both for Python's numbers and for Spark's columns.
COMPARISONS: Mapping[Op, Callable[[Any, Any], Any]] = {
    Op.GT: operator.gt,
    Op.GTE: operator.ge,
    Op.LT: operator.lt,
    Op.LTE: operator.le,
    Op.EQUALS: operator.eq,
    Op.NOT_EQUALS: operator.ne,
}
_OF_NUMBERS = {
    Property.SUM,
    Property.STANDARD_DEVIATION_SAMPLE,
    Property.STANDARD_DEVIATION_POPULATION,
}
_OF_PROPERTIES = {Op.NON_NULL, Op.IS_NULL, Op.IS_IN, *COMPARISONS}


def type_mismatch(expectation: Expectation, columns: Columns) -> str | None:
    """Return why the types of the columns do not support the expectation; None if they do.

    All columns that it names exist.
    """
    subject = expectation.subject
    if subject is None:
        return None
    if subject.property is None:
        assert subject.column is not None, "a subject without a property has a column"
        return _column_mismatch(expectation, columns.load(subject.column), columns)
    if subject.property in _OF_NUMBERS:
        assert subject.column is not None, "these properties are measured on a column"
        column = columns.load(subject.column)
        if column.family is not Family.NUMBER:
            return f"{column.name} is {column.type}, and {subject.property.value} needs numbers"
    if expectation.op not in _OF_PROPERTIES:
        return f"{subject} is a number, which does not support {expectation.op.value}"
    return _column_mismatch(expectation, Column(path=(str(subject),), type="double"), columns)


def _column_mismatch(expectation: Expectation, column: Column, columns: Columns) -> str | None:
    value = operand_value(expectation.operand)
    match expectation.op:
        case Op.IS_IN:
            wrong = (value_mismatch(column, operand_value(v)) for v in value if v is not None)
            return next(filter(None, wrong), None)
        case Op.RLIKE if column.family is not Family.TEXT:
            return f"{column.name} is {column.type}, and only text is matched with a pattern"
        case Op.ARRAY_CONTAINS | Op.ARRAY_SIZE if column.element is None:
            return f"{column.name} is {column.type}, not an array"
        case Op.ARRAY_CONTAINS:
            return value_mismatch(column, value, compared=column.element)
        case op if op not in COMPARISONS:
            return None
    if isinstance(value, ColumnOperand):
        return columns_mismatch(column, columns.load(value.column))
    return value_mismatch(column, value)


def value_mismatch(column: Column, value: Any, *, compared: Column | None = None) -> str | None:
    """Return why a column, or its elements, cannot be compared with a value; None if it can."""
    family = (compared or column).family
    if family is not Family.OTHER and family is _family_of_value(value, family):
        return None
    return f"{column.name} is {column.type}, which cannot be compared with {format_value(value)}"


def columns_mismatch(one: Column, other: Column) -> str | None:
    """Return why these two columns cannot be compared; None if they can."""
    alike = one.family is other.family and one.family is not Family.OTHER
    if alike or one.type == other.type:
        return None
    return f"{one.name} is {one.type} and {other.name} is {other.type}: they cannot be compared"


def _family_of_value(value: Any, wanted: Family) -> Family:
    match value:
        case bool():
            return Family.BOOLEAN
        case int() | float() | decimal.Decimal():
            return Family.NUMBER
        case str():
            is_time = wanted is Family.TIME and parse_time(value) is not None
            return Family.TIME if is_time else Family.TEXT
        case datetime.date() | NowOperand():
            return Family.TIME
    return Family.OTHER


def parse_time(text: str) -> datetime.date | None:
    """Parse a date or a timestamp; None if the text is neither."""
    for kind in (datetime.date, datetime.datetime):
        try:
            return kind.fromisoformat(text)
        except ValueError:
            continue
    return None


def format_value(value: Any) -> str:
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


SCHEMA_OPS = frozenset(
    {Op.EXISTS, Op.HAS_TYPE, Op.SCHEMA_CONTAINS, Op.SCHEMA_EQUALS, Op.SCHEMA_SUBSET}
)

# Other names of a type, and the one that Spark writes.
_SAME_TYPES = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "bool": "boolean",
    "dec": "decimal",
    "numeric": "decimal",
    "str": "string",
    "timestamp_ltz": "timestamp",
}
# A word before a colon is the name of a struct's field.
_TYPE_WORD = re.compile(r"\b[a-z_]+\b(?!:)")


def judge_schema(expectation: Expectation, columns: Columns) -> tuple[Verdict, str]:
    """Return the verdict on an expectation of the schema, and its reason."""
    match expectation.op:
        case Op.EXISTS:
            name = _column_of(expectation)
            return _judged(columns.missing([name]), f"there is a column {name}")
        case Op.HAS_TYPE:
            name = _column_of(expectation)
            if missing := columns.missing([name]):
                return Verdict.UNKNOWN, missing
            wrong = _differences(columns, {name: expectation.operand})
            return _judged(wrong, f"{name} is {expectation.operand}")
    expected = dict(expectation.operand)
    required = expected
    if expectation.op is Op.SCHEMA_SUBSET:
        required = {name: expected[name] for name in expected if columns.find(name)}
    reasons = [_differences(columns, required)]
    if expectation.op is not Op.SCHEMA_CONTAINS:
        reasons.append(_unexpected(columns, expected))
    return _judged("; ".join(filter(None, reasons)), f"{len(columns.all)} columns as expected")


def same_type(one: str, other: str) -> bool:
    """Return whether two names mean one type."""
    return _canonical(one) == _canonical(other)


def _canonical(type_name: str) -> str:
    text = re.sub(r"\s+", "", type_name.lower())
    text = _TYPE_WORD.sub(lambda word: _SAME_TYPES.get(word[0], word[0]), text)
    # Spark's default precision and scale.
    return re.sub(r"\bdecimal\b(?![(:])", "decimal(10,0)", text)


def _differences(columns: Columns, expected: Mapping[str, str]) -> str | None:
    reasons = [columns.missing(expected)]
    for name, type_name in expected.items():
        found = columns.find(name)
        if found is not None and not same_type(found.type, type_name):
            reasons.append(f"{found.name} is {found.type}, not {type_name}")
    return "; ".join(filter(None, reasons)) or None


def _unexpected(columns: Columns, expected: Mapping[str, str]) -> str | None:
    known = {name.casefold() for name in expected}
    names = [f"{c.name} {c.type}" for c in columns.all if c.name.casefold() not in known]
    return f"not expected: {', '.join(names)}" if names else None


def _judged(wrong: str | None, right: str) -> tuple[Verdict, str]:
    return (Verdict.UNMET, wrong) if wrong else (Verdict.MET, right)


def _column_of(expectation: Expectation) -> str:
    subject = expectation.subject
    assert subject is not None and subject.column is not None, "only a column has this expectation"
    return subject.column
