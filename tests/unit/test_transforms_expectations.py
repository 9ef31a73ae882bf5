"""Expectations are plain values: they pickle, compare, convert to JSON and have a readable form."""

from __future__ import annotations

import datetime
import decimal
import json
import pickle

import pytest

from headgate.errors import InvalidDefinition
from headgate.transforms import expectations as E  # noqa: N812  (as users write it)
from headgate.transforms.expectation_tree import (
    ColumnOperand,
    Expectation,
    Op,
    expectation_from_json,
    operand_value,
)

EXAMPLES = [
    E.true(),
    E.negate(E.false()),
    E.all(E.col("a").gt(0), E.any(E.col("b").is_null(), E.col("b").rlike("^x"))),
    E.col("a").gte_col("b"),
    E.col("a").is_in("x", "y", None),
    E.col("d").lt(datetime.date(2026, 1, 2)),
    E.col("t").not_equals(datetime.datetime(2026, 1, 2, 3, 4, tzinfo=datetime.UTC)),
    E.col("p").lte(decimal.Decimal("1.10")),
    E.col("a").null_percentage().lt(0.1),
    E.col("a").distinct_count().gt(3),
    E.col("a").has_type("BIGINT"),
    E.col("a").exists(),
    E.count().gte(1),
    E.approx_distinct_count("a", "b").gt(3),
    E.group_by("a", "b").is_unique(),
    E.group_by("a").count().lte(5),
    E.group_by("a").col("x").sum().equals(1),
    E.primary_key("a", "b"),
    E.schema().contains({"a": "string"}),
    E.col("a").array_contains("x"),
    E.col("a").array_size(1, 5),
    E.col("t").gt(E.now(-datetime.timedelta(days=1))),
]


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_expectation_survives_json_and_pickle(example: Expectation) -> None:
    assert expectation_from_json(json.loads(json.dumps(example.to_json()))) == example
    assert pickle.loads(pickle.dumps(example)) == example


def test_every_operator_has_an_example_or_a_like() -> None:
    def operators(found: Expectation) -> set[Op]:
        return {found.op}.union(*(operators(part) for part in found.parts))

    likes = {Op.NON_NULL, Op.SCHEMA_EQUALS, Op.SCHEMA_SUBSET}
    assert set().union(*(operators(example) for example in EXAMPLES)) | likes == set(Op)


def test_operand_comes_back_as_the_value_it_was() -> None:
    moment = datetime.datetime(2026, 1, 2, 3, 4)
    values = [1, "x", moment, moment.date(), decimal.Decimal("1.10")]
    assert [operand_value(E.col("a").gt(value).operand) for value in values] == values
    assert operand_value(E.col("a").gt_col("b").operand) == ColumnOperand(column="b")


@pytest.mark.parametrize(
    ("example", "shown"),
    [
        (E.col("a").gt(0), "a gt 0"),
        (E.col("a").null_percentage().lt(0.1), "null_percentage(a) lt 0.1"),
        (E.group_by("k").count().lte(5), "count(*) by k lte 5"),
        (E.col("t").lte(E.now()), "t lte now"),
        (E.col("t").gt(E.now(-datetime.timedelta(days=1))), "t gt now-86400s"),
        (E.schema().contains({"date": "date"}), "schema_contains (date date)"),
        (E.schema().equals({"a": "int", "b": "string"}), "schema_equals (a int, b string)"),
        (E.all(E.primary_key("a", "b"), E.col("c").non_null()), None),
    ],
)
def test_expectation_reads_as_a_sentence(example: Expectation, shown: str | None) -> None:
    assert str(example) == (shown or "all(primary_key ('a', 'b'), c non_null)")


def test_type_may_be_given_as_a_spark_type_or_its_class() -> None:
    class LongType:
        def simpleString(self) -> str:  # noqa: N802  (Spark's own spelling)
            return "bigint"

    assert E.col("a").has_type(LongType) == E.col("a").has_type(LongType())
    assert E.col("a").has_type(LongType).operand == "bigint"


def test_comparison_that_can_never_be_asked_is_refused_where_it_is_written() -> None:
    with pytest.raises(InvalidDefinition, match=r"use is_null\(\) or non_null\(\)"):
        E.col("a").equals(None)
    with pytest.raises(InvalidDefinition, match="cannot be compared with column 'b'"):
        E.count().gt_col("b")
    with pytest.raises(InvalidDefinition, match="null in an array"):
        E.col("a").array_contains(None)
