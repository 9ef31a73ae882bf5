"""Row locks, always in this order: the attempt, branches by id, transactions by id, the counter.

On SQLite the whole unit already holds the write lock, so locking is only reading.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import Connection, select

from headgate.catalog.rows import TRANSACTIONS, dataset_name, to_transaction
from headgate.catalog.schema import (
    attempts,
    branches,
    datasets,
    log_counter,
    task_keys,
    transactions,
)
from headgate.errors import AttemptSuperseded
from headgate.model.ids import BranchId, DatasetId, Epoch, Instant, TransactionId
from headgate.model.names import DatasetName
from headgate.model.nouns import AttemptRef, AttemptState, Transaction

_CHUNK = 500


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
    build: str | None = None


@dataclass(frozen=True, kw_only=True)
class Counter:
    number: int
    last_at: Instant


def lock_attempt(connection: Connection, ref: AttemptRef) -> None:
    """Locks the task key and refuses an attempt that is not its newest, or has ended.

    The attempt of a build's job stands under the build's: that one is locked and checked first.
    """
    row = connection.execute(
        select(attempts.c.state, attempts.c.parent_key, attempts.c.parent_epoch).where(
            attempts.c.key == ref.key, attempts.c.epoch == ref.epoch
        )
    ).one_or_none()
    if row is not None and row.parent_key is not None:
        lock_attempt(connection, AttemptRef(key=row.parent_key, epoch=Epoch(row.parent_epoch)))
    newest = connection.execute(
        select(task_keys.c.epoch).where(task_keys.c.key == ref.key).with_for_update()
    ).scalar_one_or_none()
    # Read again: before the lock was ours somebody may have ended or superseded it.
    state = connection.execute(
        select(attempts.c.state).where(attempts.c.key == ref.key, attempts.c.epoch == ref.epoch)
    ).scalar_one_or_none()
    if newest != ref.epoch or state != AttemptState.RUNNING:
        raise AttemptSuperseded(
            key=ref.key, epoch=ref.epoch, newest=newest or 0, state=state or "unknown"
        )


def lock_branches(connection: Connection, ids: Iterable[BranchId]) -> dict[BranchId, BranchState]:
    """Locks these branches in the order of their ids; those that are gone are left out."""
    wanted = sorted(set(ids))
    found: dict[BranchId, BranchState] = {}
    for start in range(0, len(wanted), _CHUNK):
        query = (
            select(branches, datasets.c.namespace, datasets.c.name.label("dataset_name"))
            .join(datasets, datasets.c.id == branches.c.dataset_id)
            .where(branches.c.id.in_(wanted[start : start + _CHUNK]))
            .order_by(branches.c.id)
            .with_for_update(of=branches)
        )
        for row in connection.execute(query).mappings():
            found[BranchId(row["id"])] = BranchState(
                id=BranchId(row["id"]),
                dataset_id=DatasetId(row["dataset_id"]),
                dataset=dataset_name(row),
                name=row["name"],
                parent_id=row["parent_id"],
                head=row["head_id"],
                view=row["view_id"],
                build=row["build_id"],
            )
    return found


def branches_with_head(
    connection: Connection, heads: Iterable[TransactionId]
) -> dict[BranchId, TransactionId]:
    """Which branches have one of these transactions as their head."""
    wanted = sorted(set(heads))
    found: dict[BranchId, TransactionId] = {}
    for start in range(0, len(wanted), _CHUNK):
        query = select(branches.c.id, branches.c.head_id).where(
            branches.c.head_id.in_(wanted[start : start + _CHUNK])
        )
        found |= {BranchId(id): TransactionId(head) for id, head in connection.execute(query)}
    return found


def lock_transactions(
    connection: Connection, ids: Iterable[TransactionId]
) -> dict[TransactionId, Transaction]:
    wanted = sorted(set(ids))
    found: dict[TransactionId, Transaction] = {}
    for start in range(0, len(wanted), _CHUNK):
        query = (
            TRANSACTIONS.where(transactions.c.id.in_(wanted[start : start + _CHUNK]))
            .order_by(transactions.c.id)
            .with_for_update(of=transactions)
        )
        for row in connection.execute(query).mappings():
            found[TransactionId(row["id"])] = to_transaction(row)
    return found


def lock_counter(connection: Connection) -> Counter:
    row = connection.execute(
        select(log_counter.c.number, log_counter.c.last_at)
        .where(log_counter.c.id == 1)
        .with_for_update()
    ).one()
    return Counter(number=row.number, last_at=Instant(row.last_at))
