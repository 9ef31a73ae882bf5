"""Spark queries for checks, and the number of passes; without Spark."""

from __future__ import annotations

import pytest

from headgate.model.checks import Verdict
from headgate.spark.check_columns import Column, Columns
from headgate.spark.check_plan import (
    Combination,
    Count,
    Each,
    Measure,
    OneNumber,
    Settled,
    Step,
    Unique,
    passes,
    plan,
)
from headgate.transforms import expectations as E  # noqa: N812  (as users write it)
from headgate.transforms.expectation_tree import Expectation, Op, Property

COLUMNS = Columns(
    [
        Column(path=("id",), type="bigint"),
        Column(path=("name",), type="string"),
        Column(path=("amount",), type="decimal(10,2)"),
        Column(path=("tags",), type="array<string>"),
    ]
)
POSITIVE = E.col("amount").gt(0)
NAMED = E.col("name").non_null()


def planned(expectation: Expectation) -> Step:
    return plan(expectation, COLUMNS)


@pytest.mark.parametrize(
    ("expectation", "step"),
    [
        (POSITIVE, Each(condition=POSITIVE)),
        (E.group_by("name").col("amount").gt(0), None),
        (E.count().gte(1), OneNumber(expectation=E.count().gte(1))),
        (E.col("amount").sum().gt(1), OneNumber(expectation=E.col("amount").sum().gt(1))),
        (E.primary_key("id"), Unique(by=("id",), key=True)),
        (E.group_by("NAME", "id").is_unique(), Unique(by=("name", "id"), key=False)),
    ],
    ids=str,
)
def test_expectation_becomes_the_step_of_its_level(
    expectation: Expectation, step: Step | None
) -> None:
    assert planned(expectation) == (step or Each(condition=expectation))


def test_property_of_groups_is_asked_of_each_group() -> None:
    few = E.group_by("name").count().lte(5)
    assert planned(few) == Each(by=("name",), condition=few)
    assert planned(E.approx_distinct_count("id", "name").gt(3)) == OneNumber(
        expectation=E.approx_distinct_count("id", "name").gt(3)
    )


def test_all_of_rows_is_counted_apart_and_any_of_rows_together() -> None:
    assert planned(E.all(POSITIVE, NAMED)) == Combination(
        op=Op.ALL, parts=(Each(condition=POSITIVE), Each(condition=NAMED))
    )
    either = E.any(POSITIVE, E.negate(NAMED))
    assert planned(either) == Each(condition=either)


def test_combination_of_unlike_levels_settles_each_part_first() -> None:
    step = planned(E.any(POSITIVE, E.count().equals(0)))
    assert isinstance(step, Combination)
    assert isinstance(step.parts[0], Each) and not step.parts[0].by
    assert isinstance(step.parts[1], OneNumber)
    other_groups = E.any(E.group_by("id").count().gt(1), E.group_by("name").count().gt(1))
    assert isinstance(planned(other_groups), Combination)
    same_groups = E.any(E.group_by("id").count().gt(1), E.group_by("ID").col("amount").sum().gt(1))
    merged = planned(same_groups)
    assert isinstance(merged, Each) and merged.by == ("id",)


def test_negated_uniqueness_is_about_the_whole_and_not_about_each_group() -> None:
    step = planned(E.negate(E.primary_key("id")))
    assert step == Combination(op=Op.NEGATE, parts=(Unique(by=("id",), key=True),))


@pytest.mark.parametrize(
    ("expectation", "verdict"),
    [
        (E.true(), Verdict.MET),
        (E.negate(E.true()), Verdict.UNMET),
        (E.all(), Verdict.MET),
        (E.any(), Verdict.UNMET),
        (E.any(E.true(), POSITIVE), Verdict.MET),
        (E.all(E.false(), POSITIVE), Verdict.UNMET),
        (E.any(E.negate(E.col("x").exists()), E.col("x").gt(0)), Verdict.MET),
        (E.all(E.col("x").exists(), E.col("x").gt(0)), Verdict.UNMET),
    ],
    ids=str,
)
def test_what_the_schema_decides_is_settled_without_a_pass(
    expectation: Expectation, verdict: Verdict
) -> None:
    step = planned(expectation)
    assert isinstance(step, Settled)
    assert step.verdict is verdict
    assert passes([step]) == {}


def test_constant_that_decides_nothing_falls_out() -> None:
    assert planned(E.any(E.false(), POSITIVE)) == Each(condition=POSITIVE)
    assert planned(E.all(E.col("id").exists(), POSITIVE)) == Each(condition=POSITIVE)


@pytest.mark.parametrize(
    ("expectation", "reason"),
    [
        (E.col("amuont").gt(0), "no column 'amuont'; the columns are id, name, amount, tags"),
        (E.col("amount").gt_col("x"), "no column 'x'"),
        (E.group_by("x").count().gt(1), "no column 'x'"),
        (E.primary_key("id", "x"), "no column 'x'"),
        (E.negate(E.col("x").gt(0)), "no column 'x'"),
        (E.any(E.col("x").gt(0), NAMED), "no column 'x'"),
        (E.col("name").gt(0), "name is string, which cannot be compared with 0"),
        (E.col("name").is_in("a", 1), "name is string, which cannot be compared with 1"),
        (E.col("id").gt_col("name"), "id is bigint and name is string: they cannot be compared"),
        (E.col("id").rlike("^x"), "id is bigint, and only text is matched"),
        (E.col("name").sum().gt(0), "name is string, and sum needs numbers"),
        (E.count().equals("1"), "count(*) is double, which cannot be compared with '1'"),
        (E.count().rlike("1"), "count(*) is a number, which does not support rlike"),
        (E.col("id").array_size(1), "id is bigint, not an array"),
        (E.col("tags").array_contains(1), "tags is array<string>, which cannot be compared with 1"),
    ],
    ids=str,
)
def test_what_cannot_be_asked_is_unknown_and_says_why(
    expectation: Expectation, reason: str
) -> None:
    step = planned(expectation)
    assert isinstance(step, Settled)
    assert step.verdict is Verdict.UNKNOWN
    assert reason in step.reason


def test_many_checks_need_one_pass_over_rows_and_one_for_each_grouping() -> None:
    steps = [
        planned(expectation)
        for expectation in (
            E.all(POSITIVE, NAMED),
            POSITIVE,
            E.col("amount").sum().gt(0),
            E.col("amount").sum().lt(9),
            E.count().gt(1),
            E.schema().contains({"id": "bigint"}),
            E.primary_key("id", "name"),
            E.group_by("Name", "ID").count().lt(3),
            E.group_by("name").is_unique(),
        )
    ]
    asked = passes(steps)
    assert set(asked) == {(), ("id", "name"), ("name",)}
    assert asked[()] == [
        Measure(metric=Property.COUNT),
        Measure(metric=Count.VIOLATIONS, condition=POSITIVE),
        Measure(metric=Count.VIOLATIONS, condition=NAMED),
        Measure(metric=Property.SUM, columns=("amount",)),
    ]
