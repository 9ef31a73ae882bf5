"""Results that stop a job, combination of verdicts, and JSON of results."""

from __future__ import annotations

import itertools
import json

import pytest

from headgate.errors import ChecksFailed
from headgate.model.checks import (
    CheckResult,
    CheckStage,
    Verdict,
    blocking,
    check_result_from_json,
    met_by_all,
    met_by_any,
)

MET, UNMET, SILENT, UNKNOWN = Verdict.MET, Verdict.UNMET, Verdict.SILENT, Verdict.UNKNOWN


def a_result(name: str, *, passed: bool, on_error: str = "FAIL") -> CheckResult:
    return CheckResult(
        name=name,
        stage=CheckStage.POST,
        dataset="sales.orders",
        on_error=on_error,
        passed=passed,
        expectation="amount gt 0",
        reason="3 of 120 rows have amount <= 0",
        samples=({"amount": "-5", "note": None},),
    )


def test_stopping_of_mixed_results_names_only_failures_that_must_hold() -> None:
    results = [
        a_result("met", passed=True),
        a_result("warned", passed=False, on_error="WARN"),
        a_result("broken", passed=False),
        a_result("also broken", passed=False),
    ]
    assert [result.name for result in blocking(results)] == ["broken", "also broken"]
    assert blocking(results[:2]) == ()


def test_result_survives_json() -> None:
    result = a_result("positive", passed=False)
    assert check_result_from_json(json.loads(json.dumps(result.to_json()))) == result


@pytest.mark.parametrize(
    ("verdicts", "by_all", "by_any"),
    [
        ([], MET, UNMET),
        ([MET, MET], MET, MET),
        ([MET, UNMET], UNMET, MET),
        ([MET, SILENT], SILENT, MET),
        ([UNMET, SILENT], UNMET, SILENT),
        ([MET, UNKNOWN, SILENT], UNKNOWN, MET),
        ([UNMET, UNKNOWN, SILENT], UNMET, UNKNOWN),
    ],
)
def test_verdicts_combine_as_truth_with_unknowns_does(
    verdicts: list[Verdict], by_all: Verdict, by_any: Verdict
) -> None:
    assert met_by_all(verdicts) is by_all
    assert met_by_any(verdicts) is by_any


def test_negation_turns_all_into_any_and_back() -> None:
    for verdicts in itertools.product(Verdict, repeat=3):
        negated = [verdict.negated for verdict in verdicts]
        assert met_by_all(verdicts).negated is met_by_any(negated)


def test_only_what_is_unmet_or_unknown_does_not_pass() -> None:
    assert [verdict for verdict in Verdict if not verdict.passes] == [UNMET, UNKNOWN]


def test_error_of_failed_checks_lists_each_with_dataset_and_numbers() -> None:
    failed = [("s.orders", "positive", "3 of 9 rows have x <= 0"), ("s.days", "some", "count is 0")]
    error = ChecksFailed(before=True, failed=failed)
    assert "2 checks failed before the transform was called" in error.message
    assert "'positive' on s.orders: 3 of 9 rows have x <= 0" in error.message
    assert error.to_json()["failed"][1] == {
        "dataset": "s.days",
        "name": "some",
        "reason": "count is 0",
    }
