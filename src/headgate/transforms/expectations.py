"""Builders of expectations on data, imported as `expectations as E`.

An expectation is a plain tree that can be pickled and encoded as JSON; the job evaluates it on
Spark. ::

    Check(E.all(E.col("id").non_null(), E.col("total").gte(0)), "valid rows")

An expectation on a column holds for every row. A property such as `count()` is one number, over
all rows or over each group. `all`, `any` and `negate` combine expectations on columns row by row,
and expectations on the same groups group by group; other parts are evaluated first and combined
afterwards.

Handling of null, by operator:

- `gt gte lt lte equals not_equals` and their `_col` forms, `rlike`, `array_contains`,
  `array_size`: a row with null on either side passes, also when negated.
- `is_in`: null fails, unless None is listed. `non_null`: null fails. `is_null`: null passes.
- `null_percentage` is a share between 0 and 1. `distinct_count`, `sum` and the deviations ignore
  nulls; without other values they are null themselves, and pass.
- `group_by` and `is_unique` treat null as a value; `primary_key` fails on it.
"""

import datetime
from collections.abc import Mapping
from typing import Any

from headgate.transforms import expectation_tree
from headgate.transforms.expectation_tree import Expectation, NowOperand, Op, Property, Subject
from headgate.transforms.source_location import calling_location

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
    """Expectations on the rows of a column, and properties of the whole column."""

    def null_count(self) -> Subject:
        return self.measured(Property.NULL_COUNT)

    def null_percentage(self) -> Subject:
        """The share of rows that are null, between 0 and 1."""
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
        """The column exists."""
        return Expectation(op=Op.EXISTS, subject=self)

    def has_type(self, data_type: Any) -> Expectation:
        """The column has this Spark type, given as a name (`"bigint"`) or a DataType."""
        return Expectation(
            op=Op.HAS_TYPE, subject=self, operand=expectation_tree.type_name(data_type)
        )

    def array_contains(self, value: Any) -> Expectation:
        """The array in each row contains this element."""
        if value is None:
            raise calling_location().error("Spark cannot search for null in an array")
        return Expectation(
            op=Op.ARRAY_CONTAINS, subject=self, operand=expectation_tree.plain_operand(value)
        )

    def array_size(self, at_least: int = 0, at_most: int | None = None) -> Expectation:
        """The array in each row has `at_least` to `at_most` elements, both included."""
        return Expectation(op=Op.ARRAY_SIZE, subject=self, operand=[at_least, at_most])


class Groups:
    """Rows grouped by columns."""

    def __init__(self, columns: tuple[str, ...]) -> None:
        self._columns = columns

    def is_unique(self) -> Expectation:
        """Each group has exactly one row."""
        return Expectation(op=Op.IS_UNIQUE, operand=list(self._columns))

    def count(self) -> Subject:
        return Subject(property=Property.COUNT, group_by=self._columns)

    def col(self, column: str) -> ColumnExpectations:
        return ColumnExpectations(column=column, group_by=self._columns)


class Schema:
    """The columns and types of a dataset, `{column: type}`."""

    def contains(self, columns: Mapping[str, Any]) -> Expectation:
        """The dataset has these columns, and possibly others."""
        return _of_schema(Op.SCHEMA_CONTAINS, columns)

    def equals(self, columns: Mapping[str, Any]) -> Expectation:
        """The dataset has exactly these columns."""
        return _of_schema(Op.SCHEMA_EQUALS, columns)

    def is_subset_of(self, columns: Mapping[str, Any]) -> Expectation:
        """The dataset has no columns but these."""
        return _of_schema(Op.SCHEMA_SUBSET, columns)


def col(column: str) -> ColumnExpectations:
    """A column, as in `E.col("total").gte(0)`."""
    return ColumnExpectations(column=column)


def count() -> Subject:
    """The number of rows."""
    return Subject(property=Property.COUNT)


def approx_distinct_count(*columns: str) -> Subject:
    """The approximate number of distinct combinations of these columns."""
    return Subject(property=Property.APPROX_DISTINCT_COUNT, group_by=_some(columns))


def now(offset: datetime.timedelta = datetime.timedelta()) -> NowOperand:
    """The time of the check, as in `E.col("loaded_at").gt(E.now(-timedelta(days=1)))`."""
    return NowOperand(offset_seconds=offset.total_seconds())


def primary_key(*columns: str) -> Expectation:
    """These columns are unique together, and none of them is null."""
    return Expectation(op=Op.PRIMARY_KEY, operand=list(_some(columns)))


def group_by(*columns: str) -> Groups:
    """Rows grouped by columns, as in `E.group_by("day").count().lte(10)`."""
    return Groups(_some(columns))


def schema() -> Schema:
    """The schema, as in `E.schema().contains({"id": "bigint"})`."""
    return Schema()


def all(*expectations: Expectation) -> Expectation:
    """All expectations hold."""
    return Expectation(op=Op.ALL, parts=_expectations(expectations))


def any(*expectations: Expectation) -> Expectation:
    """At least one expectation holds."""
    return Expectation(op=Op.ANY, parts=_expectations(expectations))


def negate(expectation: Expectation) -> Expectation:
    """The expectation does not hold."""
    return Expectation(op=Op.NEGATE, parts=_expectations((expectation,)))


def true() -> Expectation:
    return Expectation(op=Op.TRUE)


def false() -> Expectation:
    return Expectation(op=Op.FALSE)


def _of_schema(op: Op, columns: Mapping[str, Any]) -> Expectation:
    types = {name: expectation_tree.type_name(data_type) for name, data_type in columns.items()}
    return Expectation(op=op, operand=types)


def _some(columns: tuple[str, ...]) -> tuple[str, ...]:
    if not columns:
        raise calling_location().error("give at least one column")
    return columns


def _expectations(parts: tuple[Expectation, ...]) -> tuple[Expectation, ...]:
    for part in parts:
        if not isinstance(part, Expectation):
            raise calling_location().error(
                f"{part!r} is not an expectation: compare it with a value, as in E.col('x').gt(0)"
            )
    return parts
