"""Row locks, always in this order: attempt, units, branches, transactions, the counter; by id.

On SQLite the whole unit already holds the write lock, so locking is only reading.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import Connection, bindparam, select

from headgate.catalog.records import TRANSACTIONS, dataset_name, in_chunks, to_transaction
from headgate.catalog.schema import (
    attempts,
    branches,
    datasets,
    log_counter,
    task_keys,
    transactions,
    units,
)
from headgate.errors import AttemptSuperseded, TransactionNotOpen, UnitIncomplete
from headgate.model.ids import BranchId, DatasetId, Epoch, Instant, TransactionId, UnitId
from headgate.model.names import DatasetName
from headgate.model.nouns import AttemptRef, AttemptState, Transaction, TransactionState

# Built once: making a statement costs more than running it.
_ATTEMPT = select(attempts.c.state, attempts.c.parent_key, attempts.c.parent_epoch).where(
    attempts.c.key == bindparam("the_key"), attempts.c.epoch == bindparam("the_epoch")
)
_TASK_KEY = (
    select(task_keys.c.epoch).where(task_keys.c.key == bindparam("the_key")).with_for_update()
)
_BRANCHES = (
    select(branches, datasets.c.namespace, datasets.c.name.label("dataset_name"))
    .join(datasets, datasets.c.id == branches.c.dataset_id)
    .where(branches.c.id.in_(bindparam("ids", expanding=True)))
    .order_by(branches.c.id)
    .with_for_update(of=branches)
)
_BRANCHES_WITH_HEAD = select(branches.c.id, branches.c.head_id).where(
    branches.c.head_id.in_(bindparam("ids", expanding=True))
)
_TRANSACTIONS = (
    TRANSACTIONS.where(transactions.c.id.in_(bindparam("ids", expanding=True)))
    .order_by(transactions.c.id)
    .with_for_update(of=transactions)
)
_COUNTER = (
    select(log_counter.c.number, log_counter.c.last_at)
    .where(log_counter.c.id == 1)
    .with_for_update()
)


@dataclass(kw_only=True)
class BranchState:
    """A locked branch row, changed in memory as a unit of work goes along."""

    id: BranchId
    dataset_id: DatasetId
    dataset: DatasetName
    name: str
    parent_id: BranchId | None
    head: TransactionId | None
    view: TransactionId | None


@dataclass(frozen=True, kw_only=True)
class Counter:
    number: int
    last_at: Instant


def lock_attempt(connection: Connection, ref: AttemptRef) -> None:
    """Locks the task key and refuses an attempt that is not its newest, or has ended.

    The attempt of a build's job stands under the build's: that one is locked and checked first.
    """
    attempt = {"the_key": ref.key, "the_epoch": ref.epoch}
    row = connection.execute(_ATTEMPT, attempt).one_or_none()
    if row is not None and row.parent_key is not None:
        lock_attempt(connection, AttemptRef(key=row.parent_key, epoch=Epoch(row.parent_epoch)))
    newest = connection.execute(_TASK_KEY, {"the_key": ref.key}).scalar_one_or_none()
    # Read again: before the lock was ours somebody may have ended or superseded it.
    state = connection.execute(_ATTEMPT, attempt).scalar_one_or_none()
    if newest != ref.epoch or state != AttemptState.RUNNING:
        raise AttemptSuperseded(
            key=ref.key, epoch=ref.epoch, newest=newest or 0, state=state or "unknown"
        )


def lock_units(connection: Connection, closing: Iterable[TransactionId]) -> list[UnitId]:
    """Locks the units of these transactions; each must be OPEN and be closed as a whole."""
    wanted = set(closing)
    found = connection.execute(
        select(transactions.c.unit_id)
        .where(transactions.c.id.in_(sorted(wanted)), transactions.c.unit_id.is_not(None))
        .distinct()
    ).scalars()
    locked = [UnitId(id) for id in sorted(found)]
    for id in locked:
        lock_open_unit(connection, id)
        members = connection.execute(
            select(transactions.c.id).where(
                transactions.c.unit_id == id, transactions.c.state == TransactionState.OPEN
            )
        ).scalars()
        left_out = sorted(set(members) - wanted)
        if left_out:
            raise UnitIncomplete(unit=id, left_out=left_out)
    return locked


def lock_open_unit(connection: Connection, id: UnitId) -> None:
    state = connection.execute(
        select(units.c.state).where(units.c.id == id).with_for_update()
    ).scalar_one_or_none()
    if state != TransactionState.OPEN:
        raise TransactionNotOpen(transaction=id, state=state or "unknown")


def lock_branches(connection: Connection, ids: Iterable[BranchId]) -> dict[BranchId, BranchState]:
    """Locks these branches in the order of their ids; those that are gone are left out."""
    found: dict[BranchId, BranchState] = {}
    for part in in_chunks(ids):
        for row in connection.execute(_BRANCHES, {"ids": part}).mappings():
            found[BranchId(row["id"])] = BranchState(
                id=BranchId(row["id"]),
                dataset_id=DatasetId(row["dataset_id"]),
                dataset=dataset_name(row),
                name=row["name"],
                parent_id=row["parent_id"],
                head=row["head_id"],
                view=row["view_id"],
            )
    return found


def branches_with_head(
    connection: Connection, heads: Iterable[TransactionId]
) -> dict[BranchId, TransactionId]:
    """Which branches have one of these transactions as their head."""
    found: dict[BranchId, TransactionId] = {}
    for part in in_chunks(heads):
        rows = connection.execute(_BRANCHES_WITH_HEAD, {"ids": part})
        found |= {BranchId(id): TransactionId(head) for id, head in rows}
    return found


def lock_transactions(
    connection: Connection, ids: Iterable[TransactionId]
) -> dict[TransactionId, Transaction]:
    found: dict[TransactionId, Transaction] = {}
    for part in in_chunks(ids):
        for row in connection.execute(_TRANSACTIONS, {"ids": part}).mappings():
            found[TransactionId(row["id"])] = to_transaction(row)
    return found


def lock_counter(connection: Connection) -> Counter:
    row = connection.execute(_COUNTER).one()
    return Counter(number=row.number, last_at=Instant(row.last_at))
