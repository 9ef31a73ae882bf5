"""Decides, from a schema alone, what Spark is asked for checks, and in which pass.

An expectation becomes a step. Steps that look at rows, or at the same groups, melt into one as long
as that can be asked of each row or group; what is known from the schema is settled at once.
"""

from __future__ import annotations

import enum
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from headgate.model.checks import Verdict, met_by_all, met_by_any
from headgate.spark.check_columns import (
    COMPARISONS,
    Columns,
    judge_schema,
    names_in,
    shown,
    unfit,
)
from headgate.spark.check_columns import (
    OPS as SCHEMA_OPS,
)
from headgate.transforms.expectation_tree import Expectation, Op, Property, Subject, operand_value


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


# Judges what Spark found: the verdict on each step, and a sentence with the numbers.

_COMPARE = {
    Op.GT: operator.gt,
    Op.GTE: operator.ge,
    Op.LT: operator.lt,
    Op.LTE: operator.le,
    Op.EQUALS: operator.eq,
    Op.NOT_EQUALS: operator.ne,
}
_SIGNS = {
    Op.GT: ">",
    Op.GTE: ">=",
    Op.LT: "<",
    Op.LTE: "<=",
    Op.EQUALS: "=",
    Op.NOT_EQUALS: "!=",
}
_OPPOSITE = {
    Op.GT: Op.LTE,
    Op.GTE: Op.LT,
    Op.LT: Op.GTE,
    Op.LTE: Op.GT,
    Op.EQUALS: Op.NOT_EQUALS,
    Op.NOT_EQUALS: Op.EQUALS,
}
_NEGATED_REASONS = {
    Verdict.MET: "it should not hold, but {}",
    Verdict.UNMET: "it does not hold, as expected: {}",
}


@dataclass(frozen=True, kw_only=True)
class Unmeasured:
    """In place of a number: why Spark could not find it."""

    reason: str


Found = Mapping[Measure, Any]


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """A verdict with its reason, and the step whose rows or groups are worth a look."""

    verdict: Verdict
    reason: str
    culprit: EachRow | EachGroup | Unique | None = None


def judge(step: Step, found: Found) -> Judgement:
    """The verdict on a step whose measures have been found."""
    match step:
        case Settled(verdict=verdict, reason=reason):
            return Judgement(verdict=verdict, reason=reason)
        case Combination():
            return _judge_combination(step, found)
    for measure in measures_of(step):
        if isinstance(value := found[measure], Unmeasured):
            return Judgement(verdict=Verdict.UNKNOWN, reason=value.reason)
    match step:
        case EachRow() | EachGroup():
            return _judge_each(step, found)
        case Unique():
            return _judge_unique(step, found)
    return _judge_number(step.expectation, found[measures_of(step)[0]])


def _judge_each(step: EachRow | EachGroup, found: Found) -> Judgement:
    total, wrong = (found[measure] for measure in measures_of(step))
    units = "rows" if isinstance(step, EachRow) else f"groups by {', '.join(step.by)}"
    have, has = _broken(step.condition)
    if wrong:
        reason = f"{wrong} of {total} {units} {has if wrong == 1 else have}"
        return Judgement(verdict=Verdict.UNMET, reason=reason, culprit=step)
    return Judgement(verdict=Verdict.MET, reason=f"none of {total} {units} {has}")


def _judge_unique(step: Unique, found: Found) -> Judgement:
    rows, groups, repeated, *nulls = (found[measure] for measure in measures_of(step))
    columns = ", ".join(step.by)
    wrong = []
    if repeated:
        wrong.append(
            f"{repeated} of {groups} values of {columns} {'is' if repeated == 1 else 'are'} in "
            f"more than one row ({rows} rows in all)"
        )
    if nulls and nulls[0]:
        has = "has" if nulls[0] == 1 else "have"
        wrong.append(f"{nulls[0]} of {rows} rows {has} null in {columns}")
    if wrong:
        return Judgement(verdict=Verdict.UNMET, reason="; ".join(wrong), culprit=step)
    return Judgement(verdict=Verdict.MET, reason=f"{columns} differ in all {rows} rows")


def _judge_number(expectation: Expectation, value: Any) -> Judgement:
    named = str(expectation.subject)
    is_value = f"{named} is {shown(value)}" if value is not None else f"{named} has no value"
    verdict = _compared(expectation, value)
    if verdict is Verdict.UNMET:
        return Judgement(verdict=verdict, reason=f"{is_value}, expected {_wanted(expectation)}")
    return Judgement(verdict=verdict, reason=is_value)


def _compared(expectation: Expectation, value: Any) -> Verdict:
    match expectation.op:
        case Op.NON_NULL:
            holds = value is not None
        case Op.IS_NULL:
            holds = value is None
        case Op.IS_IN:
            holds = value in [operand_value(v) for v in expectation.operand]
        case op if value is not None:
            holds = _COMPARE[op](value, operand_value(expectation.operand))
        case _:
            return Verdict.SILENT
    return Verdict.MET if holds else Verdict.UNMET


def _judge_combination(step: Combination, found: Found) -> Judgement:
    parts = [judge(part, found) for part in step.parts]
    if step.op is Op.NEGATE:
        inner = parts[0]
        return Judgement(
            verdict=inner.verdict.negated,
            reason=_NEGATED_REASONS.get(inner.verdict, "{}").format(inner.reason),
        )
    decide = met_by_all if step.op is Op.ALL else met_by_any
    verdict = decide([part.verdict for part in parts])
    told = [part for part in parts if part.verdict is verdict]
    reason = "; ".join(part.reason for part in told)
    if step.op is Op.ANY and verdict is Verdict.UNMET:
        reason = f"none of these holds: {reason}"
    culprits = (part.culprit for part in told if part.culprit is not None)
    return Judgement(verdict=verdict, reason=reason, culprit=next(culprits, None))


def _broken(condition: Expectation) -> tuple[str, str]:
    """How rows that break a condition are spoken of, in plural and singular."""
    if condition.subject is None:
        return f"break {condition}", f"breaks {condition}"
    subject = replace(condition.subject, group_by=())
    words = _unmet(condition, subject)
    return f"have {words}", f"has {words}"


def _unmet(expectation: Expectation, subject: Subject) -> str:
    operand = expectation.operand
    match expectation.op:
        case op if op in COMPARISONS:
            return f"{subject} {_SIGNS[_OPPOSITE[op]]} {shown(operand_value(operand))}"
        case Op.NON_NULL:
            return f"{subject} null"
        case Op.IS_NULL:
            return f"{subject} not null"
        case Op.IS_IN:
            return f"{subject} not in {_listed(operand)}"
        case Op.RLIKE:
            return f"{subject} not matching {operand!r}"
        case Op.ARRAY_CONTAINS:
            return f"{subject} without {shown(operand_value(operand))}"
    least, most = operand
    return f"{subject} of a size not {_range(least, most)}"


def _wanted(expectation: Expectation) -> str:
    match expectation.op:
        case Op.NON_NULL:
            return "a value"
        case Op.IS_NULL:
            return "none"
        case Op.IS_IN:
            return f"one of {_listed(expectation.operand)}"
    return f"{_SIGNS[expectation.op]} {shown(operand_value(expectation.operand))}"


def _listed(operands: list[Any]) -> str:
    return f"({', '.join(shown(operand_value(operand)) for operand in operands)})"


def _range(least: int, most: int | None) -> str:
    return f"from {least} to {most}" if most is not None else f"at least {least}"
