"""The tree behind `expectations`: subjects, operators, and their JSON form."""

from __future__ import annotations

import datetime
import decimal
import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from headgate.transforms.source_location import calling_location


class Op(enum.StrEnum):
    """Operators of expectations."""

    TRUE = "true"
    FALSE = "false"
    ALL = "all"
    ANY = "any"
    NEGATE = "negate"
    GT = "gt"
    GTE = "gte"
    LT = "lt"
    LTE = "lte"
    EQUALS = "equals"
    NOT_EQUALS = "not_equals"
    NON_NULL = "non_null"
    IS_NULL = "is_null"
    IS_IN = "is_in"
    RLIKE = "rlike"
    ARRAY_CONTAINS = "array_contains"
    ARRAY_SIZE = "array_size"
    HAS_TYPE = "has_type"
    EXISTS = "exists"
    IS_UNIQUE = "is_unique"
    PRIMARY_KEY = "primary_key"
    SCHEMA_CONTAINS = "schema_contains"
    SCHEMA_EQUALS = "schema_equals"
    SCHEMA_SUBSET = "schema_subset"


class Property(enum.StrEnum):
    """Numbers measured over all rows or over each group."""

    COUNT = "count"
    NULL_COUNT = "null_count"
    NULL_PERCENTAGE = "null_percentage"
    DISTINCT_COUNT = "distinct_count"
    APPROX_DISTINCT_COUNT = "approx_distinct_count"
    SUM = "sum"
    STANDARD_DEVIATION_SAMPLE = "standard_deviation_sample"
    STANDARD_DEVIATION_POPULATION = "standard_deviation_population"


@dataclass(frozen=True, kw_only=True)
class ColumnOperand:
    """A column of the same row as the right side of a comparison."""

    column: str


@dataclass(frozen=True, kw_only=True)
class NowOperand:
    """The time of the check, plus an offset, as the right side of a comparison."""

    offset_seconds: float = 0


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Subject of an expectation: a column of each row, or a property of all rows or each group."""

    column: str | None = None
    property: Property | None = None
    group_by: tuple[str, ...] = ()

    def measured(self, property: Property) -> Subject:
        return Subject(column=self.column, property=property, group_by=self.group_by)

    def gt(self, value: Any) -> Expectation:
        return self._compared(Op.GT, value)

    def gte(self, value: Any) -> Expectation:
        return self._compared(Op.GTE, value)

    def lt(self, value: Any) -> Expectation:
        return self._compared(Op.LT, value)

    def lte(self, value: Any) -> Expectation:
        return self._compared(Op.LTE, value)

    def equals(self, value: Any) -> Expectation:
        return self._compared(Op.EQUALS, value)

    def not_equals(self, value: Any) -> Expectation:
        return self._compared(Op.NOT_EQUALS, value)

    def gt_col(self, column: str) -> Expectation:
        return self._compared(Op.GT, ColumnOperand(column=column))

    def gte_col(self, column: str) -> Expectation:
        return self._compared(Op.GTE, ColumnOperand(column=column))

    def lt_col(self, column: str) -> Expectation:
        return self._compared(Op.LT, ColumnOperand(column=column))

    def lte_col(self, column: str) -> Expectation:
        return self._compared(Op.LTE, ColumnOperand(column=column))

    def equals_col(self, column: str) -> Expectation:
        return self._compared(Op.EQUALS, ColumnOperand(column=column))

    def not_equals_col(self, column: str) -> Expectation:
        return self._compared(Op.NOT_EQUALS, ColumnOperand(column=column))

    def non_null(self) -> Expectation:
        return Expectation(op=Op.NON_NULL, subject=self)

    def is_null(self) -> Expectation:
        return Expectation(op=Op.IS_NULL, subject=self)

    def is_in(self, *values: Any) -> Expectation:
        return Expectation(op=Op.IS_IN, subject=self, operand=[plain_operand(v) for v in values])

    def rlike(self, pattern: str) -> Expectation:
        return Expectation(op=Op.RLIKE, subject=self, operand=pattern)

    def _compared(self, op: Op, value: Any) -> Expectation:
        if value is None:
            raise calling_location().error("None cannot be compared: use is_null() or non_null()")
        if self.property is not None and isinstance(value, ColumnOperand):
            raise calling_location().error(
                f"{self} is one number over many rows and cannot be compared with column "
                f"{value.column!r}"
            )
        return Expectation(op=op, subject=self, operand=plain_operand(value))

    def to_json(self) -> dict[str, Any]:
        return {
            "column": self.column,
            "property": self.property.value if self.property else None,
            "group_by": list(self.group_by),
        }

    def __str__(self) -> str:
        shown = self.column or "rows"
        if self.property is not None:
            shown = f"{self.property.value}({self.column or '*'})"
        return f"{shown} by {', '.join(self.group_by)}" if self.group_by else shown


_OF_SCHEMA = frozenset({Op.SCHEMA_CONTAINS, Op.SCHEMA_EQUALS, Op.SCHEMA_SUBSET})


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """A node of the tree: an operator, its subject, its operand and inner expectations.

    The operand is JSON: a date, a decimal or a column is an object such as `{"date": …}`.
    """

    op: Op
    subject: Subject | None = None
    operand: Any = None
    parts: tuple[Expectation, ...] = ()

    def __post_init__(self) -> None:
        # Subclasses of Subject only add builder methods; expectations compare by plain subjects.
        if self.subject is not None and type(self.subject) is not Subject:
            object.__setattr__(self, "subject", Subject(**vars(self.subject)))

    def to_json(self) -> dict[str, Any]:
        return {
            "op": self.op.value,
            "subject": self.subject.to_json() if self.subject else None,
            "operand": self.operand,
            "parts": [part.to_json() for part in self.parts],
        }

    def __str__(self) -> str:
        if self.parts:
            return f"{self.op.value}({', '.join(str(part) for part in self.parts)})"
        words = [str(self.subject)] if self.subject else []
        words.append(self.op.value)
        if self.op in _OF_SCHEMA:
            # The operand maps columns to types; a column named `date` is not a date operand.
            columns = ", ".join(f"{name} {kind}" for name, kind in self.operand.items())
            words.append(f"({columns})")
        elif self.operand is not None:
            words.append(_shown(self.operand))
        return " ".join(words)


def expectation_from_json(data: dict[str, Any]) -> Expectation:
    subject = data["subject"]
    return Expectation(
        op=Op(data["op"]),
        subject=None
        if subject is None
        else Subject(
            column=subject["column"],
            property=Property(subject["property"]) if subject["property"] else None,
            group_by=tuple(subject["group_by"]),
        ),
        operand=data["operand"],
        parts=tuple(expectation_from_json(part) for part in data["parts"]),
    )


def operand_value(operand: Any) -> Any:
    """Return the Python value, the column or the time that a JSON operand encodes."""
    match operand:
        case {"column": str(column)}:
            return ColumnOperand(column=column)
        case {"now": int(seconds) | float(seconds)}:
            return NowOperand(offset_seconds=seconds)
        case {"timestamp": str(text)}:
            return datetime.datetime.fromisoformat(text)
        case {"date": str(text)}:
            return datetime.date.fromisoformat(text)
        case {"decimal": str(text)}:
            return decimal.Decimal(text)
    return operand


def type_name(data_type: Any) -> str:
    """Return Spark's short name of a type, given as a name, a DataType or its class."""
    if isinstance(data_type, str):
        return data_type.lower()
    instance = data_type() if isinstance(data_type, type) else data_type
    if not hasattr(instance, "simpleString"):
        raise calling_location().error(
            f"{data_type!r} is not a type: give a Spark DataType or a name such as 'bigint'"
        )
    return str(instance.simpleString())


def plain_operand(value: Any) -> Any:
    """Return the JSON encoding of an operand."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case ColumnOperand(column=column):
            return {"column": column}
        case NowOperand(offset_seconds=seconds):
            return {"now": seconds}
        case datetime.datetime():
            return {"timestamp": value.isoformat()}
        case datetime.date():
            return {"date": value.isoformat()}
        case decimal.Decimal():
            return {"decimal": str(value)}
    raise calling_location().error(
        f"{value!r} cannot be compared: use a number, a string, a boolean, a date, a timestamp "
        "or a decimal"
    )


def _shown(operand: Any) -> str:
    if isinstance(now := operand_value(operand), NowOperand):
        return f"now{now.offset_seconds:+g}s" if now.offset_seconds else "now"
    if isinstance(operand, dict) and len(operand) == 1:
        return str(next(iter(operand.values())))
    if isinstance(operand, Iterable) and not isinstance(operand, str | dict):
        return "(" + ", ".join(_shown(item) for item in operand) + ")"
    return repr(operand)
