"""Measures and conditions as Spark's own expressions: nothing is computed here."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

from pyspark.sql import functions

from headgate.spark.check_columns import Column, Columns, Family, as_moment
from headgate.spark.check_plan import Figure, Measure
from headgate.transforms.expected import (
    ColumnOperand,
    Expectation,
    NowOperand,
    Op,
    Property,
    Subject,
    operand_value,
)

_LONG_LIMIT = 2**63
# How many rows a group has, under a name that no measure gets.
ROWS_OF_GROUP = "rows"

_COMPARE: Mapping[Op, Callable[[Any, Any], Any]] = {
    Op.GT: lambda one, other: one > other,
    Op.GTE: lambda one, other: one >= other,
    Op.LT: lambda one, other: one < other,
    Op.LTE: lambda one, other: one <= other,
    Op.EQUALS: lambda one, other: one == other,
    Op.NOT_EQUALS: lambda one, other: one != other,
}

# What an expectation looks at, as an expression and with its type.
Look = Callable[[Subject], tuple[Any, Column]]


class RowExpressions:
    """Expressions over the rows of a dataset."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns

    def column(self, name: str) -> Any:
        """The column, or the struct's field, whatever characters its name has."""
        path = self._columns.load(name).path
        return functions.col(".".join(f"`{part.replace('`', '``')}`" for part in path))

    def condition(self, expectation: Expectation) -> Any:
        """True, false, or null where a null says nothing."""
        return condition(expectation, self._look, self.column)

    def aggregate(self, measure: Measure) -> Any:
        """The measure of all rows."""
        match measure.figure:
            case Figure.ROWS:
                return functions.count(functions.lit(1))
            case Figure.VIOLATIONS:
                assert measure.condition is not None
                return functions.count_if(~self.condition(measure.condition))
            case Property():
                return self.property(measure.figure, measure.columns)
        raise AssertionError(f"{measure.figure} is not measured of all rows")

    def property(self, measured: Property, names: Sequence[str]) -> Any:
        """A property of a column, of all rows or within a group."""
        columns = [self.column(name) for name in names]
        match measured:
            case Property.COUNT:
                return functions.count(functions.lit(1))
            case Property.NULL_COUNT:
                return functions.count_if(columns[0].isNull())
            case Property.NULL_PERCENTAGE:
                return functions.avg(columns[0].isNull().cast("int"))
            case Property.DISTINCT_COUNT:
                return functions.count_distinct(columns[0])
            case Property.APPROX_DISTINCT_COUNT if len(columns) > 1:
                return functions.approx_count_distinct(functions.struct(*columns))
            case Property.APPROX_DISTINCT_COUNT:
                return functions.approx_count_distinct(columns[0])
            case Property.SUM:
                return functions.sum(columns[0])
            case Property.STANDARD_DEVIATION_SAMPLE:
                return functions.stddev_samp(columns[0])
        return functions.stddev_pop(columns[0])

    def _look(self, subject: Subject) -> tuple[Any, Column]:
        assert subject.column is not None
        return self.column(subject.column), self._columns.load(subject.column)


class GroupExpressions:
    """Expressions over groups of rows, each with the properties that conditions ask for."""

    def __init__(
        self, rows: RowExpressions, by: Sequence[str], conditions: Iterable[Expectation]
    ) -> None:
        self._rows = rows
        self.keys = {f"key{number}": name for number, name in enumerate(by)}
        subjects = dict.fromkeys(s for condition in conditions for s in subjects_in(condition))
        self.properties = {f"property{number}": s for number, s in enumerate(subjects)}

    def frame(self, frame: Any) -> Any:
        """One row for each group: its keys, its number of rows, its properties."""
        keys = [self._rows.column(name).alias(key) for key, name in self.keys.items()]
        properties = [
            self._rows.property(s.property, [s.column] if s.column else []).alias(name)
            for name, s in self.properties.items()
            if s.property is not None
        ]
        rows = functions.count(functions.lit(1)).alias(ROWS_OF_GROUP)
        return frame.groupBy(*keys).agg(rows, *properties)

    def condition(self, expectation: Expectation) -> Any:
        return condition(expectation, self._look, functions.col)

    def repeated(self) -> Any:
        return functions.col(ROWS_OF_GROUP) > 1

    def null_key(self) -> Any:
        return reduce(lambda one, other: one | other, (functions.isnull(k) for k in self.keys))

    def aggregate(self, measure: Measure) -> Any:
        """The measure of all groups."""
        rows = functions.col(ROWS_OF_GROUP)
        match measure.figure:
            case Figure.ROWS:
                return functions.coalesce(functions.sum(rows), functions.lit(0))
            case Figure.GROUPS:
                return functions.count(functions.lit(1))
            case Figure.REPEATED:
                return functions.count_if(self.repeated())
            case Figure.NULL_KEYS:
                null_rows = functions.sum(functions.when(self.null_key(), rows))
                return functions.coalesce(null_rows, functions.lit(0))
            case Figure.VIOLATIONS:
                assert measure.condition is not None
                return functions.count_if(~self.condition(measure.condition))
        raise AssertionError(f"{measure.figure} is not measured of groups")

    def _look(self, subject: Subject) -> tuple[Any, Column]:
        name = next(name for name, known in self.properties.items() if known == subject)
        # Every property is a number; which kind does not matter to what it is compared with.
        return functions.col(name), Column(path=(name,), type="double")


def condition(expectation: Expectation, look: Look, column: Callable[[str], Any]) -> Any:
    """An expectation of rows or groups; nulls follow SQL's three values, `is_in` has two."""
    match expectation.op:
        case Op.ALL:
            parts = (condition(part, look, column) for part in expectation.parts)
            return reduce(lambda one, other: one & other, parts)
        case Op.ANY:
            parts = (condition(part, look, column) for part in expectation.parts)
            return reduce(lambda one, other: one | other, parts)
        case Op.NEGATE:
            return ~condition(expectation.parts[0], look, column)
    assert expectation.subject is not None
    subject, known = look(expectation.subject)
    operand = operand_value(expectation.operand)
    match expectation.op:
        case Op.NON_NULL:
            return subject.isNotNull()
        case Op.IS_NULL:
            return subject.isNull()
        case Op.IS_IN:
            return _is_in(subject, known, [operand_value(value) for value in operand])
        case Op.RLIKE:
            return subject.rlike(operand)
        case Op.ARRAY_CONTAINS:
            element = Column(path=known.path, type=known.element_type or "")
            return functions.array_contains(subject, _literal(operand, element))
        case Op.ARRAY_SIZE:
            least, most = operand
            size = functions.array_size(subject)
            return size >= least if most is None else size.between(least, most)
    other = (
        column(operand.column) if isinstance(operand, ColumnOperand) else _literal(operand, known)
    )
    return _COMPARE[expectation.op](subject, other)


def _is_in(subject: Any, known: Column, values: list[Any]) -> Any:
    listed = subject.isin([_literal(value, known) for value in values if value is not None])
    # To SQL, whether null is in a list is null; here it is listed, or it fails.
    known_to_be = functions.coalesce(listed, functions.lit(False))
    return known_to_be | subject.isNull() if None in values else known_to_be


def _literal(value: Any, compared: Column) -> Any:
    """A value as Spark must read it beside this column."""
    if isinstance(value, str) and compared.family is Family.TIME:
        value = as_moment(value)
    match value:
        case NowOperand(offset_seconds=seconds):
            now = functions.current_timestamp()
            return now + functions.make_dt_interval(secs=functions.lit(seconds))
        case datetime.datetime():
            # PySpark would take one without a zone for local time of this process; Spark, reading
            # a text, takes it for the session's.
            wall_clock = value.tzinfo is None and compared.type == "timestamp_ntz"
            kind = "timestamp_ntz" if wall_clock else "timestamp"
            return functions.lit(value.isoformat()).cast(kind)
        case datetime.date():
            return functions.lit(value.isoformat()).cast("date")
        case bool():
            return functions.lit(value)
        case int() if abs(value) >= _LONG_LIMIT:
            return functions.lit(decimal.Decimal(value))
    return functions.lit(value)


def subjects_in(expectation: Expectation) -> list[Subject]:
    own = [expectation.subject] if expectation.subject is not None else []
    return own + [subject for part in expectation.parts for subject in subjects_in(part)]
