"""Verbs on branches: create, delete, reset, reparent, protect.

Each verb that changes a view or the set of branches reads, decides and publishes through the door.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import partial

from sqlalchemy import Connection, delete, exists, insert, select, update

from headgate import errors
from headgate.catalog import records, schema
from headgate.catalog.database import Database, backoff_seconds, now
from headgate.catalog.publish import publish, publish_prepared
from headgate.catalog.transactions import check_may_write, record_event
from headgate.model import changes, nouns
from headgate.model.ancestry import is_in_history
from headgate.model.ids import BranchId, TransactionId, mint_branch
from headgate.model.names import check_branch_name

# Tries to create a child branch while its parent moves.
_TRIES = 20


def create_branch(
    database: Database,
    dataset: nouns.Dataset,
    name: str,
    *,
    parent: str | None,
    at: str | None = None,
    caller: changes.Caller,
    operation: changes.OperationKey | None = None,
) -> nouns.Branch:
    """Create a root branch, or a child of `parent`.

    A child starts at the head and view of its parent, or at transaction `at` of its history.
    """
    check_branch_name(name)

    def request(connection: Connection) -> changes.PublishRequest:
        change = _create_change(connection, dataset, name, parent=parent, at=at)
        return changes.PublishRequest(
            caller=caller,
            kind=nouns.PublicationKind.CREATE,
            changes=(change,),
            operation=operation,
        )

    for failures in range(_TRIES):
        try:
            publish_prepared(database, request)
            break
        except errors.ViewConflict:
            # The parent moved between read and lock: the child starts at the new position.
            if failures == _TRIES - 1:
                raise
            time.sleep(backoff_seconds(failures))
    return database.read(lambda connection: records.load_branch(connection, dataset, name))


def _create_change(
    connection: Connection, dataset: nouns.Dataset, name: str, *, parent: str | None, at: str | None
) -> changes.CreateBranch:
    if records.find_branch(connection, dataset.id, name) is not None:
        raise errors.BranchExists(dataset=str(dataset.name), branch=name)
    if parent is None:
        if at is not None:
            raise errors.Invalid("a root has no history: `at` needs a branch to start `from`.")
        return changes.CreateBranch(id=mint_branch(), dataset=dataset.id, name=name, parent=None)
    source = records.load_branch(connection, dataset, parent)
    head, view = source.head, source.view
    if at is not None:
        target = _committed(connection, at)
        records.check_in_history(connection, source, target, source.view)
        head = view = target.id
    return changes.CreateBranch(
        id=mint_branch(),
        dataset=dataset.id,
        name=name,
        parent=source.id,
        expected_head=source.head,
        expected_view=source.view,
        head=head,
        view=view,
    )


def delete_branches(
    database: Database,
    targets: Sequence[nouns.Branch],
    *,
    caller: changes.Caller,
    operation: changes.OperationKey | None = None,
) -> changes.Receipt:
    """Delete the branches, all at once; their children move under the grandparent."""
    return publish(
        database,
        changes.PublishRequest(
            caller=caller,
            kind=nouns.PublicationKind.DELETE,
            changes=tuple(
                changes.DeleteBranch(branch=b.id, expected_head=b.head, expected_view=b.view)
                for b in targets
            ),
            operation=operation,
        ),
    )


def reset_branch(
    database: Database,
    dataset: nouns.Dataset,
    name: str,
    *,
    to: str,
    caller: changes.Caller,
    operation: changes.OperationKey | None = None,
) -> changes.Receipt:
    """Move a branch to a transaction of its history, or to one that a reset removed from it."""

    def decide(connection: Connection) -> changes.MoveBranch:
        branch = records.load_branch(connection, dataset, name)
        target = _committed(connection, to)
        # The history first: it takes a few lookups, while the log has to be read completely.
        if not records.is_below(connection, target, branch.view) and not _was_removed_by_reset(
            connection, branch, target
        ):
            raise errors.NotInHistory(dataset=str(dataset.name), branch=name, transaction=target.id)
        return changes.MoveBranch(
            branch=branch.id,
            expected_head=branch.head,
            expected_view=branch.view,
            to=target.id,
        )

    change = database.read(decide)
    return publish(
        database,
        changes.PublishRequest(
            caller=caller,
            kind=nouns.PublicationKind.RESET,
            changes=() if change.to == change.expected_view == change.expected_head else (change,),
            operation=operation,
        ),
    )


def _was_removed_by_reset(
    connection: Connection, branch: nouns.Branch, target: nouns.Transaction
) -> bool:
    """Return whether a logged reset removed the transaction from this branch."""
    reset = schema.publications.c.kind == nouns.PublicationKind.RESET
    query = (
        select(schema.moves.c.from_id)
        .join(schema.publications, schema.publications.c.number == schema.moves.c.publication)
        .where(schema.moves.c.branch_id == branch.id, schema.moves.c.from_id.is_not(None), reset)
        .order_by(schema.moves.c.publication.desc())
    )
    steps = records.Steps(connection)
    wanted = steps(target.id)
    left = connection.execute(query).scalars().all()
    return any(is_in_history(wanted, steps(TransactionId(id)), steps) for id in left)


def _committed(connection: Connection, id: str) -> nouns.Transaction:
    transaction = records.load_transaction(connection, id)
    if transaction.state is not nouns.TransactionState.COMMITTED:
        raise errors.TransactionNotCommitted(transaction=id, state=transaction.state)
    if transaction.condemned:
        raise errors.VersionExpired(what=f"transaction {id}")
    return transaction


def reparent_branch(
    database: Database,
    dataset: nouns.Dataset,
    name: str,
    *,
    under: str | None,
    caller: changes.Caller,
) -> nouns.Branch:
    """Correct the recorded parent of a branch; no transaction moves, no view changes."""

    def work(connection: Connection) -> nouns.Branch:
        # Two at once, each valid alone, could form a cycle: this lock serializes a dataset's.
        connection.execute(
            select(schema.datasets.c.id)
            .where(schema.datasets.c.id == dataset.id)
            .with_for_update(key_share=True)
        )
        branch = records.load_branch(connection, dataset, name)
        parent = records.load_branch(connection, dataset, under) if under is not None else None
        check_may_write(connection, caller, {(name, dataset.name)})
        locked = records.lock_branches(
            connection, [b.id for b in (branch, parent) if b is not None]
        )
        for one in (branch, parent):
            if one is not None and one.id not in locked:
                raise errors.BranchNotFound(dataset=str(dataset.name), branch=one.name)
        # By id: the caller may not be allowed to read all of these branches.
        known = {one.id: one for one in records.branches_of(connection, [dataset.id])}
        above = parent
        while above is not None:
            if above.id == branch.id:
                raise errors.Invalid(
                    f"branch {under!r} is below {name!r} on {dataset.name}: "
                    "a branch cannot be its own ancestor.",
                    dataset=str(dataset.name),
                )
            above = known.get(above.parent_id) if above.parent_id else None
        connection.execute(
            update(schema.branches)
            .where(schema.branches.c.id == branch.id)
            .values(parent_id=parent.id if parent else None)
        )
        record_event(
            connection,
            at=now(connection),
            actor=caller.actor,
            kind="reparented",
            dataset=dataset.id,
            branch=name,
            under=under,
            was=branch.parent,
        )
        return records.load_branch(connection, dataset, name)

    return database.write(work)


def protect_branch(database: Database, name: str, *, actor: str, protected: bool = True) -> None:
    """Protect a branch name, or remove its protection.

    A protected name accepts writes only from builds of clean commits and from admins.
    """
    check_branch_name(name)

    def work(connection: Connection) -> None:
        connection.execute(
            delete(schema.protected_branches).where(schema.protected_branches.c.name == name)
        )
        moment = now(connection)
        if protected:
            connection.execute(
                insert(schema.protected_branches).values(name=name, actor=actor, created_at=moment)
            )
        kind = "protected" if protected else "unprotected"
        record_event(connection, at=moment, actor=actor, kind=kind, branch=name)

    database.write(work)


def list_protected(connection: Connection) -> list[str]:
    return sorted(connection.execute(select(schema.protected_branches.c.name)).scalars())


# Tries to drop branches while other writers begin to use some of them.
_DROP_TRIES = 3


def drop_unused_branches(
    database: Database, candidates: Iterable[BranchId], *, actor: str
) -> list[nouns.Branch]:
    """Delete and return the candidates that were made for work of which nothing was committed.

    They would only hide other branches.
    """
    wanted = list(candidates)
    for _ in range(_DROP_TRIES):
        unused = database.read(partial(_unused, ids=wanted))
        if not unused:
            break
        try:
            delete_branches(
                database, unused, caller=changes.Caller(actor=actor, may_write_protected=True)
            )
            return unused
        except errors.Conflict:
            # Another writer began to use one of them: read again.
            continue
    return []


def _unused(connection: Connection, ids: Iterable[BranchId]) -> list[nouns.Branch]:
    committed = exists().where(
        schema.transactions.c.branch_id == schema.branches.c.id,
        schema.transactions.c.state == nouns.TransactionState.COMMITTED,
    )
    found: list[nouns.Branch] = []
    for part in records.in_chunks(ids):
        query = records.BRANCHES.where(
            schema.branches.c.id.in_(part),
            schema.branches.c.made_for.is_not(None),
            schema.branches.c.head_id.is_not_distinct_from(schema.branches.c.view_id),
            ~committed,
        )
        found += [records.to_branch(row) for row in connection.execute(query).mappings()]
    return found
