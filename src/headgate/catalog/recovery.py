"""Recovery: settles what dead processes left, once, and leaves an audit trail.

It aborts abandoned transactions, closes builds and units that ended, and records whether the last
move of a dead task attempt landed in lakeFS. It never moves a lakeFS branch and never reports the
result of a task: the next attempt decides. An intent is taken over first, so that two recoveries,
or a recovery and a slow owner, cannot both settle it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import sqlalchemy as sa

from headgate.catalog import records
from headgate.catalog.attempts import abort_attempt_in, find_attempt_state
from headgate.catalog.branches import drop_unused_branches
from headgate.catalog.builds import RUNNING, BuildRecord, end_build_in, load_build
from headgate.catalog.database import Database, now
from headgate.catalog.retention import forget_no_later_than
from headgate.catalog.schema import (
    attempts,
    branches,
    builds,
    intents,
    jobs,
    log_counter,
    metadata,
    publications,
    recoveries,
    tokens,
    transactions,
    units,
)
from headgate.catalog.transactions import abort_in, record_event
from headgate.catalog.workspaces import Action, Intent, PlannedMove, clear_intent, record_maker
from headgate.errors import BuildNotRunning, HeadgateError, IntentTakenOver
from headgate.model import ids
from headgate.model.changes import Caller
from headgate.model.failpoints import Failpoint, reach
from headgate.model.nouns import AttemptRef, AttemptState, TransactionState
from headgate.model.recovery import RECOVERY_ACTOR, Landing, WorkspaceHead

# The one reason to keep an intent that needs no attention.
OWNER_ALIVE = "its owner is alive"

# Returns the head of a branch by repository and branch name; None where the branch is gone.
ReadHead = Callable[[str, str], WorkspaceHead | None]


@dataclass(kw_only=True)
class Recovered:
    """The operations and transactions that one recovery settled."""

    # Publications to lakeFS that landed.
    rolled_forward: list[str] = field(default_factory=list)
    # Publications to lakeFS that did not land.
    rolled_back: list[str] = field(default_factory=list)
    aborted_transactions: list[str] = field(default_factory=list)
    # Operation and reason: left for a person or a later recovery.
    kept: list[dict[str, str]] = field(default_factory=list)

    def add_kept(self, intent: Intent, why: str) -> None:
        self.kept.append({"operation": intent.operation, "why": why})


def recover(database: Database, read_head: ReadHead | None, *, dry_run: bool = False) -> Recovered:
    """Settle expired intents, abandoned transactions, ended builds and units.

    `read_head` is None where no lakeFS is configured. A second recovery changes nothing.
    """
    done = Recovered()
    if not dry_run and database.read(_find_long_leases):
        database.write(_shorten_leases)
    pending, at = database.read(lambda c: (list_intents(c), now(c)))
    for intent in pending:
        if intent.lease_until >= at:
            done.add_kept(intent, OWNER_ALIVE)
        elif intent.move is None:
            done.add_kept(intent, "its intent cannot be read")
        elif read_head is None:
            done.add_kept(intent, "no lakeFS is configured here")
        else:
            _settle(database, intent, intent.move, read_head, done, dry_run=dry_run)
    for id in database.read(_abandoned):
        if dry_run or database.write(partial(_abort_abandoned, id=id)):
            done.aborted_transactions.append(id)
    if not dry_run:
        settle_builds(database, actor=RECOVERY_ACTOR)
        left = database.read(_left_by_units)
        if left:
            drop_unused_branches(database, left, actor=RECOVERY_ACTOR)
    return done


# Times of a clock that was ahead.


def _leased() -> tuple[tuple[sa.Table, sa.ColumnElement[bool]], ...]:
    """Return the tables with leases, and the rows that have one."""
    # Of all attempts, only those of running builds: there are many, and no index finds them.
    running = sa.select(builds.c.attempt_key).where(builds.c.state == RUNNING)
    return (
        (transactions, transactions.c.state == TransactionState.OPEN),
        (units, units.c.state == TransactionState.OPEN),
        (attempts, attempts.c.key.in_(running)),
        (intents, sa.true()),
    )


def _find_long_leases(connection: sa.Connection) -> bool:
    moment = now(connection)
    queries = (
        sa.select(table.c.lease_until).where(leased, records.is_too_long(table, moment)).limit(1)
        for table, leased in _leased()
    )
    return any(connection.execute(query).first() is not None for query in queries)


def _shorten_leases(connection: sa.Connection) -> None:
    """Let leases of a clock that was ahead end as if they were renewed now."""
    moment = now(connection)
    for table, leased in _leased():
        connection.execute(
            sa.update(table)
            .where(leased, records.is_too_long(table, moment))
            .values(lease_until=moment + table.c.lease_seconds * 1_000_000)
        )


def correct_times(database: Database, *, actor: str) -> int:
    """Set all recorded times that lie in the future to now; return how many publications had one.

    A publication is never earlier than the one before it, so after a jump of the clock all later
    ones are in the future too. Their order stays. Only a person knows that the clock is right now.
    """
    return database.write(lambda connection: _correct_times(connection, actor))


def _correct_times(connection: sa.Connection, actor: str) -> int:
    counter, moment = records.lock_counter(connection), now(connection)
    ahead = sa.select(sa.func.min(publications.c.number)).where(publications.c.at > moment)
    first = connection.execute(ahead).scalar()
    newest = moment
    if first is not None:
        count = counter.number - first + 1
        before = sa.select(publications.c.at).where(publications.c.number == first - 1)
        # The newest now, and each a microsecond after the one before it.
        newest = max(moment, (connection.execute(before).scalar() or 0) + count)
        start = newest - counter.number
        connection.execute(
            sa.update(publications)
            .where(publications.c.number >= first)
            .values(at=publications.c.number + start)
        )
        connection.execute(sa.update(log_counter).values(last_at=newest))
        closed = transactions.c.publication + start
        connection.execute(
            sa.update(transactions)
            .where(transactions.c.publication >= first)
            .values(
                closed_at=closed,
                opened_at=sa.case((transactions.c.opened_at > closed, closed), else_=_OPENED),
            )
        )
    connection.execute(
        sa.update(tokens)
        .where(tokens.c.created_at > moment, tokens.c.expires_at.is_not(None))
        .values(expires_at=tokens.c.expires_at - tokens.c.created_at + moment)
    )
    # After the publications: an OPEN transaction begins after its parent.
    for table in metadata.sorted_tables:
        for column in table.columns:
            if column.name in _TIMES:
                connection.execute(
                    sa.update(table).where(column > newest).values({column: newest + 1})
                )
    _shorten_leases(connection)
    forget_no_later_than(connection, moment)
    found = counter.number - first + 1 if first is not None else 0
    record_event(connection, at=moment, actor=actor, kind="clock_corrected", publications=found)
    return found


_OPENED = transactions.c.opened_at
# Times of the past; leases and the ends of tokens are in the future.
_TIMES = {
    *("at", "created_at", "condemned_at", "opened_at", "closed_at", "started_at", "ended_at"),
    *("published_at", "revoked_at", "taken_at"),
}


# Publications to lakeFS that have no record.


def _settle(
    database: Database,
    intent: Intent,
    move: PlannedMove,
    read_head: ReadHead,
    done: Recovered,
    *,
    dry_run: bool,
) -> None:
    """Record whether the move landed."""
    mine = intent if dry_run else database.write(partial(take_over_intent, intent=intent))
    if mine is None:
        return
    reach(Failpoint.RECOVERY_TAKEN_OVER)
    try:
        # After the takeover: a slow owner may have moved the branch until then.
        head = read_head(move.repository, move.branch)
    except HeadgateError as error:
        # A lakeFS that does not answer, or missing credentials, must not keep the store closed.
        if not dry_run:
            database.write(partial(release_intent, intent=mine))
        done.add_kept(intent, error.message)
        return
    landing = move.landing(head)
    reach(Failpoint.RECOVERY_CLASSIFIED)
    if not dry_run:
        try:
            database.write(lambda c: _record_landing(c, mine, move, landing, head))
        except IntentTakenOver:
            # Another recovery, which overtook this one, settles it.
            return
    reach(Failpoint.RECOVERY_SETTLED)
    if landing is Landing.LANDED:
        done.rolled_forward.append(intent.operation)
    elif landing is Landing.NOT_LANDED:
        done.rolled_back.append(intent.operation)
    else:
        shows = f"shows {head.commit} of another writer" if head else "does not exist"
        done.add_kept(
            intent, f"recorded as unknown: branch {move.branch!r} of {move.repository!r} {shows}"
        )


def _record_landing(
    connection: sa.Connection,
    intent: Intent,
    move: PlannedMove,
    landing: Landing,
    head: WorkspaceHead | None,
) -> None:
    """Clear the intent, with its audit row and event, in one unit of work."""
    clear_intent(connection, intent)
    at, kind = now(connection), f"workspace {landing}"
    shown = head.commit if head is not None else None
    if landing is Landing.LANDED and head is not None:
        # The next attempt of the task finds the maker of the publication that it may replace.
        record_maker(connection, move, head.commit)
    _audit(
        connection,
        at=at,
        kind=kind,
        original_actor=intent.actor,
        operation=intent.operation,
        outcome={
            "target": {"repository": move.repository, "branch": move.branch},
            "outcome": landing,
            "head": shown,
        },
    )
    record_event(
        connection,
        at=at,
        actor=RECOVERY_ACTOR,
        kind=kind,
        operation=intent.operation,
        original_actor=intent.actor,
        repository=move.repository,
        outside_branch=move.branch,
        action=move.action,
        head=shown,
        attempt=move.key,
        epoch=move.epoch,
    )


# Pending intents, for recovery, the doctor and cleanup.


def list_intents(connection: sa.Connection) -> list[Intent]:
    query = sa.select(intents).order_by(intents.c.created_at, intents.c.id)
    return [_to_intent(row) for row in connection.execute(query).mappings()]


def take_over_intent(connection: sa.Connection, intent: Intent) -> Intent | None:
    """Own an expired intent; None where its owner or another recovery was first."""
    at = now(connection)
    epoch = ids.Epoch(intent.epoch + 1)
    changed = connection.execute(
        sa.update(intents)
        .where(
            intents.c.id == intent.id, intents.c.epoch == intent.epoch, intents.c.lease_until < at
        )
        .values(epoch=epoch, lease_until=at + intents.c.lease_seconds * 1_000_000)
    )
    return replace(intent, epoch=epoch) if changed.rowcount == 1 else None


def release_intent(connection: sa.Connection, intent: Intent) -> None:
    """Expire the intent's lease, so that the next recovery can own it at once."""
    connection.execute(
        sa.update(intents)
        .where(intents.c.id == intent.id, intents.c.epoch == intent.epoch)
        .values(lease_until=now(connection) - 1)
    )


def _to_intent(row: sa.RowMapping) -> Intent:
    return Intent(
        id=ids.IntentId(row["id"]),
        epoch=ids.Epoch(row["epoch"]),
        operation=ids.OperationId(row["operation_id"]),
        actor=row["actor"],
        lease_until=ids.Instant(row["lease_until"]),
        move=_find_move(row["body"]),
    )


def _find_move(text: str) -> PlannedMove | None:
    try:
        body: Mapping[str, Any] = records.load(text)
        return PlannedMove(**{**body, "action": Action(body["action"])})
    except (KeyError, TypeError, ValueError):
        return None


def staging_owners(connection: sa.Connection) -> set[AttemptRef]:
    """Return the attempts whose staging branches are kept: live ones, and those of an intent."""
    query = sa.select(attempts.c.key, attempts.c.epoch).where(records.is_live(now(connection)))
    rows = connection.execute(query)
    live = {AttemptRef(key=row.key, epoch=ids.Epoch(row.epoch)) for row in rows}
    return live | {intent.move.attempt for intent in list_intents(connection) if intent.move}


# Transactions whose owner is long gone.


def _abandoned(connection: sa.Connection) -> list[ids.TransactionId]:
    at = now(connection)
    query = sa.select(transactions.c.id).where(
        transactions.c.state == TransactionState.OPEN,
        transactions.c.lease_until < at - records.abandonment(transactions.c.lease_seconds),
    )
    return [ids.TransactionId(id) for id in connection.execute(query).scalars()]


def _abort_abandoned(connection: sa.Connection, id: ids.TransactionId) -> bool:
    """Abort the transaction; return False if it was renewed or closed meanwhile."""
    records.lock_branches(connection, records.branches_with_head(connection, [id]))
    found = records.lock_transactions(connection, [id])
    if id not in _abandoned(connection):
        return False
    abort_in(connection, [id], caller=Caller(actor=RECOVERY_ACTOR), kind="abandoned")
    gone = found[id]
    _audit(
        connection,
        at=now(connection),
        kind="abort",
        original_actor=gone.actor,
        # An OPEN transaction belongs to no operation yet.
        operation=id,
        outcome={
            "target": {"dataset": str(gone.dataset), "branch": gone.branch},
            "outcome": "aborted",
            "restored_to": gone.parent,
        },
    )
    return True


def _audit(
    connection: sa.Connection,
    *,
    at: ids.Instant,
    kind: str,
    original_actor: str,
    operation: str,
    outcome: Mapping[str, object],
) -> None:
    connection.execute(
        sa.insert(recoveries).values(
            id=ids.mint("r"),
            kind=kind,
            original_actor=original_actor,
            operation_id=operation,
            publication=None,
            outcomes=records.dump([outcome]),
            at=at,
        )
    )


# Builds that are canceled or have no process any more, and branches that units left.

_ENDED: dict[AttemptState | None, str] = {
    AttemptState.SUCCEEDED: "succeeded",
    AttemptState.FAILED: "failed",
    AttemptState.SUPERSEDED: "canceled",
    AttemptState.CANCELED: "canceled",
}
_UNFINISHED = ("waiting", "running")


def cancel_build(database: Database, id: str, *, actor: str) -> BuildRecord:
    """Cancel a build and abort its OPEN transactions.

    The process of the build stops when the catalog next rejects its attempt.
    """

    def work(connection: sa.Connection) -> ids.BuildId:
        found = load_build(connection, id)
        if found.state not in {RUNNING, "canceled"}:
            raise BuildNotRunning(build=id, state=found.state)
        ref = _attempt_of(connection, found.id)
        abort_attempt_in(connection, ref, AttemptState.CANCELED, actor=actor, kind="canceled")
        return found.id

    _finish(database, database.write(work), actor=actor)
    return database.read(lambda c: load_build(c, id))


def settle_builds(database: Database, *, actor: str, key: str | None = None) -> list[ids.BuildId]:
    """Close builds that no process runs any more, superseded or abandoned; return their ids."""
    dead = database.read(partial(_dead, key=key))
    for id in dead:
        database.write(partial(_abort_dead, id=id, actor=actor))
        _finish(database, id, actor=actor)
    return dead


def _finish(database: Database, id: ids.BuildId, *, actor: str) -> None:
    """Drop the unused branches of a build, then close its record.

    The record is closed last: after a crash before that, recovery finds the build and finishes it.
    """
    drop_unused_branches(database, database.read(partial(_made_for, build=id)), actor=actor)
    database.write(partial(_close, id=id))


def _dead(
    connection: sa.Connection, *, key: str | None = None, id: ids.BuildId | None = None
) -> list[ids.BuildId]:
    """Return builds recorded as running whose attempt has ended or is abandoned."""
    query = (
        sa.select(builds.c.id)
        .join(attempts, records.BUILD_ATTEMPT)
        .where(builds.c.state == RUNNING, sa.not_(records.is_live(now(connection))))
    )
    query = records.filtered(query, {builds.c.attempt_key: key, builds.c.id: id})
    return [ids.BuildId(found) for found in connection.execute(query).scalars()]


def _abort_dead(connection: sa.Connection, id: ids.BuildId, actor: str) -> None:
    # Its process may have renewed the lease since the first read.
    if _dead(connection, id=id):
        ref = _attempt_of(connection, id)
        abort_attempt_in(connection, ref, AttemptState.FAILED, actor=actor, kind="abandoned")


def _close(connection: sa.Connection, id: ids.BuildId) -> None:
    """Close the record of a build with the state of its attempt; abort its unfinished jobs."""
    state = find_attempt_state(connection, _attempt_of(connection, id))
    if state not in _ENDED or not end_build_in(connection, id, _ENDED[state]):
        return
    mine = (jobs.c.build_id == id, jobs.c.state.in_(_UNFINISHED))
    for row in connection.execute(sa.select(jobs.c.ordinal, jobs.c.body).where(*mine)).all():
        connection.execute(
            sa.update(jobs)
            .where(jobs.c.build_id == id, jobs.c.ordinal == row.ordinal)
            .values(
                state="aborted", body=records.dump({**records.load(row.body), "state": "aborted"})
            )
        )


def _attempt_of(connection: sa.Connection, id: ids.BuildId) -> AttemptRef:
    row = connection.execute(
        sa.select(builds.c.attempt_key, builds.c.attempt_epoch).where(builds.c.id == id)
    ).one()
    return AttemptRef(key=row.attempt_key, epoch=ids.Epoch(row.attempt_epoch))


def _made_for(connection: sa.Connection, build: ids.BuildId) -> list[ids.BranchId]:
    query = sa.select(branches.c.id).where(branches.c.made_for == build)
    return [ids.BranchId(id) for id in connection.execute(query).scalars()]


def _left_by_units(connection: sa.Connection) -> list[ids.BranchId]:
    """Return unused root branches of aborted units, whichever writer aborted them."""
    # An unused root has no head: the partial index `branches_unused` has only these few rows.
    query = (
        sa.select(branches.c.id)
        .join(units, units.c.id == branches.c.made_for)
        .where(
            branches.c.head_id.is_(None),
            branches.c.made_for.is_not(None),
            units.c.state == TransactionState.ABORTED,
        )
    )
    return [ids.BranchId(id) for id in connection.execute(query).scalars()]
