"""A look at rows and groups that failed checks: all of them in one Spark job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, TypeAlias

from pyspark.sql import functions

from headgate.spark.check_columns import Columns
from headgate.spark.check_expressions import (
    ROWS_OF_GROUP,
    GroupExpressions,
    RowExpressions,
    subjects_in,
)
from headgate.spark.check_fitness import names_in
from headgate.spark.check_plan import EachGroup, EachRow, Unique, measures_of

_SHOWN_CHARACTERS = 100
_SHOWN_COLUMNS = 8
# Types that have no order, by which the least and the greatest value could be found.
_UNORDERED = ("map<", "variant", "interval")

Culprit: TypeAlias = EachRow | EachGroup | Unique
Sample: TypeAlias = Mapping[str, str | None]


@dataclass(frozen=True, kw_only=True)
class _Glance:
    """What of a failed check is looked at: its number, which rows, which of their values."""

    number: int
    wrong: Any
    values: Mapping[str, Any]


def take_samples(
    frame: Any, columns: Columns, culprits: Mapping[int, Culprit]
) -> dict[int, tuple[Sample, ...]]:
    """Of each culprit's rows or groups, those with the least and the greatest values, as text."""
    if not culprits:
        return {}
    frames, names = [], {}
    for seen, glances in _passes(frame, columns, culprits):
        frames.append(_extremes(seen, glances))
        names.update({glance.number: list(glance.values) for glance in glances})
    samples: dict[int, list[Sample]] = {number: [] for number in culprits}
    for number, values in reduce(lambda one, other: one.unionAll(other), frames).collect():
        sample = dict(zip(names[number], map(_shortened, values), strict=True))
        if sample not in samples[number]:
            samples[number].append(sample)
    return {number: tuple(found) for number, found in samples.items()}


def _passes(
    frame: Any, columns: Columns, culprits: Mapping[int, Culprit]
) -> Iterator[tuple[Any, list[_Glance]]]:
    """What to look at, in the rows themselves and in each grouping of them."""
    rows = RowExpressions(columns)
    by_pass: dict[tuple[str, ...], dict[int, Culprit]] = {}
    for number, step in culprits.items():
        by_pass.setdefault(measures_of(step)[0].by, {})[number] = step
    for by, steps in by_pass.items():
        if not by:
            yield frame, [_glance_at_rows(n, step, rows, columns) for n, step in steps.items()]
            continue
        conditions = [step.condition for step in steps.values() if not isinstance(step, Unique)]
        groups = GroupExpressions(rows, by, conditions)
        yield (
            groups.frame(frame),
            [_glance_at_groups(n, step, groups) for n, step in steps.items()],
        )


def _glance_at_rows(number: int, step: Culprit, rows: RowExpressions, columns: Columns) -> _Glance:
    assert isinstance(step, EachRow), "only this looks at rows one by one"
    names = [columns.load(name).name for name in names_in(step.condition)]
    return _Glance(
        number=number,
        wrong=~rows.condition(step.condition),
        values={name: rows.column(name) for name in names[:_SHOWN_COLUMNS]},
    )


def _glance_at_groups(number: int, step: Culprit, groups: GroupExpressions) -> _Glance:
    keys = {name: functions.col(key) for key, name in groups.keys.items()}
    if isinstance(step, Unique):
        wrong = groups.repeated() | groups.null_key() if step.key else groups.repeated()
        measured = {"count(*)": functions.col(ROWS_OF_GROUP)}
    else:
        wrong = ~groups.condition(step.condition)
        measured = {
            str(replace(subject, group_by=())): functions.col(name)
            for name, subject in groups.properties.items()
            if subject in subjects_in(step.condition)
        }
    return _Glance(number=number, wrong=wrong, values=measured | keys)


def _extremes(frame: Any, glances: list[_Glance]) -> Any:
    """For each glance two rows: its number, and the values as texts."""
    seen = [
        pick(functions.when(glance.wrong, functions.struct(*_ordered(frame, glance))))
        for glance in glances
        for pick in (functions.max, functions.min)
    ]
    picked = [f"picked{number}" for number in range(len(seen))]
    aggregated = frame.agg(*(one.alias(name) for one, name in zip(seen, picked, strict=True)))
    rows = [
        functions.struct(
            functions.lit(glances[position // 2].number).alias("number"),
            _texts(name, len(glances[position // 2].values)).alias("texts"),
        )
        for position, name in enumerate(picked)
    ]
    return aggregated.select(functions.inline(functions.array(*rows)))


def _ordered(frame: Any, glance: _Glance) -> Iterator[Any]:
    """The values under names of their own; what has no order is ordered by its text."""
    values = list(glance.values.values())
    for number, field in enumerate(frame.select(*values).schema.fields):
        has_order = not any(word in field.dataType.simpleString() for word in _UNORDERED)
        value = values[number] if has_order else values[number].cast("string")
        yield value.alias(f"value{number}")


def _texts(picked: str, many: int) -> Any:
    fields = (functions.col(f"{picked}.value{number}") for number in range(many))
    return functions.array(
        *(functions.substring(field.cast("string"), 1, _SHOWN_CHARACTERS + 1) for field in fields)
    )


def _shortened(text: str | None) -> str | None:
    if text is None or len(text) <= _SHOWN_CHARACTERS:
        return text
    return text[:_SHOWN_CHARACTERS] + "…"
