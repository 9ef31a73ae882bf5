"""Units: several datasets' transactions that commit or abort together."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from sqlalchemy import Connection, insert, select, update

from headgate.catalog.builds import settle_units
from headgate.catalog.database import Database, now
from headgate.catalog.publish import publish_in
from headgate.catalog.records import find_branch, load_transactions, lock_open_unit
from headgate.catalog.schema import transactions, units
from headgate.catalog.transactions import (
    Opener,
    Opening,
    abort_in,
    open_in,
    open_transactions_of,
)
from headgate.errors import NotFound, TransactionNotOpen
from headgate.model.changes import CreateBranch, PublishRequest
from headgate.model.ids import (
    Instant,
    TransactionId,
    UnitId,
    mint_branch,
    mint_operation,
    mint_unit,
)
from headgate.model.names import check_branch_name
from headgate.model.nouns import (
    Dataset,
    PublicationKind,
    Transaction,
    TransactionState,
    TransactionType,
)


@dataclass(frozen=True, kw_only=True)
class Unit:
    id: UnitId
    branch: str
    actor: str
    state: TransactionState
    lease_seconds: int
    lease_until: Instant
    transactions: tuple[Transaction, ...]


def open_unit(database: Database, branch: str, *, actor: str, lease_seconds: int) -> Unit:
    """A unit on a branch name; each dataset's transaction opens at its first write."""
    check_branch_name(branch)
    id = mint_unit()

    def work(connection: Connection) -> None:
        moment = now(connection)
        connection.execute(
            insert(units).values(
                id=id,
                branch_name=branch,
                actor=actor,
                state=TransactionState.OPEN,
                opened_at=moment,
                lease_seconds=lease_seconds,
                lease_until=moment + lease_seconds * 1_000_000,
            )
        )

    database.write(work)
    return database.read(lambda connection: load_unit(connection, id))


def find_unit(connection: Connection, id: str) -> Unit | None:
    row = connection.execute(select(units).where(units.c.id == id)).mappings().one_or_none()
    if row is None:
        return None
    return Unit(
        id=UnitId(row["id"]),
        branch=row["branch_name"],
        actor=row["actor"],
        state=TransactionState(row["state"]),
        lease_seconds=row["lease_seconds"],
        lease_until=Instant(row["lease_until"]),
        transactions=tuple(open_transactions_of(connection, unit=UnitId(row["id"]))),
    )


def load_unit(connection: Connection, id: str) -> Unit:
    unit = find_unit(connection, id)
    if unit is None:
        raise NotFound(f"there is no unit {id!r}.", unit=id)
    return unit


def load_open_unit(connection: Connection, id: str) -> Unit:
    unit = load_unit(connection, id)
    if unit.state is not TransactionState.OPEN:
        raise TransactionNotOpen(transaction=id, state=unit.state)
    return unit


def list_unit_transactions(connection: Connection, id: UnitId) -> list[Transaction]:
    """All transactions that a unit opened, whatever became of them."""
    query = select(transactions.c.id).where(transactions.c.unit_id == id)
    ids = [TransactionId(one) for one in connection.execute(query).scalars()]
    return sorted(load_transactions(connection, ids).values(), key=lambda t: t.id)


def open_in_unit(
    connection: Connection, unit: Unit, dataset: Dataset, *, may_write_protected: bool = False
) -> Transaction:
    """The unit's transaction on a dataset, opened at its first use; its branch made if missing."""
    lock_open_unit(connection, unit.id)
    # Read again: before the lock was ours another writer of the unit may have opened it.
    mine = open_transactions_of(connection, unit=unit.id)
    known = next((t for t in mine if t.dataset_id == dataset.id), None)
    if known is not None:
        return known
    branch = find_branch(connection, dataset.id, unit.branch)
    if branch is None:
        root = CreateBranch(
            id=mint_branch(),
            dataset=dataset.id,
            name=unit.branch,
            parent=None,
            made_for=unit.id,
        )
        request = PublishRequest(actor=unit.actor, kind=PublicationKind.CREATE, changes=(root,))
        publish_in(connection, request, mint_operation())
    id = branch.id if branch else root.id
    opener = Opener(
        actor=unit.actor,
        lease_seconds=unit.lease_seconds,
        unit=unit.id,
        may_write_protected=may_write_protected,
    )
    [opened] = open_in(connection, [Opening(branch=id, type=TransactionType.UPDATE)], opener)
    return opened


def renew_unit(database: Database, id: UnitId) -> None:
    """Any use of a unit renews its lease and those of its transactions."""
    database.write(lambda connection: renew_unit_in(connection, id))


def renew_unit_in(connection: Connection, id: UnitId) -> None:
    moment = now(connection)
    for table, mine in (
        (units, units.c.id == id),
        (transactions, transactions.c.unit_id == id),
    ):
        connection.execute(
            update(table)
            .where(mine, table.c.state == TransactionState.OPEN)
            .values(lease_until=moment + table.c.lease_seconds * 1_000_000)
        )


def close_empty_unit(database: Database, id: UnitId) -> None:
    """COMMITTED with nothing in it; the door closes a unit with its transactions."""
    database.write(lambda connection: _close(connection, id, TransactionState.COMMITTED))


def abort_unit(database: Database, id: UnitId, *, actor: str) -> list[TransactionId]:
    """Aborts all of its transactions; branches that it made, and nobody used, go with it."""

    def work(connection: Connection) -> list[TransactionId]:
        lock_open_unit(connection, id)
        ids = [t.id for t in open_transactions_of(connection, unit=id)]
        abort_in(connection, ids, actor=actor)
        _close(connection, id, TransactionState.ABORTED)
        return ids

    ended = database.write(work)
    settle_units(database, actor=actor, unit=id)
    return ended


def abort_unit_if_open(database: Database, id: UnitId, *, actor: str) -> None:
    """For whoever is done with a unit, however it ended."""
    if database.read(lambda connection: load_unit(connection, id)).state is TransactionState.OPEN:
        # Somebody may take it over just now.
        with suppress(TransactionNotOpen):
            abort_unit(database, id, actor=actor)


def _close(connection: Connection, id: UnitId, state: TransactionState) -> None:
    connection.execute(update(units).where(units.c.id == id).values(state=state))
