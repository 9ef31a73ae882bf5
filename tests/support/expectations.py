"""Expectations evaluated in plain Python, row by row, to compare Spark's results with.

Written from the documentation of `headgate.transforms.expectations`; shares no code with the
evaluator.
"""

from __future__ import annotations

import operator
import random
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headgate.transforms import expectations as E  # noqa: N812  (as users write it)
from headgate.transforms.expectation_tree import Expectation, Op, Property, Subject

Row = Mapping[str, Any]
Truth = bool | None

_COMPARE = {
    Op.GT: operator.gt,
    Op.GTE: operator.ge,
    Op.LT: operator.lt,
    Op.LTE: operator.le,
    Op.EQUALS: operator.eq,
    Op.NOT_EQUALS: operator.ne,
}
_COMBINATORS = {Op.ALL, Op.ANY, Op.NEGATE}


def passes_in_python(expectation: Expectation, rows: Sequence[Row]) -> bool:
    """Return True if data of these rows passes the expectation."""
    return _whole(expectation, rows) is not False


def random_expectation(source: random.Random, depth: int = 3) -> Expectation:
    """Return a tree over the columns `a` and `b` (numbers), `s` (text) and `k` (a few keys)."""
    kind = source.choice(["all", "any", "negate"]) if depth and source.random() < 0.6 else "leaf"
    match kind:
        case "leaf":
            return source.choice(_LEAVES)(source.randint(-1, 3))
        case "negate":
            return E.negate(random_expectation(source, depth - 1))
    parts = [random_expectation(source, depth - 1) for _ in range(source.randint(1, 3))]
    return E.all(*parts) if kind == "all" else E.any(*parts)


_LEAVES: list[Callable[[int], Expectation]] = [
    lambda n: E.col("a").gt(n),
    lambda n: E.col("b").lte(n),
    lambda n: E.col("a").not_equals(n),
    lambda _: E.col("a").lt_col("b"),
    lambda _: E.col("a").non_null(),
    lambda _: E.col("s").is_null(),
    lambda n: E.col("a").is_in(n, n + 1),
    lambda n: E.col("b").is_in(n, None),
    lambda _: E.col("s").rlike("^x"),
    lambda n: E.group_by("k").count().gt(n),
    lambda n: E.group_by("k").col("a").sum().gte(n),
    lambda n: E.group_by("k").col("b").null_count().lte(n),
    lambda n: E.group_by("s").col("a").distinct_count().lte(n),
    lambda n: E.col("a").sum().gt(n),
    lambda n: E.count().gt(n),
    lambda _: E.group_by("k", "a").is_unique(),
    lambda _: E.primary_key("a"),
    lambda _: E.col("a").exists(),
    lambda _: E.false(),
]


def _whole(expectation: Expectation, rows: Sequence[Row]) -> Truth:
    level = _level(expectation)
    if level == "rows":
        return all(_single(expectation, [row]) is not False for row in rows)
    if isinstance(level, tuple):
        groups = _grouped(rows, level).values()
        return all(_single(expectation, group) is not False for group in groups)
    if expectation.op in _COMBINATORS:
        return _combined(expectation.op, [_whole(part, rows) for part in expectation.parts])
    return _single(expectation, rows)


def _level(expectation: Expectation) -> Any:
    """Return `rows`, the columns of groups, None for a constant, or `whole`."""
    if expectation.op in _COMBINATORS:
        levels = {_level(part) for part in expectation.parts} - {None}
        return (levels.pop() if levels else None) if len(levels) < 2 else "whole"
    if expectation.op in {Op.TRUE, Op.FALSE, Op.EXISTS}:
        return None
    subject = expectation.subject
    if subject is None:
        return "whole"
    return subject.group_by or ("whole" if subject.property else "rows")


def _single(expectation: Expectation, rows: Sequence[Row]) -> Truth:
    """Evaluate on one row, one group of rows, or all of them."""
    match expectation.op:
        case op if op in _COMBINATORS:
            return _combined(op, [_single(part, rows) for part in expectation.parts])
        case Op.TRUE | Op.EXISTS:
            return True
        case Op.FALSE:
            return False
        case Op.IS_UNIQUE:
            return all(len(group) == 1 for group in _grouped(rows, expectation.operand).values())
        case Op.PRIMARY_KEY:
            groups = _grouped(rows, expectation.operand)
            return all(len(group) == 1 and None not in key for key, group in groups.items())
    assert expectation.subject is not None
    return _compared(expectation, _value(expectation.subject, rows), rows)


def _compared(expectation: Expectation, value: Any, rows: Sequence[Row]) -> Truth:
    operand = expectation.operand
    match expectation.op:
        case Op.NON_NULL:
            return value is not None
        case Op.IS_NULL:
            return value is None
        case Op.IS_IN:
            return value in operand
    if isinstance(operand, dict):
        operand = rows[0][operand["column"]]
    if value is None or operand is None:
        return None
    if expectation.op is Op.RLIKE:
        return re.search(operand, value) is not None
    return _COMPARE[expectation.op](value, operand)  # type: ignore[no-any-return]


def _value(subject: Subject, rows: Sequence[Row]) -> Any:
    if subject.property is Property.COUNT:
        return len(rows)
    values = [row[subject.column or ""] for row in rows]
    there = [value for value in values if value is not None]
    match subject.property:
        case None:
            return values[0]
        case Property.NULL_COUNT:
            return len(values) - len(there)
        case Property.DISTINCT_COUNT:
            return len(set(there))
        case Property.SUM:
            return sum(there) if there else None
    raise AssertionError(f"{subject.property} is not among the leaves")


def _combined(op: Op, parts: Sequence[Truth]) -> Truth:
    if op is Op.NEGATE:
        return None if parts[0] is None else not parts[0]
    decisive = op is Op.ANY
    if decisive in parts:
        return decisive
    return None if None in parts else not decisive


def _grouped(rows: Sequence[Row], by: Sequence[str]) -> dict[tuple[Any, ...], list[Row]]:
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[name] for name in by)].append(row)
    return groups
