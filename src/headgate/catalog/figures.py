"""How much there is of everything that an operator watches, in one reading of the catalog."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, Table, func, select

from headgate.catalog.schema import (
    attempts,
    branches,
    builds,
    datasets,
    intents,
    log_counter,
    transactions,
)
from headgate.model.nouns import TransactionState


@dataclass(frozen=True, kw_only=True)
class CatalogFigures:
    publications: int
    datasets: int
    branches: int
    open_transactions: int
    intents_pending: int
    builds_by_state: Mapping[str, int]
    attempts_by_state: Mapping[str, int]


def read_figures(connection: Connection) -> CatalogFigures:
    """Counts by index or of small tables: reading them is no burden, however often it is done."""
    is_open = transactions.c.state == TransactionState.OPEN
    return CatalogFigures(
        publications=int(connection.execute(select(log_counter.c.number)).scalar() or 0),
        datasets=_count(connection, datasets),
        branches=_count(connection, branches),
        open_transactions=int(
            connection.execute(
                select(func.count()).select_from(transactions).where(is_open)
            ).scalar_one()
        ),
        intents_pending=_count(connection, intents),
        builds_by_state=_by_state(connection, builds),
        attempts_by_state=_by_state(connection, attempts),
    )


def _count(connection: Connection, table: Table) -> int:
    return int(connection.execute(select(func.count()).select_from(table)).scalar_one())


def _by_state(connection: Connection, table: Table) -> dict[str, int]:
    query = select(table.c.state, func.count()).group_by(table.c.state)
    return {str(state): int(number) for state, number in connection.execute(query)}
