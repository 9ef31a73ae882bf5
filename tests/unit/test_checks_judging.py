"""Measured numbers become a verdict and a message."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pytest

from headgate.model.checks import Verdict
from headgate.spark.check_columns import Column, Columns
from headgate.spark.check_plan import Judgement, Unmeasured, judge, measures_of, plan
from headgate.transforms import expectations as E  # noqa: N812  (as users write it)
from headgate.transforms.expectation_tree import Expectation

COLUMNS = Columns(
    [
        Column(path=("id",), type="bigint"),
        Column(path=("name",), type="string"),
        Column(path=("day",), type="date"),
        Column(path=("tags",), type="array<string>"),
    ]
)
DAY = datetime.date(2026, 1, 2)


def judged(expectation: Expectation, *numbers: Any) -> Judgement:
    """Judge an expectation whose measures, in order, have these values."""
    step = plan(expectation, COLUMNS)
    return judge(step, dict(zip(dict.fromkeys(measures_of(step)), numbers, strict=True)))


@pytest.mark.parametrize(
    ("expectation", "reason"),
    [
        (E.col("id").gt(0), "have id <= 0"),
        (E.col("id").gte(0), "have id < 0"),
        (E.col("id").lt_col("id"), "have id >= id"),
        (E.col("id").equals(1.5), "have id != 1.5"),
        (E.col("day").not_equals(DAY), "have day = 2026-01-02"),
        (E.col("day").lte(E.now(-datetime.timedelta(days=1))), "have day > now - 86400 s"),
        (E.col("id").non_null(), "have id null"),
        (E.col("id").is_null(), "have id not null"),
        (E.col("name").is_in("a", None), "have name not in ('a', None)"),
        (E.col("name").rlike("^x"), "have name not matching '^x'"),
        (E.col("tags").array_contains("x"), "have tags without 'x'"),
        (E.col("tags").array_size(1, 2), "have tags of a size not from 1 to 2"),
        (E.col("tags").array_size(1), "have tags of a size not at least 1"),
        (E.any(E.col("id").gt(0), E.col("name").is_null()), "break any(id gt 0, name is_null)"),
    ],
    ids=str,
)
def test_failed_rows_are_told_by_what_they_have(expectation: Expectation, reason: str) -> None:
    judgement = judged(expectation, 120, 3)
    assert judgement.verdict is Verdict.UNMET
    assert judgement.reason == f"3 of 120 rows {reason}"
    assert judgement.failed is not None


def test_rows_without_violation_are_met_and_counted() -> None:
    judgement = judged(E.col("id").gt(0), 120, 0)
    assert judgement == Judgement(
        verdict=Verdict.MET, reason="none of 120 rows has id <= 0", failed=None
    )


def test_failed_groups_are_told_by_their_columns() -> None:
    assert judged(E.group_by("name", "id").count().lte(5), 40, 1).reason == (
        "1 of 40 groups by name, id has count(*) > 5"
    )


@pytest.mark.parametrize(
    ("numbers", "reason"),
    [
        ((9, 9, 0, 0), "id differ in all 9 rows"),
        ((9, 7, 2, 0), "2 of 7 values of id are in more than one row (9 rows in all)"),
        ((9, 9, 0, 1), "1 of 9 rows has null in id"),
    ],
)
def test_key_is_judged_by_repeated_values_and_nulls(numbers: tuple[int, ...], reason: str) -> None:
    judgement = judged(E.primary_key("id"), *numbers)
    assert judgement.reason == reason
    assert judgement.verdict.passes is (numbers[2:] == (0, 0))


@pytest.mark.parametrize(
    ("expectation", "value", "verdict", "reason"),
    [
        (E.count().gte(1), 0, Verdict.UNMET, "count(*) is 0, expected >= 1"),
        (E.count().gte(1), 5, Verdict.MET, "count(*) is 5"),
        (E.col("id").sum().lt(0.5), Decimal("0.50"), Verdict.UNMET, "sum(id) is 0.50, expected <"),
        (E.col("id").sum().lt(1), None, Verdict.SILENT, "sum(id) has no value"),
        (E.col("id").sum().non_null(), None, Verdict.UNMET, "has no value, expected a value"),
        (E.col("id").sum().is_null(), None, Verdict.MET, "sum(id) has no value"),
        (E.count().is_in(1, 2), 3, Verdict.UNMET, "count(*) is 3, expected one of (1, 2)"),
        (E.col("id").null_percentage().lt(0.1), 1 / 3, Verdict.UNMET, "is 0.333333, expected"),
        (
            E.count().gt(0),
            Unmeasured(reason="long overflow"),
            Verdict.UNKNOWN,
            "long overflow",
        ),
    ],
    ids=str,
)
def test_number_is_compared_and_told(
    expectation: Expectation, value: Any, verdict: Verdict, reason: str
) -> None:
    judgement = judged(expectation, value)
    assert judgement.verdict is verdict
    assert reason in judgement.reason


def test_all_tells_every_part_that_failed_and_no_other() -> None:
    both = E.all(E.col("id").gt(0), E.col("name").non_null(), E.count().gt(1))
    assert judged(both, 9, 2, 1).reason == "2 of 9 rows have id <= 0; 1 of 9 rows has name null"


def test_any_of_unlike_levels_passes_by_one_and_fails_with_all_reasons() -> None:
    either = E.any(E.col("id").gt(0), E.primary_key("id"))
    assert judged(either, 9, 2, 9, 9, 0, 0).verdict is Verdict.MET
    assert judged(either, 9, 2, 9, 8, 1, 0).reason.startswith(
        "none of these holds: 2 of 9 rows have id <= 0; 1 of 8 values"
    )


def test_negation_of_a_whole_says_what_it_found() -> None:
    repeated = E.negate(E.primary_key("id"))
    assert judged(repeated, 9, 9, 0, 0).verdict is Verdict.UNMET
    assert judged(repeated, 9, 9, 0, 0).reason.startswith("it should not hold, but id differ")
    assert judged(repeated, 9, 8, 1, 0).verdict is Verdict.MET
