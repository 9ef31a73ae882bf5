"""Recovery: settles what dead processes left, once, and leaves an audit trail.

It aborts abandoned transactions, closes builds and units that ended, and records whether the last
move of a dead task attempt landed in lakeFS. It never moves a lakeFS branch and never reports the
result of a task: the next attempt decides. An intent is taken over first, so that two recoveries,
or a recovery and a slow owner, cannot both settle it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from sqlalchemy import Connection, insert, select

from headgate.catalog.builds import settle_builds
from headgate.catalog.database import Database, now
from headgate.catalog.records import (
    abandonment,
    branches_with_head,
    dump,
    lock_branches,
    lock_transactions,
)
from headgate.catalog.schema import recoveries, transactions
from headgate.catalog.transactions import abort_in, record_event
from headgate.catalog.units import settle_units
from headgate.catalog.workspaces import (
    Intent,
    PlannedMove,
    clear_intent,
    list_intents,
    record_maker,
    release_intent,
    take_over_intent,
)
from headgate.errors import HeadgateError, IntentTakenOver
from headgate.model.changes import Caller
from headgate.model.failpoints import Failpoint, reach
from headgate.model.ids import Instant, TransactionId, mint
from headgate.model.nouns import TransactionState
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
    # Operation and reason: what a person or a later recovery has to look at.
    kept: list[dict[str, str]] = field(default_factory=list)

    def keep(self, intent: Intent, why: str) -> None:
        self.kept.append({"operation": intent.operation, "why": why})


def recover(database: Database, read_head: ReadHead | None, *, dry_run: bool = False) -> Recovered:
    """Settle expired intents, abandoned transactions, ended builds and units.

    `read_head` is None where no lakeFS is configured. A second recovery changes nothing.
    """
    done = Recovered()
    pending, at = database.read(lambda c: (list_intents(c), now(c)))
    for intent in pending:
        if intent.lease_until >= at:
            done.keep(intent, OWNER_ALIVE)
        elif intent.move is None:
            done.keep(intent, "its intent cannot be read")
        elif read_head is None:
            done.keep(intent, "no lakeFS is configured here")
        else:
            _settle(database, intent, intent.move, read_head, done, dry_run=dry_run)
    for id in database.read(_abandoned):
        if dry_run or database.write(partial(_abort_abandoned, id=id)):
            done.aborted_transactions.append(id)
    if not dry_run:
        settle_builds(database, actor=RECOVERY_ACTOR)
        settle_units(database, actor=RECOVERY_ACTOR)
    return done


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
        done.keep(intent, error.message)
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
        done.keep(
            intent,
            f"recorded as unknown: branch {move.branch!r} of {move.repository!r} {shows}",
        )


def _record_landing(
    connection: Connection,
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


# Transactions whose owner is long gone.


def _abandoned(connection: Connection) -> list[TransactionId]:
    at = now(connection)
    query = select(transactions.c.id).where(
        transactions.c.state == TransactionState.OPEN,
        transactions.c.lease_until < at - abandonment(transactions.c.lease_seconds),
    )
    return [TransactionId(id) for id in connection.execute(query).scalars()]


def _abort_abandoned(connection: Connection, id: TransactionId) -> bool:
    """Abort the transaction; return False if it was renewed or closed meanwhile."""
    lock_branches(connection, branches_with_head(connection, [id]))
    found = lock_transactions(connection, [id])
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
    connection: Connection,
    *,
    at: Instant,
    kind: str,
    original_actor: str,
    operation: str,
    outcome: Mapping[str, object],
) -> None:
    connection.execute(
        insert(recoveries).values(
            id=mint("r"),
            kind=kind,
            original_actor=original_actor,
            operation_id=operation,
            publication=None,
            outcomes=dump([outcome]),
            at=at,
        )
    )
