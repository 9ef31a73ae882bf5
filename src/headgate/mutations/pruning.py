"""What a WHERE says of the rows of one table, as far as files can be told apart by it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sqlglot import exp

from headgate.tables.conditions import Among, Condition, Within

_WHOLE = {"int", "long"}


def conditions_on(
    where: exp.Expr | None, alias: str, types: Mapping[str, Any], *, alone: bool
) -> list[Condition]:
    """The conditions that every row of the table must meet; `types` are its columns' by name.

    Only comparisons that mean the same to Iceberg and to the evaluating engine count: a column
    with a literal of its own type. `alone`: no other table could own an unqualified column.
    """
    if where is None:
        return []
    condition = where.this if isinstance(where, exp.Where) else where
    found = (_condition(part, alias, types, alone) for part in _conjuncts(condition))
    return [one for one in found if one is not None]


def _conjuncts(node: exp.Expr) -> Iterator[exp.Expr]:
    node = node.unnest()
    if isinstance(node, exp.And):
        yield from _conjuncts(node.left)
        yield from _conjuncts(node.right)
    else:
        yield node


def _condition(
    node: exp.Expr, alias: str, types: Mapping[str, Any], alone: bool
) -> Condition | None:
    def column_of(side: Any) -> str | None:
        if not isinstance(side, exp.Column):
            return None
        if not (side.table.lower() == alias.lower() if side.table else alone):
            return None
        return next((name for name in types if name.lower() == side.name.lower()), None)

    if isinstance(node, exp.In) and not node.args.get("query"):
        column = column_of(node.this)
        values = [_literal(item, types[column]) for item in node.expressions] if column else []
        if column and values and None not in values:
            return Among(column=column, values=frozenset(values))
        return None
    if isinstance(node, exp.Between):
        column = column_of(node.this)
        if column is None:
            return None
        low, high = (_literal(node.args[end], types[column]) for end in ("low", "high"))
        return Within(column=column, low=low, high=high) if None not in (low, high) else None
    return _comparison(node, column_of, types)


def _comparison(node: exp.Expr, column_of: Any, types: Mapping[str, Any]) -> Condition | None:
    if not isinstance(node, exp.EQ | exp.LT | exp.LTE | exp.GT | exp.GTE):
        return None
    column, other, turned = column_of(node.left), node.right, False
    if column is None:
        column, other, turned = column_of(node.right), node.left, True
    value = _literal(other, types[column]) if column is not None else None
    if column is None or value is None:
        return None
    if isinstance(node, exp.EQ):
        return Among(column=column, values=frozenset([value]))
    if isinstance(node, exp.GT | exp.GTE) != turned:
        return Within(column=column, low=value)
    return Within(column=column, high=value)


def _literal(node: Any, kind: Any) -> Any:
    """The literal's value where it has the column's own type; else None."""
    sign = 1
    if isinstance(node, exp.Neg):
        node, sign = node.this, -1
    if not isinstance(node, exp.Literal):
        return None
    if node.is_string:
        return node.this if kind == "string" else None
    if kind in _WHOLE and str(node.this).isdigit():
        value = sign * int(node.this)
        limit = 2**31 if kind == "int" else 2**63
        return value if -limit <= value < limit else None
    return None
