"""Judges what Spark found: the verdict on each step, and a sentence with the numbers."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from headgate.model.checks import Verdict, met_by_all, met_by_any
from headgate.spark.check_columns import shown
from headgate.spark.check_fitness import COMPARISONS
from headgate.spark.check_plan import (
    Combination,
    EachGroup,
    EachRow,
    Measure,
    Settled,
    Step,
    Unique,
    measures_of,
)
from headgate.transforms.expected import Expectation, Op, Subject, operand_value

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
