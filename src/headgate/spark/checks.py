"""Evaluates checks on a DataFrame, in as few passes over its rows as there can be.

One aggregation finds every number about rows, columns and properties; one more is made for each
grouping that a check names; what is said of the schema costs none. Only where something failed,
one last job looks at values. How nulls count is said in `headgate.transforms.expectations`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from headgate.model.checks import CheckResult, CheckStage
from headgate.model.jobspecs import CheckSpec
from headgate.spark.check_columns import Column, Columns
from headgate.spark.check_expressions import GroupExpressions, RowExpressions
from headgate.spark.check_plan import Measure, passes, plan
from headgate.spark.check_samples import take_samples
from headgate.spark.check_verdicts import Unmeasured, judge
from headgate.transforms.expected import expectation_from_json

# SQL's classes of errors that lie in the expression or in the data, not in the machinery.
_ASKED_WRONGLY = ("22", "42")
_BAD_PATTERN = "java.util.regex.PatternSyntaxException: "


def evaluate_checks(
    frame: Any, checks: Sequence[CheckSpec], *, dataset: str, stage: CheckStage
) -> tuple[CheckResult, ...]:
    """The result of each check on all rows of a DataFrame; none raises for what it looks at."""
    if not checks:
        return ()
    columns = columns_of(frame.schema)
    expectations = [expectation_from_json(dict(check.expectation)) for check in checks]
    steps = [plan(expectation, columns) for expectation in expectations]
    found: dict[Measure, Any] = {}
    for by, measures in passes(steps).items():
        found |= _measure(frame, RowExpressions(columns), by, measures)
    judged = [judge(step, found) for step in steps]
    culprits = {
        number: judgement.culprit
        for number, judgement in enumerate(judged)
        if judgement.culprit is not None and not judgement.verdict.passes
    }
    samples = take_samples(frame, columns, culprits)
    return tuple(
        CheckResult(
            name=check.name,
            stage=stage,
            dataset=dataset,
            on_error=check.on_error,
            passed=judgement.verdict.passes,
            expectation=str(expectation),
            reason=judgement.reason,
            samples=samples.get(number, ()),
        )
        for number, (check, expectation, judgement) in enumerate(
            zip(checks, expectations, judged, strict=True)
        )
    )


def unevaluated(
    checks: Sequence[CheckSpec], *, dataset: str, stage: CheckStage, reason: str
) -> tuple[CheckResult, ...]:
    """The results of checks on something that has no rows to look at: all failed."""
    return tuple(
        CheckResult(
            name=check.name,
            stage=stage,
            dataset=dataset,
            on_error=check.on_error,
            passed=False,
            expectation=str(expectation_from_json(dict(check.expectation))),
            reason=reason,
        )
        for check in checks
    )


def columns_of(schema: Any) -> Columns:
    """The columns of a Spark schema, structs with their fields."""
    return Columns(_fields(schema, ()))


def _fields(struct: Any, path: tuple[str, ...]) -> tuple[Column, ...]:
    return tuple(
        Column(
            path=(*path, field.name),
            type=field.dataType.simpleString(),
            fields=_fields(field.dataType, (*path, field.name))
            if field.dataType.typeName() == "struct"
            else (),
        )
        for field in struct.fields
    )


def _measure(
    frame: Any, rows: RowExpressions, by: tuple[str, ...], measures: Sequence[Measure]
) -> dict[Measure, Any]:
    """One pass; if Spark refuses one of the measures, each is asked on its own."""
    try:
        return dict(zip(measures, _aggregated(frame, rows, by, measures), strict=True))
    except (PySparkException, Py4JError) as error:
        reason = _asked_wrongly(error)
        if reason is None:
            raise
    if len(measures) == 1:
        return {measures[0]: Unmeasured(reason=f"Spark cannot evaluate it: {reason}")}
    found: dict[Measure, Any] = {}
    for measure in measures:
        found |= _measure(frame, rows, by, [measure])
    return found


def _aggregated(
    frame: Any, rows: RowExpressions, by: tuple[str, ...], measures: Sequence[Measure]
) -> list[Any]:
    if not by:
        return list(frame.agg(*map(rows.aggregate, measures)).collect()[0])
    conditions = [measure.condition for measure in measures if measure.condition is not None]
    groups = GroupExpressions(rows, by, conditions)
    return list(groups.frame(frame).agg(*map(groups.aggregate, measures)).collect()[0])


def _asked_wrongly(error: Exception) -> str | None:
    """What Spark says is wrong with an expression or a value; None if that is not the trouble."""
    text = str(error)
    # A pattern is compiled where the rows are, and its error comes back as an unknown one.
    if _BAD_PATTERN in text:
        return text.partition(_BAD_PATTERN)[2].splitlines()[0]
    state = error.getSqlState() if isinstance(error, PySparkException) else None
    if state is None or not state.startswith(_ASKED_WRONGLY):
        return None
    return text.splitlines()[0].partition(" SQLSTATE")[0]
