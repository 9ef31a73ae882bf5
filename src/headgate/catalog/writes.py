"""Small writes that the door and the other verbs share; none of them changes a view."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import Connection, case, delete, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from headgate.catalog.locks import BranchState
from headgate.catalog.rows import BRANCHES, dump, to_branch
from headgate.catalog.schema import (
    branches,
    events,
    transactions,
    units,
    versions,
    working_objects,
)
from headgate.model.ancestry import without
from headgate.model.ids import BranchId, DatasetId, Instant, TransactionId, mint
from headgate.model.nouns import TransactionState, Version

_NEW_VERSIONS = {
    "sqlite": sqlite.insert(versions).on_conflict_do_nothing(),
    "postgresql": postgresql.insert(versions).on_conflict_do_nothing(),
}


def insert_versions(
    connection: Connection, new: Sequence[tuple[DatasetId, Version]], at: Instant
) -> None:
    """Records versions; those that are known (adopted, shared) are left as they are."""
    if not new:
        return
    connection.execute(
        _NEW_VERSIONS[connection.dialect.name],
        [
            {
                "id": version.id,
                "dataset_id": dataset,
                "location": version.location,
                "content_id": version.content_id,
                "created_at": at,
            }
            for dataset, version in new
        ],
    )


def close_aborted(connection: Connection, ids: Iterable[TransactionId], at: Instant) -> None:
    """Marks OPEN transactions ABORTED, and with one of a unit all of that unit."""
    gone = sorted(set(ids))
    if not gone:
        return
    gone += _unit_siblings(connection, gone)
    connection.execute(
        update(transactions)
        .where(transactions.c.id.in_(gone), transactions.c.state == TransactionState.OPEN)
        .values(
            state=TransactionState.ABORTED,
            # It began after its parent ended, which may be ahead of a coarse clock.
            closed_at=case((transactions.c.opened_at > at, transactions.c.opened_at), else_=at),
        )
    )
    connection.execute(delete(working_objects).where(working_objects.c.transaction_id.in_(gone)))


def _unit_siblings(connection: Connection, ids: Sequence[TransactionId]) -> list[TransactionId]:
    """Closes the units that lose one of these; their other OPEN transactions, heads set back."""
    lost = list(
        connection.execute(
            select(transactions.c.unit_id)
            .where(transactions.c.id.in_(ids), transactions.c.unit_id.is_not(None))
            .distinct()
        ).scalars()
    )
    if not lost:
        return []
    connection.execute(
        update(units)
        .where(units.c.id.in_(lost), units.c.state == TransactionState.OPEN)
        .values(state=TransactionState.ABORTED)
    )
    others = connection.execute(
        select(transactions.c.id, transactions.c.parent_id).where(
            transactions.c.unit_id.in_(lost),
            transactions.c.state == TransactionState.OPEN,
            transactions.c.id.not_in(ids),
        )
    ).all()
    for id, parent in others:
        connection.execute(update(branches).where(branches.c.head_id == id).values(head_id=parent))
    return [TransactionId(id) for id, _ in others]


def set_head_back(connection: Connection, branch: BranchId, head: TransactionId | None) -> None:
    """After an abort the head is the transaction's parent again; the view never moved."""
    connection.execute(update(branches).where(branches.c.id == branch).values(head_id=head))


def hand_down_ancestry(connection: Connection, gone: BranchState) -> None:
    """A deleted branch's children go to its parent; chains that led through it still hold."""
    dataset = branches.c.dataset_id == gone.dataset_id
    rows = list(connection.execute(BRANCHES.where(dataset)).mappings())
    before = {row["name"]: to_branch(row) for row in rows}
    after = without(gone.name, before)
    ids = {branch.name: branch.id for branch in before.values()}
    for name, lineage in after.items():
        was = before[name]
        if (was.parent, was.remembered_chain) == (lineage.parent, lineage.remembered_chain):
            continue
        chain = dump(list(lineage.remembered_chain)) if lineage.remembered_chain else None
        connection.execute(
            update(branches)
            .where(branches.c.id == was.id)
            .values(
                parent_id=ids[lineage.parent] if lineage.parent else None,
                remembered_chain=chain,
            )
        )


def record_event(
    connection: Connection,
    *,
    at: Instant,
    actor: str,
    kind: str,
    dataset: DatasetId | None = None,
    branch: str | None = None,
    transaction: TransactionId | None = None,
    **detail: object,
) -> None:
    """Notes what is recorded and is not a publication."""
    connection.execute(
        insert(events).values(
            id=mint("e"),
            at=at,
            actor=actor,
            kind=kind,
            dataset_id=dataset,
            branch_name=branch,
            transaction_id=transaction,
            detail=dump(detail),
        )
    )
