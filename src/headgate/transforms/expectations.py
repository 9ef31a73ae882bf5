"""What can be expected of data, as plain values.

Written `from headgate.transforms import expectations as E`. Nothing is computed here: an
expectation is a small tree that pickles, turns into JSON, and is evaluated on Spark by whoever
runs the job.

What is said of a column is asked of every row; a property is one number, of all rows or of each
group. `all`, `any` and `negate` of expectations that look at rows are asked row by row, those that
look at the same groups group by group; otherwise each part is settled first, then combined.

Null, operator by operator:

- `gt gte lt lte equals not_equals` and their `_col` forms, `rlike`, `array_contains`,
  `array_size`: a row with null on either side passes, negated too: it says nothing.
- `is_in`: null fails, unless None is listed. `non_null`: null fails. `is_null`: null passes.
- `null_percentage` is a share between 0 and 1. `distinct_count`, `sum` and the deviations leave
  nulls out; where nothing is left they have no value, which passes like a null.
- `group_by` and `is_unique` take null for a value of its own; `primary_key` fails on it.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from headgate.transforms.expectation_tree import (
    Expectation,
    NowOperand,
    Op,
    Property,
    Subject,
    plain_operand,
    type_name,
)
from headgate.transforms.where import calling_place

__all__ = [
    "all",
    "any",
    "approx_distinct_count",
    "col",
    "count",
    "false",
    "group_by",
    "negate",
    "now",
    "primary_key",
    "schema",
    "true",
]


class ColumnExpectations(Subject):
    """A column: expectations that every row must meet, and properties of the whole column."""

    def null_count(self) -> Subject:
        return self.measured(Property.NULL_COUNT)

    def null_percentage(self) -> Subject:
        return self.measured(Property.NULL_PERCENTAGE)

    def distinct_count(self) -> Subject:
        return self.measured(Property.DISTINCT_COUNT)

    def approx_distinct_count(self) -> Subject:
        return self.measured(Property.APPROX_DISTINCT_COUNT)

    def sum(self) -> Subject:
        return self.measured(Property.SUM)

    def standard_deviation_sample(self) -> Subject:
        return self.measured(Property.STANDARD_DEVIATION_SAMPLE)

    def standard_deviation_population(self) -> Subject:
        return self.measured(Property.STANDARD_DEVIATION_POPULATION)

    def exists(self) -> Expectation:
        """The column is there, whatever it holds."""
        return Expectation(op=Op.EXISTS, subject=self)

    def has_type(self, data_type: Any) -> Expectation:
        """The column has this Spark type, given as a name (`"bigint"`) or a DataType."""
        return Expectation(op=Op.HAS_TYPE, subject=self, operand=type_name(data_type))

    def array_contains(self, value: Any) -> Expectation:
        """The array in each row has this element."""
        if value is None:
            raise calling_place().refuse("Spark cannot look for null in an array")
        return Expectation(op=Op.ARRAY_CONTAINS, subject=self, operand=plain_operand(value))

    def array_size(self, at_least: int = 0, at_most: int | None = None) -> Expectation:
        """The array in each row has so many elements, both limits included."""
        return Expectation(op=Op.ARRAY_SIZE, subject=self, operand=[at_least, at_most])


class Groups:
    """Rows grouped by columns."""

    def __init__(self, columns: tuple[str, ...]) -> None:
        self._columns = columns

    def is_unique(self) -> Expectation:
        """Each group has one row."""
        return Expectation(op=Op.IS_UNIQUE, operand=list(self._columns))

    def count(self) -> Subject:
        return Subject(property=Property.COUNT, group_by=self._columns)

    def col(self, column: str) -> ColumnExpectations:
        return ColumnExpectations(column=column, group_by=self._columns)


class Schema:
    """The columns and types of a dataset, `{column: type}`."""

    def contains(self, columns: Mapping[str, Any]) -> Expectation:
        return _of_schema(Op.SCHEMA_CONTAINS, columns)

    def equals(self, columns: Mapping[str, Any]) -> Expectation:
        return _of_schema(Op.SCHEMA_EQUALS, columns)

    def is_subset_of(self, columns: Mapping[str, Any]) -> Expectation:
        return _of_schema(Op.SCHEMA_SUBSET, columns)


def col(column: str) -> ColumnExpectations:
    return ColumnExpectations(column=column)


def count() -> Subject:
    """The number of rows."""
    return Subject(property=Property.COUNT)


def approx_distinct_count(*columns: str) -> Subject:
    """About how many different combinations of these columns there are."""
    return Subject(property=Property.APPROX_DISTINCT_COUNT, group_by=_some(columns))


def now(offset: datetime.timedelta = datetime.timedelta()) -> NowOperand:
    """The moment of the check, as in `E.col("loaded_at").gt(E.now(-timedelta(days=1)))`."""
    return NowOperand(offset_seconds=offset.total_seconds())


def primary_key(*columns: str) -> Expectation:
    """No two rows share these columns, and none of them is null."""
    return Expectation(op=Op.PRIMARY_KEY, operand=list(_some(columns)))


def group_by(*columns: str) -> Groups:
    return Groups(_some(columns))


def schema() -> Schema:
    return Schema()


def all(*expectations: Expectation) -> Expectation:
    return Expectation(op=Op.ALL, parts=_expectations(expectations))


def any(*expectations: Expectation) -> Expectation:
    return Expectation(op=Op.ANY, parts=_expectations(expectations))


def negate(expectation: Expectation) -> Expectation:
    return Expectation(op=Op.NEGATE, parts=_expectations((expectation,)))


def true() -> Expectation:
    return Expectation(op=Op.TRUE)


def false() -> Expectation:
    return Expectation(op=Op.FALSE)


def _of_schema(op: Op, columns: Mapping[str, Any]) -> Expectation:
    types = {name: type_name(data_type) for name, data_type in columns.items()}
    return Expectation(op=op, operand=types)


def _some(columns: tuple[str, ...]) -> tuple[str, ...]:
    if not columns:
        raise calling_place().refuse("name at least one column")
    return columns


def _expectations(parts: tuple[Expectation, ...]) -> tuple[Expectation, ...]:
    for part in parts:
        if not isinstance(part, Expectation):
            raise calling_place().refuse(
                f"{part!r} is not an expectation: compare it with something, as in E.col('x').gt(0)"
            )
    return parts
