"""Decides, from a schema alone, what Spark is asked for checks, and in which pass.

An expectation becomes a step. Steps that look at rows, or at the same groups, melt into one as long
as that can be asked of each row or group; what is known from the schema is settled at once.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from headgate.model.checks import Verdict, met_by_all, met_by_any
from headgate.spark.check_columns import Columns
from headgate.spark.check_fitness import names_in, unfit
from headgate.spark.check_schema import OPS as SCHEMA_OPS
from headgate.spark.check_schema import judge_schema
from headgate.transforms.expected import Expectation, Op, Property, Subject


class Figure(enum.StrEnum):
    """A number besides those that users measure."""

    ROWS = "rows"
    GROUPS = "groups"
    # Rows, or groups, for which a condition is false.
    VIOLATIONS = "violations"
    # Groups of more than one row.
    REPEATED = "repeated"
    # Rows with a null among the columns that they are grouped by.
    NULL_KEYS = "null_keys"


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One number that Spark is asked for; `by` says in which pass, equal ones are asked once."""

    figure: Figure | Property
    by: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    condition: Expectation | None = field(default=None, hash=False)


@dataclass(frozen=True, kw_only=True)
class Settled:
    """Nothing need be asked."""

    verdict: Verdict
    reason: str


@dataclass(frozen=True, kw_only=True)
class EachRow:
    """Every row must meet the condition."""

    condition: Expectation


@dataclass(frozen=True, kw_only=True)
class EachGroup:
    """Every group of rows must meet the condition."""

    by: tuple[str, ...]
    condition: Expectation


@dataclass(frozen=True, kw_only=True)
class OneNumber:
    """A property of all rows is compared."""

    expectation: Expectation


@dataclass(frozen=True, kw_only=True)
class Unique:
    """No two rows share these columns; in a key, none of them is null either."""

    by: tuple[str, ...]
    key: bool


@dataclass(frozen=True, kw_only=True)
class Combination:
    """Verdicts of unlike steps, combined by `all`, `any` or `negate`."""

    op: Op
    parts: tuple[Step, ...]


Step: TypeAlias = Settled | EachRow | EachGroup | OneNumber | Unique | Combination


def plan(expectation: Expectation, columns: Columns) -> Step:
    """What has to be found out to judge this expectation of data with these columns."""
    return _apart(_step(expectation, columns))


def measures_of(step: Step) -> tuple[Measure, ...]:
    """All the numbers on which the step is judged."""
    match step:
        case EachRow(condition=condition):
            return Measure(figure=Figure.ROWS), violations(condition)
        case EachGroup(by=by, condition=condition):
            return Measure(figure=Figure.GROUPS, by=_pass(by)), violations(condition, by)
        case OneNumber(expectation=expectation):
            return (measure_of(_subject(expectation)),)
        case Unique(by=by, key=key):
            figures = [Figure.ROWS, Figure.GROUPS, Figure.REPEATED]
            figures += [Figure.NULL_KEYS] if key else []
            return tuple(Measure(figure=figure, by=_pass(by)) for figure in figures)
        case Combination(parts=parts):
            return tuple(measure for part in parts for measure in measures_of(part))
    return ()


def passes(steps: Iterable[Step]) -> dict[tuple[str, ...], list[Measure]]:
    """The measures by pass: all rows under `()`, and one pass for each grouping, in any order."""
    found: dict[tuple[str, ...], dict[Measure, None]] = {}
    for step in steps:
        for measure in measures_of(step):
            found.setdefault(measure.by, {})[measure] = None
    return {by: list(measures) for by, measures in found.items()}


def measure_of(subject: Subject) -> Measure:
    """The number behind a property of all rows."""
    assert subject.property is not None
    if subject.property is Property.COUNT:
        return Measure(figure=Figure.ROWS)
    columns = (subject.column,) if subject.column is not None else subject.group_by
    return Measure(figure=subject.property, columns=columns)


def violations(condition: Expectation, by: Iterable[str] = ()) -> Measure:
    return Measure(figure=Figure.VIOLATIONS, by=_pass(by), condition=condition)


def _pass(by: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(by)))


def _step(expectation: Expectation, columns: Columns) -> Step:
    match expectation.op:
        case Op.TRUE:
            return Settled(verdict=Verdict.MET, reason="it always passes")
        case Op.FALSE:
            return Settled(verdict=Verdict.UNMET, reason="it always fails")
        case Op.ALL | Op.ANY:
            parts = [_step(part, columns) for part in expectation.parts]
            return _combined(expectation.op, parts)
        case Op.NEGATE:
            return _negated(_step(expectation.parts[0], columns))
    if expectation.op in SCHEMA_OPS:
        verdict, reason = judge_schema(expectation, columns)
        return Settled(verdict=verdict, reason=reason)
    wrong = columns.lacking(names_in(expectation)) or unfit(expectation, columns)
    if wrong is not None:
        return Settled(verdict=Verdict.UNKNOWN, reason=wrong)
    return _asked(expectation, columns)


def _asked(expectation: Expectation, columns: Columns) -> Step:
    if expectation.op in {Op.IS_UNIQUE, Op.PRIMARY_KEY}:
        by = _spelled(expectation.operand, columns)
        return Unique(by=by, key=expectation.op is Op.PRIMARY_KEY)
    subject = _subject(expectation)
    if subject.property is None:
        return EachRow(condition=expectation)
    # Without a column, group_by names the columns whose combinations are counted.
    counts_combinations = (
        subject.column is None and subject.property is Property.APPROX_DISTINCT_COUNT
    )
    if subject.group_by and not counts_combinations:
        return EachGroup(by=_spelled(subject.group_by, columns), condition=expectation)
    return OneNumber(expectation=expectation)


def _combined(op: Op, parts: Sequence[Step]) -> Step:
    """One step for all of them; what is settled already decides it, or falls out."""
    settled = [part for part in parts if isinstance(part, Settled)]
    open_parts = tuple(part for part in parts if not isinstance(part, Settled))
    decide = met_by_all if op is Op.ALL else met_by_any
    verdict = decide([part.verdict for part in settled])
    decisive = Verdict.UNMET if op is Op.ALL else Verdict.MET
    if not open_parts or verdict in {decisive, Verdict.UNKNOWN}:
        reasons = [part.reason for part in settled if part.verdict is verdict]
        return Settled(verdict=verdict, reason="; ".join(reasons) or "it has no parts")
    if len(open_parts) == 1:
        return open_parts[0]
    return _melted(op, open_parts) or Combination(op=op, parts=open_parts)


def _negated(step: Step) -> Step:
    if isinstance(step, Settled):
        return replace(step, verdict=step.verdict.negated)
    return _melted(Op.NEGATE, (step,)) or Combination(op=Op.NEGATE, parts=(step,))


def _melted(op: Op, steps: tuple[Step, ...]) -> EachRow | EachGroup | None:
    """The same step with the combined condition, if all look at rows or at the same groups."""
    conditions = tuple(step.condition for step in steps if isinstance(step, EachRow | EachGroup))
    groupings = {_pass(step.by) if isinstance(step, EachGroup) else () for step in steps}
    if len(conditions) < len(steps) or len(groupings) > 1:
        return None
    first = steps[0]
    assert isinstance(first, EachRow | EachGroup)
    return replace(first, condition=Expectation(op=op, parts=conditions))


def _apart(step: Step) -> Step:
    """What every row or group must meet altogether is counted apart, for clearer reasons."""
    if isinstance(step, EachRow | EachGroup) and step.condition.op is Op.ALL:
        parts = tuple(_apart(replace(step, condition=part)) for part in step.condition.parts)
        return Combination(op=Op.ALL, parts=parts)
    if isinstance(step, Combination):
        return replace(step, parts=tuple(_apart(part) for part in step.parts))
    return step


def _spelled(names: Iterable[str], columns: Columns) -> tuple[str, ...]:
    """The columns as the schema spells them, so that equal groupings are one."""
    return tuple(columns.load(name).name for name in names)


def _subject(expectation: Expectation) -> Subject:
    assert expectation.subject is not None, f"{expectation.op} looks at something"
    return expectation.subject
