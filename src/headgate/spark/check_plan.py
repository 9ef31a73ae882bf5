"""Plans the evaluation of checks from a schema alone, and judges the numbers that Spark computed.

An expectation becomes a step. Steps about rows, or about the same groups, are merged into one
condition where it can be tested on each row or group. Parts that the schema decides are settled.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from headgate.model.checks import Verdict, met_by_all, met_by_any
from headgate.spark import check_columns
from headgate.transforms.expectation_tree import Expectation, Op, Property, Subject, operand_value


class Count(enum.StrEnum):
    """A number besides the properties that users name."""

    GROUPS = "groups"
    # Rows, or groups, for which a condition is false.
    VIOLATIONS = "violations"
    # Groups of more than one row.
    REPEATED = "repeated"
    # Rows with a null among the columns that they are grouped by.
    NULL_KEYS = "null_keys"


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One number that Spark computes, in the pass over the groups `by`; equal ones only once."""

    metric: Count | Property
    by: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    condition: Expectation | None = field(default=None, hash=False)


@dataclass(frozen=True, kw_only=True)
class Settled:
    """Needs no measure."""

    verdict: Verdict
    reason: str


@dataclass(frozen=True, kw_only=True)
class Each:
    """Every row or, with columns to group by, every group of rows must meet the condition."""

    condition: Expectation
    by: tuple[str, ...] = ()


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
    """Verdicts of different kinds of steps, combined by `all`, `any` or `negate`."""

    op: Op
    parts: tuple[Step, ...]


Step: TypeAlias = Settled | Each | OneNumber | Unique | Combination
# Steps that single rows or groups can fail.
SampledStep: TypeAlias = Each | Unique


def plan(expectation: Expectation, columns: check_columns.Columns) -> Step:
    """Return the step that judges this expectation on data with these columns."""
    return _split(_step(expectation, columns))


def measures_of(step: Step) -> tuple[Measure, ...]:
    """Return the numbers that decide a step."""
    match step:
        case Each(by=by, condition=condition):
            return (
                Measure(metric=Count.GROUPS if by else Property.COUNT, by=_pass(by)),
                Measure(metric=Count.VIOLATIONS, by=_pass(by), condition=condition),
            )
        case OneNumber(expectation=expectation):
            subject = _subject(expectation)
            assert subject.property is not None
            columns = (subject.column,) if subject.column is not None else subject.group_by
            return (Measure(metric=subject.property, columns=columns),)
        case Unique(by=by, key=key):
            metrics: list[Count | Property] = [Property.COUNT, Count.GROUPS, Count.REPEATED]
            metrics += [Count.NULL_KEYS] if key else []
            return tuple(Measure(metric=metric, by=_pass(by)) for metric in metrics)
        case Combination(parts=parts):
            return tuple(measure for part in parts for measure in measures_of(part))
    return ()


def passes(steps: Iterable[Step]) -> dict[tuple[str, ...], list[Measure]]:
    """Return the measures by pass: all rows under `()`, and one pass for each grouping."""
    found: dict[tuple[str, ...], dict[Measure, None]] = {}
    for step in steps:
        for measure in measures_of(step):
            found.setdefault(measure.by, {})[measure] = None
    return {by: list(measures) for by, measures in found.items()}


def _pass(by: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(by)))


def _step(expectation: Expectation, columns: check_columns.Columns) -> Step:
    match expectation.op:
        case Op.TRUE:
            return Settled(verdict=Verdict.MET, reason="it always passes")
        case Op.FALSE:
            return Settled(verdict=Verdict.UNMET, reason="it always fails")
        case Op.ALL | Op.ANY:
            parts = [_step(part, columns) for part in expectation.parts]
            return _combined(expectation.op, parts)
        case Op.NEGATE:
            step = _step(expectation.parts[0], columns)
            if isinstance(step, Settled):
                return replace(step, verdict=step.verdict.negated)
            return _merged(Op.NEGATE, (step,)) or Combination(op=Op.NEGATE, parts=(step,))
    if expectation.op in check_columns.SCHEMA_OPS:
        verdict, reason = check_columns.judge_schema(expectation, columns)
        return Settled(verdict=verdict, reason=reason)
    wrong = columns.missing(
        check_columns.columns_named(expectation)
    ) or check_columns.type_mismatch(expectation, columns)
    if wrong is not None:
        return Settled(verdict=Verdict.UNKNOWN, reason=wrong)
    return _measured_step(expectation, columns)


def _measured_step(expectation: Expectation, columns: check_columns.Columns) -> Step:
    if expectation.op in {Op.IS_UNIQUE, Op.PRIMARY_KEY}:
        by = _schema_names(expectation.operand, columns)
        return Unique(by=by, key=expectation.op is Op.PRIMARY_KEY)
    subject = _subject(expectation)
    if subject.property is None:
        return Each(condition=expectation)
    # Without a column, group_by names the columns whose combinations are counted.
    counts_combinations = (
        subject.column is None and subject.property is Property.APPROX_DISTINCT_COUNT
    )
    if subject.group_by and not counts_combinations:
        return Each(by=_schema_names(subject.group_by, columns), condition=expectation)
    return OneNumber(expectation=expectation)


def _combined(op: Op, parts: Sequence[Step]) -> Step:
    """Combine steps; a settled part decides the whole, or is left out."""
    settled = [part for part in parts if isinstance(part, Settled)]
    open_parts = tuple(part for part in parts if not isinstance(part, Settled))
    verdict = _decide(op, settled)
    decisive = Verdict.UNMET if op is Op.ALL else Verdict.MET
    if not open_parts or verdict in {decisive, Verdict.UNKNOWN}:
        reasons = [part.reason for part in settled if part.verdict is verdict]
        return Settled(verdict=verdict, reason="; ".join(reasons) or "it has no parts")
    if len(open_parts) == 1:
        return open_parts[0]
    return _merged(op, open_parts) or Combination(op=op, parts=open_parts)


def _decide(op: Op, parts: Iterable[Settled | Judgement]) -> Verdict:
    decide = met_by_all if op is Op.ALL else met_by_any
    return decide([part.verdict for part in parts])


def _merged(op: Op, steps: tuple[Step, ...]) -> Each | None:
    """Return one step with the combined condition, if all are about rows or the same groups."""
    alike = [step for step in steps if isinstance(step, Each)]
    if len(alike) < len(steps) or len({_pass(step.by) for step in alike}) > 1:
        return None
    conditions = tuple(step.condition for step in alike)
    return replace(alike[0], condition=Expectation(op=op, parts=conditions))


def _split(step: Step) -> Step:
    """Count the parts of an outermost `all` separately, for clearer reasons."""
    if isinstance(step, Each) and step.condition.op is Op.ALL:
        parts = tuple(_split(replace(step, condition=part)) for part in step.condition.parts)
        return Combination(op=Op.ALL, parts=parts)
    if isinstance(step, Combination):
        return replace(step, parts=tuple(_split(part) for part in step.parts))
    return step


def _schema_names(names: Iterable[str], columns: check_columns.Columns) -> tuple[str, ...]:
    """Return the columns as the schema spells them, so that equal groupings are one."""
    return tuple(columns.load(name).name for name in names)


def _subject(expectation: Expectation) -> Subject:
    assert expectation.subject is not None, f"{expectation.op} has a subject"
    return expectation.subject


# Each with its opposite.
_SIGNS = {
    Op.GT: (">", "<="),
    Op.GTE: (">=", "<"),
    Op.LT: ("<", ">="),
    Op.LTE: ("<=", ">"),
    Op.EQUALS: ("=", "!="),
    Op.NOT_EQUALS: ("!=", "="),
}
_NEGATED_REASONS = {
    Verdict.MET: "it should not hold, but {}",
    Verdict.UNMET: "it does not hold, as expected: {}",
}


@dataclass(frozen=True, kw_only=True)
class Unmeasured:
    """Takes the place of a number that Spark could not compute."""

    reason: str


Found = Mapping[Measure, Any]


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """A verdict with its reason, and the step whose failing rows or groups are sampled."""

    verdict: Verdict
    reason: str
    failed: SampledStep | None = None


def judge(step: Step, found: Found) -> Judgement:
    """Judge a step by its measures."""
    match step:
        case Settled(verdict=verdict, reason=reason):
            return Judgement(verdict=verdict, reason=reason)
        case Combination():
            return _judge_combination(step, found)
    for measure in measures_of(step):
        if isinstance(value := found[measure], Unmeasured):
            return Judgement(verdict=Verdict.UNKNOWN, reason=value.reason)
    match step:
        case Each():
            return _judge_each(step, found)
        case Unique():
            return _judge_unique(step, found)
    return _judge_number(step.expectation, found[measures_of(step)[0]])


def _judge_each(step: Each, found: Found) -> Judgement:
    total, wrong = (found[measure] for measure in measures_of(step))
    units = f"groups by {', '.join(step.by)}" if step.by else "rows"
    have, has = _violation_phrases(step.condition)
    if wrong:
        reason = f"{wrong} of {total} {units} {has if wrong == 1 else have}"
        return Judgement(verdict=Verdict.UNMET, reason=reason, failed=step)
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
        return Judgement(verdict=Verdict.UNMET, reason="; ".join(wrong), failed=step)
    return Judgement(verdict=Verdict.MET, reason=f"{columns} differ in all {rows} rows")


def _judge_number(expectation: Expectation, value: Any) -> Judgement:
    named = str(expectation.subject)
    is_value = (
        f"{named} is {check_columns.format_value(value)}"
        if value is not None
        else f"{named} has no value"
    )
    verdict = _compare(expectation, value)
    if verdict is Verdict.UNMET:
        expected = _expected_phrase(expectation)
        return Judgement(verdict=verdict, reason=f"{is_value}, expected {expected}")
    return Judgement(verdict=verdict, reason=is_value)


def _compare(expectation: Expectation, value: Any) -> Verdict:
    match expectation.op:
        case Op.NON_NULL:
            holds = value is not None
        case Op.IS_NULL:
            holds = value is None
        case Op.IS_IN:
            holds = value in [operand_value(v) for v in expectation.operand]
        case op if value is not None:
            holds = check_columns.COMPARISONS[op](value, operand_value(expectation.operand))
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
    verdict = _decide(step.op, parts)
    deciding = [part for part in parts if part.verdict is verdict]
    reason = "; ".join(part.reason for part in deciding)
    if step.op is Op.ANY and verdict is Verdict.UNMET:
        reason = f"none of these holds: {reason}"
    failed = (part.failed for part in deciding if part.failed is not None)
    return Judgement(verdict=verdict, reason=reason, failed=next(failed, None))


def _violation_phrases(condition: Expectation) -> tuple[str, str]:
    """Return the predicate of rows that violate a condition, in plural and singular."""
    if condition.subject is None:
        return f"break {condition}", f"breaks {condition}"
    phrase = _violation_phrase(condition, replace(condition.subject, group_by=()))
    return f"have {phrase}", f"has {phrase}"


def _violation_phrase(expectation: Expectation, subject: Subject) -> str:
    operand = expectation.operand
    match expectation.op:
        case op if op in check_columns.COMPARISONS:
            return f"{subject} {_SIGNS[op][1]} {check_columns.format_value(operand_value(operand))}"
        case Op.NON_NULL:
            return f"{subject} null"
        case Op.IS_NULL:
            return f"{subject} not null"
        case Op.IS_IN:
            return f"{subject} not in {_listed(operand)}"
        case Op.RLIKE:
            return f"{subject} not matching {operand!r}"
        case Op.ARRAY_CONTAINS:
            return f"{subject} without {check_columns.format_value(operand_value(operand))}"
    least, most = operand
    size = f"from {least} to {most}" if most is not None else f"at least {least}"
    return f"{subject} of a size not {size}"


def _expected_phrase(expectation: Expectation) -> str:
    match expectation.op:
        case Op.NON_NULL:
            return "a value"
        case Op.IS_NULL:
            return "none"
        case Op.IS_IN:
            return f"one of {_listed(expectation.operand)}"
    operand = operand_value(expectation.operand)
    return f"{_SIGNS[expectation.op][0]} {check_columns.format_value(operand)}"


def _listed(operands: list[Any]) -> str:
    return (
        f"({', '.join(check_columns.format_value(operand_value(operand)) for operand in operands)})"
    )
