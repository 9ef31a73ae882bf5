"""The columns that checks may name, and what their types can be compared with."""

from __future__ import annotations

import datetime
import decimal
import enum
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from headgate.model.checks import Verdict
from headgate.transforms.expectation_tree import (
    ColumnOperand,
    Expectation,
    NowOperand,
    Op,
    Property,
    Subject,
    operand_value,
)

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


# Whether an expectation can be asked of columns of these types.

COMPARISONS = frozenset({Op.GT, Op.GTE, Op.LT, Op.LTE, Op.EQUALS, Op.NOT_EQUALS})
_OF_NUMBERS = {
    Property.SUM,
    Property.STANDARD_DEVIATION_SAMPLE,
    Property.STANDARD_DEVIATION_POPULATION,
}


def names_in(expectation: Expectation) -> list[str]:
    """All columns that an expectation names, each once, first the one that it is about."""
    found: list[str] = []
    if expectation.op in {Op.IS_UNIQUE, Op.PRIMARY_KEY}:
        found += expectation.operand
    elif (subject := expectation.subject) is not None:
        found += [subject.column] if subject.column is not None else []
        found += subject.group_by
        if isinstance(other := operand_value(expectation.operand), ColumnOperand):
            found.append(other.column)
    for part in expectation.parts:
        found += names_in(part)
    return list(dict.fromkeys(found))


def unfit(expectation: Expectation, columns: Columns) -> str | None:
    """Why this cannot be asked of columns of their types, None if it can; all are there."""
    subject = expectation.subject
    if subject is None:
        return None
    if subject.property is not None:
        return _unfit_number(expectation, subject, subject.property, columns)
    assert subject.column is not None, "without a property there is a column"
    return _unfit_column(expectation, columns.load(subject.column), columns)


def _unfit_column(expectation: Expectation, column: Column, columns: Columns) -> str | None:
    value = operand_value(expectation.operand)
    match expectation.op:
        case Op.IS_IN:
            wrong = (unlike(column, operand_value(v)) for v in value if v is not None)
            return next(filter(None, wrong), None)
        case Op.RLIKE if column.family is not Family.TEXT:
            return f"{column.name} is {column.type}, and only text is matched with a pattern"
        case Op.ARRAY_CONTAINS | Op.ARRAY_SIZE if column.element_type is None:
            return f"{column.name} is {column.type}, not an array"
        case Op.ARRAY_CONTAINS:
            wrong_element = unlike_type(column.element_type or "", value)
            return wrong_element and f"{column.name} is {column.type}, {wrong_element}"
    if expectation.op not in COMPARISONS:
        return None
    if isinstance(value, ColumnOperand):
        return unlike_columns(column, columns.load(value.column))
    return unlike(column, value)


def _unfit_number(
    expectation: Expectation, subject: Subject, measured: Property, columns: Columns
) -> str | None:
    if measured in _OF_NUMBERS:
        assert subject.column is not None, "these are measured of a column"
        column = columns.load(subject.column)
        if column.family is not Family.NUMBER:
            return f"{column.name} is {column.type}, and {measured.value} needs numbers"
    number = Column(path=(str(subject),), type="double")
    match expectation.op:
        case Op.NON_NULL | Op.IS_NULL:
            return None
        case Op.IS_IN:
            values = [operand_value(v) for v in expectation.operand if v is not None]
            return next(filter(None, (unlike(number, v) for v in values)), None)
        case op if op in COMPARISONS:
            return unlike(number, operand_value(expectation.operand))
    return f"{subject} is a number, of which {expectation.op.value} cannot be expected"


# Expectations of a schema: what they say is known without looking at a row.

OPS = frozenset({Op.EXISTS, Op.HAS_TYPE, Op.SCHEMA_CONTAINS, Op.SCHEMA_EQUALS, Op.SCHEMA_SUBSET})

# Names that people know a type by, and the one that Spark writes.
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
    """Whether the schema is as expected, and why."""
    match expectation.op:
        case Op.EXISTS:
            wrong = columns.lacking([_column_of(expectation)])
            return _judged(wrong, f"there is a column {_column_of(expectation)}")
        case Op.HAS_TYPE:
            name = _column_of(expectation)
            if lacking := columns.lacking([name]):
                return Verdict.UNKNOWN, lacking
            wrong = _differences(columns, {name: expectation.operand})
            return _judged(wrong, f"{name} is {expectation.operand}")
    wanted = dict(expectation.operand)
    complaints = []
    if expectation.op is not Op.SCHEMA_SUBSET:
        complaints.append(_differences(columns, wanted))
    else:
        known = {name: wanted[name] for name in wanted if columns.find(name)}
        complaints.append(_differences(columns, known))
    if expectation.op is not Op.SCHEMA_CONTAINS:
        complaints.append(_unexpected(columns, wanted))
    return _judged("; ".join(filter(None, complaints)), f"{len(columns.all)} columns as expected")


def same_type(one: str, other: str) -> bool:
    """Whether two names mean one type."""
    return _canonical(one) == _canonical(other)


def _canonical(type_name: str) -> str:
    text = re.sub(r"\s+", "", type_name.lower())
    text = _TYPE_WORD.sub(lambda word: _SAME_TYPES.get(word[0], word[0]), text)
    # Spark's own meaning of a decimal without digits.
    return re.sub(r"\bdecimal\b(?![(:])", "decimal(10,0)", text)


def _differences(columns: Columns, wanted: Mapping[str, str]) -> str | None:
    complaints = [columns.lacking(wanted)]
    for name, type_name in wanted.items():
        found = columns.find(name)
        if found is not None and not same_type(found.type, type_name):
            complaints.append(f"{found.name} is {found.type}, not {type_name}")
    return "; ".join(filter(None, complaints)) or None


def _unexpected(columns: Columns, wanted: Mapping[str, str]) -> str | None:
    known = {name.casefold() for name in wanted}

    def is_unknown(column: Column) -> bool:
        return column.name.casefold() not in known

    names = [f"{column.name} {column.type}" for column in columns.all if is_unknown(column)]
    return f"not expected: {', '.join(names)}" if names else None


def _judged(wrong: str | None, fine: str) -> tuple[Verdict, str]:
    return (Verdict.UNMET, wrong) if wrong else (Verdict.MET, fine)


def _column_of(expectation: Expectation) -> str:
    subject = expectation.subject
    assert subject is not None and subject.column is not None, "only a column has this expectation"
    return subject.column
