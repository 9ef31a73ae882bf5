"""Task keys and attempts: dispatch, leases, tokens, and the end of an attempt.

The catalog mints the epoch of each attempt; only the newest epoch of a key may stage or publish.
See ADR 0004.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from headgate.catalog import records
from headgate.catalog.database import Database, as_unit_of_work, insert_into, now
from headgate.catalog.schema import attempts, task_keys, transactions, working_objects
from headgate.catalog.transactions import abort_in
from headgate.errors import AttemptSuperseded, TransactionNotOpen
from headgate.model.changes import Caller
from headgate.model.failpoints import Failpoint
from headgate.model.ids import Epoch, Instant, TransactionId
from headgate.model.nouns import Attempt, AttemptRef, AttemptState, TransactionState


@dataclass(frozen=True, kw_only=True)
class Holder:
    """The running attempt of a key, which the next dispatch supersedes."""

    attempt: Attempt
    # The branch that it was dispatched to write, if its scope names one.
    branch: str | None


# Raises if the holder of a key must not be superseded.
CheckHolder = Callable[[Holder], None]


def dispatch_in(
    connection: sa.Connection,
    key: str,
    *,
    actor: str,
    lease_seconds: int,
    token: str | None = None,
    scope: Mapping[str, Any] | None = None,
    parent: AttemptRef | None = None,
    carry_transactions: bool = False,
    check_holder: CheckHolder | None = None,
) -> Attempt:
    """Dispatch a new epoch of the key and supersede every older attempt of it.

    OPEN transactions of the older attempt are aborted. With `carry_transactions` they belong to
    the new epoch instead and start again from their base. `check_holder` is called first.
    """
    if parent is not None:
        records.lock_attempt(connection, parent)
    if check_holder is not None:
        _lock_key(connection, key)
        if (holder := _find_holder(connection, key)) is not None:
            check_holder(holder)
    epoch = _next_epoch(connection, key)
    moment = now(connection)
    superseded = _supersede(connection, key, moment)
    connection.execute(
        sa.insert(attempts).values(
            key=key,
            epoch=epoch,
            state=AttemptState.RUNNING,
            actor=actor,
            started_at=moment,
            lease_seconds=lease_seconds,
            lease_until=moment + lease_seconds * 1_000_000,
            token_digest=token_digest(token) if token else None,
            parent_key=parent.key if parent else None,
            parent_epoch=parent.epoch if parent else None,
            scope=records.dump(dict(scope or {})),
        )
    )
    for older in superseded:
        carry = carry_transactions and older == key
        _settle_older(connection, older, epoch, actor=actor, carry=carry, at=moment)
    return load_attempt(connection, AttemptRef(key=key, epoch=epoch))


dispatch_attempt = as_unit_of_work(dispatch_in)


@as_unit_of_work
def dispatch_once(
    connection: sa.Connection,
    key: str,
    *,
    actor: str,
    lease_seconds: int,
    token: str,
    scope: Mapping[str, Any],
    check_holder: CheckHolder,
) -> Attempt:
    """Return the attempt with this token; dispatch it if no earlier request did."""
    _lock_key(connection, key)
    known = find_attempt_by_token(connection, token)
    if known is not None:
        return known[0]
    return dispatch_in(
        connection,
        key,
        actor=actor,
        lease_seconds=lease_seconds,
        token=token,
        scope=scope,
        check_holder=check_holder,
    )


def _lock_key(connection: sa.Connection, key: str) -> None:
    """Serialize requests for a key; inserting its row first extends this to new keys."""
    new = insert_into(task_keys, connection.dialect.name).values(key=key, epoch=0)
    connection.execute(new.on_conflict_do_nothing())
    connection.execute(sa.select(task_keys.c.epoch).where(task_keys.c.key == key).with_for_update())


def _find_holder(connection: sa.Connection, key: str) -> Holder | None:
    is_running = attempts.c.state == AttemptState.RUNNING
    query = sa.select(attempts).where(attempts.c.key == key, is_running)
    row = connection.execute(query).mappings().one_or_none()
    if row is None:
        return None
    return Holder(attempt=_to_attempt(row), branch=records.load(row["scope"]).get("branch"))


def _supersede(connection: sa.Connection, key: str, at: Instant) -> list[str]:
    """End older attempts of the key and their jobs; return the keys whose work must be settled."""
    below = connection.execute(
        sa.select(attempts.c.key)
        .where(attempts.c.parent_key == key, attempts.c.state == AttemptState.RUNNING)
        .distinct()
    ).scalars()
    keys = [key, *below]
    connection.execute(
        sa.update(attempts)
        .where(attempts.c.key.in_(keys), attempts.c.state == AttemptState.RUNNING)
        .values(state=AttemptState.SUPERSEDED, ended_at=at)
    )
    return keys


def _next_epoch(connection: sa.Connection, key: str) -> Epoch:
    statement = insert_into(task_keys, connection.dialect.name).values(key=key, epoch=1)
    raised = statement.on_conflict_do_update(
        index_elements=[task_keys.c.key], set_={"epoch": task_keys.c.epoch + 1}
    ).returning(task_keys.c.epoch)
    return Epoch(connection.execute(raised).scalar_one())


def _settle_older(
    connection: sa.Connection, key: str, epoch: Epoch, *, actor: str, carry: bool, at: Instant
) -> None:
    query = sa.select(transactions.c.id).where(
        transactions.c.attempt_key == key, transactions.c.state == TransactionState.OPEN
    )
    older = [TransactionId(id) for id in connection.execute(query).scalars()]
    if not older:
        return
    if not carry:
        abort_in(connection, older, caller=Caller(actor=actor), kind="superseded")
        return
    records.lock_branches(connection, records.branches_with_head(connection, older))
    found = records.load_transactions(connection, older)
    parents = records.load_transactions(connection, [t.parent for t in found.values() if t.parent])
    for transaction in found.values():
        parent = parents.get(transaction.parent) if transaction.parent else None
        base = parent.version if parent and transaction.type != "SNAPSHOT" else None
        connection.execute(
            sa.update(transactions)
            .where(transactions.c.id == transaction.id)
            .values(
                attempt_epoch=epoch,
                version_id=base.id if base else None,
                lease_until=at + transactions.c.lease_seconds * 1_000_000,
            )
        )
    # Objects that the older attempt planned to reuse do not concern an attempt that starts again.
    connection.execute(
        sa.delete(working_objects).where(working_objects.c.transaction_id.in_(older))
    )


@as_unit_of_work
def heartbeat(connection: sa.Connection, ref: AttemptRef) -> None:
    """Renew the lease of an attempt and of its OPEN transactions; raise if it is superseded."""
    moment = now(connection)
    newest = sa.select(task_keys.c.epoch).where(task_keys.c.key == ref.key).scalar_subquery()
    changed = connection.execute(
        sa.update(attempts)
        .where(_is_running(ref), attempts.c.epoch == newest)
        .values(lease_until=moment + attempts.c.lease_seconds * 1_000_000)
    )
    if changed.rowcount != 1:
        raise records.superseded(connection, ref)
    connection.execute(
        sa.update(transactions)
        .where(records.held_by(ref))
        .values(lease_until=moment + transactions.c.lease_seconds * 1_000_000)
    )


def end_attempt_in(connection: sa.Connection, ref: AttemptRef, state: AttemptState) -> None:
    """End an attempt; one that was superseded meanwhile stays superseded."""
    connection.execute(
        sa.update(attempts).where(_is_running(ref)).values(state=state, ended_at=now(connection))
    )


end_attempt = as_unit_of_work(end_attempt_in)


def _is(ref: AttemptRef) -> sa.ColumnElement[bool]:
    return sa.and_(attempts.c.key == ref.key, attempts.c.epoch == ref.epoch)


def _is_running(ref: AttemptRef) -> sa.ColumnElement[bool]:
    return sa.and_(_is(ref), attempts.c.state == AttemptState.RUNNING)


def find_attempt_by_token(
    connection: sa.Connection, token: str
) -> tuple[Attempt, Mapping[str, Any]] | None:
    """Return the attempt with this bearer token, in any state, and its scope."""
    query = sa.select(attempts).where(attempts.c.token_digest == token_digest(token))
    row = connection.execute(query).mappings().one_or_none()
    return (_to_attempt(row), records.load(row["scope"])) if row else None


def find_scope(connection: sa.Connection, key: str, epoch: int) -> Mapping[str, Any] | None:
    """Return the scope of an attempt: what it may read and write."""
    text = connection.execute(
        sa.select(attempts.c.scope).where(attempts.c.key == key, attempts.c.epoch == epoch)
    ).scalar_one_or_none()
    return dict(records.load(text)) if text is not None else None


def set_attempt_scope(
    database: Database, ref: AttemptRef, *, token: str, scope: Mapping[str, Any]
) -> None:
    """Set the token of an attempt and its scope: what it may read and write."""
    database.write(
        lambda connection: connection.execute(
            sa.update(attempts)
            .where(_is(ref))
            .values(scope=records.dump(dict(scope)), token_digest=token_digest(token))
        )
    )


def token_digest(token: str) -> str:
    """Return the digest of a token; the catalog stores digests, never tokens."""
    return hashlib.sha256(token.encode()).hexdigest()


def load_attempt(connection: sa.Connection, ref: AttemptRef) -> Attempt:
    """Return an attempt that the caller knows to exist."""
    return _to_attempt(connection.execute(sa.select(attempts).where(_is(ref))).mappings().one())


def _to_attempt(row: sa.RowMapping) -> Attempt:
    ref, state = AttemptRef(key=row["key"], epoch=row["epoch"]), AttemptState(row["state"])
    return records.noun_of(Attempt, row, ref=ref, state=state)


def list_attempts(connection: sa.Connection, key: str) -> list[Attempt]:
    """Return every attempt of a task key, newest first."""
    query = sa.select(attempts).where(attempts.c.key == key).order_by(attempts.c.epoch.desc())
    return [_to_attempt(row) for row in connection.execute(query).mappings()]


# Attempts that end before or without a publication of their own


def abort_attempt_in(
    connection: sa.Connection,
    ref: AttemptRef,
    state: AttemptState,
    *,
    actor: str,
    kind: str = "aborted",
) -> bool:
    """End an attempt and its jobs and abort their OPEN transactions; False if it had ended."""
    # A writer that publishes for this attempt, or for one of its jobs, holds a lock on this row.
    connection.execute(
        sa.select(task_keys.c.epoch).where(task_keys.c.key == ref.key).with_for_update()
    )
    if find_attempt_state(connection, ref) is not AttemptState.RUNNING:
        return False
    ended = _running_with_jobs(connection, ref)
    for one in ended:
        end_attempt_in(connection, one, state)
    held = [t.id for one in ended for t in records.open_transactions_of(connection, attempt=one)]
    records.lock_branches(connection, records.branches_with_head(connection, held))
    # Another writer may have taken over or aborted transactions whose lease had expired.
    locked = records.lock_transactions(connection, held).values()
    mine = [t.id for t in locked if t.state is TransactionState.OPEN]
    abort_in(connection, mine, caller=Caller(actor=actor), kind=kind)
    return True


abort_attempt = as_unit_of_work(abort_attempt_in)


def find_attempt_state(connection: sa.Connection, ref: AttemptRef) -> AttemptState | None:
    """Return the state of an attempt; None if it does not exist."""
    found = connection.execute(sa.select(attempts.c.state).where(_is(ref))).scalar_one_or_none()
    return AttemptState(found) if found is not None else None


def _transfer(connection: sa.Connection, ref: AttemptRef, ids: Sequence[TransactionId]) -> None:
    """Transfer the transactions of a job to its build and end the attempt of the job.

    The ended attempt is fenced, so a process of the job that is still alive can stage no more.
    Nothing becomes visible: the build commits or aborts the transactions with its own attempt.
    """
    records.lock_attempt(connection, ref)
    moment = now(connection)
    parent = _parent(connection, ref)
    changed = connection.execute(
        sa.update(transactions)
        .where(transactions.c.id.in_(ids), records.held_by(ref))
        .values(
            attempt_key=parent.key,
            attempt_epoch=parent.epoch,
            lease_until=moment + transactions.c.lease_seconds * 1_000_000,
        )
    )
    if changed.rowcount != len(ids):
        raise _refusal(connection, ref, parent, ids)
    end_attempt_in(connection, ref, AttemptState.SUCCEEDED)


transfer_to_build = as_unit_of_work(_transfer, then=Failpoint.BUILD_HANDED_OVER)


def _parent(connection: sa.Connection, ref: AttemptRef) -> AttemptRef:
    row = connection.execute(
        sa.select(attempts.c.parent_key, attempts.c.parent_epoch).where(_is(ref))
    ).one()
    assert row.parent_key is not None, f"{ref.key} is not a job of a build"
    return AttemptRef(key=row.parent_key, epoch=Epoch(row.parent_epoch))


def _refusal(
    connection: sa.Connection, ref: AttemptRef, parent: AttemptRef, ids: Sequence[TransactionId]
) -> Exception:
    for id, found in records.load_transactions(connection, ids).items():
        if found.state is not TransactionState.OPEN:
            return TransactionNotOpen(transaction=id, state=found.state)
    return AttemptSuperseded(
        key=ref.key, epoch=ref.epoch, newest=parent.epoch, state="not the owner"
    )


def _running_with_jobs(connection: sa.Connection, ref: AttemptRef) -> list[AttemptRef]:
    is_job = sa.and_(attempts.c.parent_key == ref.key, attempts.c.parent_epoch == ref.epoch)
    query = sa.select(attempts.c.key, attempts.c.epoch).where(
        sa.or_(_is(ref), is_job), attempts.c.state == AttemptState.RUNNING
    )
    rows = connection.execute(query.order_by(attempts.c.key, attempts.c.epoch))
    return [AttemptRef(key=row.key, epoch=Epoch(row.epoch)) for row in rows]
