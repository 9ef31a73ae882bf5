"""What the values of some rows say of the rows of another table that may meet them."""

from __future__ import annotations

from headgate.mutations.engine import Engine, quote
from headgate.tables.conditions import AMONG_LIMIT, Among, Condition, Within


def conditions_of(engine: Engine, relation: str, column: str) -> Condition:
    """The values themselves while they are few, else the least and the greatest."""
    name = quote(column)
    found = engine.rows(
        f"SELECT DISTINCT {name} FROM {relation} WHERE {name} IS NOT NULL LIMIT {AMONG_LIMIT + 1}"
    )
    if len(found) <= AMONG_LIMIT:
        return Among(column=column, values=frozenset(row[0] for row in found))
    [(low, high)] = engine.rows(f"SELECT min({name}), max({name}) FROM {relation}")
    return Within(column=column, low=low, high=high)
