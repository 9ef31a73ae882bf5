"""How an attempt ends before or without a publication of its own: handed over, or given up."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, and_, or_, select, update

from headgate.catalog.database import Database, now
from headgate.catalog.find import load_transactions
from headgate.catalog.locks import (
    branches_with_head,
    lock_attempt,
    lock_branches,
    lock_transactions,
)
from headgate.catalog.schema import attempts, task_keys, transactions
from headgate.catalog.transactions import abort_in
from headgate.errors import AttemptSuperseded, TransactionNotOpen
from headgate.model.failpoints import Failpoint, reach
from headgate.model.ids import Epoch, Instant, TransactionId
from headgate.model.nouns import AttemptRef, AttemptState, TransactionState


def hand_over(database: Database, ref: AttemptRef, ids: Sequence[TransactionId]) -> None:
    """A job's transactions become its build's and its attempt ends, so its zombie stages no more.

    Nothing becomes visible: the build commits them, or aborts them, with its own attempt.
    """
    database.write(lambda connection: _hand_over(connection, ref, ids))
    reach(Failpoint.BUILD_HANDED_OVER)


def give_up(
    database: Database, ref: AttemptRef, state: AttemptState, *, actor: str, kind: str = "aborted"
) -> bool:
    """Ends an attempt and those below it, and aborts all they hold OPEN; False if it was over."""
    return database.write(lambda c: give_up_in(c, ref, state, actor=actor, kind=kind))


def give_up_in(
    connection: Connection,
    ref: AttemptRef,
    state: AttemptState,
    *,
    actor: str,
    kind: str = "aborted",
) -> bool:
    # Whoever publishes for this attempt, or for one below it, holds this row.
    connection.execute(
        select(task_keys.c.epoch).where(task_keys.c.key == ref.key).with_for_update()
    )
    if find_attempt_state(connection, ref) is not AttemptState.RUNNING:
        return False
    ending = _with_those_below(connection, ref)
    moment = now(connection)
    for one in ending:
        _end(connection, one, state, moment)
    held = [id for one in ending for id in _open_ids(connection, one)]
    lock_branches(connection, branches_with_head(connection, held))
    # Somebody may have taken over, or aborted, what an expired lease no longer kept.
    still = lock_transactions(connection, held).values()
    mine = [t.id for t in still if t.state is TransactionState.OPEN]
    abort_in(connection, mine, actor=actor, kind=kind)
    return True


def find_attempt_state(connection: Connection, ref: AttemptRef) -> AttemptState | None:
    """What has become of an attempt."""
    found = connection.execute(
        select(attempts.c.state).where(attempts.c.key == ref.key, attempts.c.epoch == ref.epoch)
    ).scalar_one_or_none()
    return AttemptState(found) if found is not None else None


def _hand_over(connection: Connection, ref: AttemptRef, ids: Sequence[TransactionId]) -> None:
    lock_attempt(connection, ref)
    moment = now(connection)
    parent = _parent(connection, ref)
    changed = connection.execute(
        update(transactions)
        .where(
            transactions.c.id.in_(ids),
            transactions.c.state == TransactionState.OPEN,
            transactions.c.attempt_key == ref.key,
            transactions.c.attempt_epoch == ref.epoch,
        )
        .values(
            attempt_key=parent.key,
            attempt_epoch=parent.epoch,
            lease_until=moment + transactions.c.lease_seconds * 1_000_000,
        )
    )
    if changed.rowcount != len(ids):
        raise _refusal(connection, ref, parent, ids)
    _end(connection, ref, AttemptState.SUCCEEDED, moment)


def _parent(connection: Connection, ref: AttemptRef) -> AttemptRef:
    row = connection.execute(
        select(attempts.c.parent_key, attempts.c.parent_epoch).where(
            attempts.c.key == ref.key, attempts.c.epoch == ref.epoch
        )
    ).one()
    assert row.parent_key is not None, f"{ref.key} is no job of a build"
    return AttemptRef(key=row.parent_key, epoch=Epoch(row.parent_epoch))


def _refusal(
    connection: Connection, ref: AttemptRef, parent: AttemptRef, ids: Sequence[TransactionId]
) -> Exception:
    for id, found in load_transactions(connection, ids).items():
        if found.state is not TransactionState.OPEN:
            return TransactionNotOpen(transaction=id, state=found.state)
    return AttemptSuperseded(
        key=ref.key, epoch=ref.epoch, newest=parent.epoch, state="not the owner"
    )


def _with_those_below(connection: Connection, ref: AttemptRef) -> list[AttemptRef]:
    query = select(attempts.c.key, attempts.c.epoch).where(
        or_(
            and_(attempts.c.key == ref.key, attempts.c.epoch == ref.epoch),
            and_(attempts.c.parent_key == ref.key, attempts.c.parent_epoch == ref.epoch),
        ),
        attempts.c.state == AttemptState.RUNNING,
    )
    rows = connection.execute(query.order_by(attempts.c.key, attempts.c.epoch))
    return [AttemptRef(key=row.key, epoch=Epoch(row.epoch)) for row in rows]


def _end(connection: Connection, ref: AttemptRef, state: AttemptState, at: Instant) -> None:
    connection.execute(
        update(attempts)
        .where(attempts.c.key == ref.key, attempts.c.epoch == ref.epoch)
        .values(state=state, ended_at=at)
    )


def _open_ids(connection: Connection, ref: AttemptRef) -> list[TransactionId]:
    query = select(transactions.c.id).where(
        transactions.c.attempt_key == ref.key,
        transactions.c.attempt_epoch == ref.epoch,
        transactions.c.state == TransactionState.OPEN,
    )
    return [TransactionId(id) for id in connection.execute(query).scalars()]
