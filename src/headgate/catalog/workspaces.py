"""The ledger of workspaces that another system keeps: intents, and who made a head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import BigInteger, Column, Connection, Table, Text, delete, insert, select

from headgate.catalog.database import Database, now
from headgate.catalog.intents import Intent, clear_intent, record_intent, take_over_intent
from headgate.catalog.records import abandonment, lock_attempt
from headgate.catalog.schema import attempts, metadata
from headgate.catalog.transactions import record_event
from headgate.errors import Invalid
from headgate.model.changes import IntentRef
from headgate.model.failpoints import Failpoint, reach
from headgate.model.ids import Epoch, mint_operation
from headgate.model.nouns import AttemptRef, AttemptState
from headgate.model.ports import Outside
from headgate.model.recovery import RECOVERY_ACTOR, Landing, landing_of

WORKSPACE = "workspace"

workspace_publications = Table(
    "workspace_publications",
    metadata,
    Column("repository", Text, primary_key=True),
    Column("ref", Text, primary_key=True),
    Column("branch", Text, nullable=False),
    Column("attempt_key", Text, nullable=False),
    Column("attempt_epoch", BigInteger, nullable=False),
    Column("execution", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
)


@dataclass(frozen=True, kw_only=True)
class PlannedMove:
    """A branch outside that is about to be moved, by whom, and to what where that is known."""

    repository: str
    branch: str
    # Where the branch was when the move was decided.
    expected: str
    # merge makes a commit whose id only the outside knows; reset goes to one that is known.
    action: str
    planned: str | None
    key: str
    epoch: int
    execution: str

    @property
    def attempt(self) -> AttemptRef:
        return AttemptRef(key=self.key, epoch=Epoch(self.epoch))

    @property
    def target(self) -> dict[str, str]:
        return {"repository": self.repository, "branch": self.branch}


def move_from_json(data: Mapping[str, Any] | None) -> PlannedMove:
    """Reads what `announce_move` wrote; anything else is refused as a whole."""
    try:
        return PlannedMove(**(data or {}))
    except TypeError as error:
        raise Invalid(f"an intent cannot be read: {error}.") from error


def announce_move(
    connection: Connection, move: PlannedMove, *, actor: str, lease_seconds: int
) -> IntentRef:
    """Phase A: refuses an attempt that is not its key's newest; then the move is on record."""
    lock_attempt(connection, move.attempt)
    return record_intent(
        connection,
        operation=mint_operation(),
        kind=WORKSPACE,
        actor=actor,
        branches=[],
        body=asdict(move),
        lease_seconds=lease_seconds,
    )


def settle_move(
    connection: Connection, ref: IntentRef, move: PlannedMove, made: str | None
) -> None:
    """Phases C and D: what the move made is in the ledger, and nothing is left to be settled."""
    clear_intent(connection, ref)
    if made is not None:
        record_maker(connection, move, made)


def record_maker(connection: Connection, move: PlannedMove, made: str) -> None:
    """That this attempt made this head; a reset back to the input made nothing new."""
    if made == move.expected:
        return
    table = workspace_publications
    connection.execute(
        delete(table).where(table.c.repository == move.repository, table.c.ref == made)
    )
    connection.execute(
        insert(table).values(
            repository=move.repository,
            ref=made,
            branch=move.branch,
            attempt_key=move.key,
            attempt_epoch=move.epoch,
            execution=move.execution,
            action=move.action,
            at=now(connection),
        )
    )


def find_maker(connection: Connection, repository: str, ref: str) -> AttemptRef | None:
    """Which attempt made a commit outside, if the ledger knows."""
    table = workspace_publications
    row = connection.execute(
        select(table.c.attempt_key, table.c.attempt_epoch).where(
            table.c.repository == repository, table.c.ref == ref
        )
    ).one_or_none()
    return AttemptRef(key=row.attempt_key, epoch=Epoch(row.attempt_epoch)) if row else None


def known_repositories(connection: Connection) -> list[str]:
    """The repositories outside in which tasks of this store have published."""
    column = workspace_publications.c.repository
    return sorted(connection.execute(select(column).distinct()).scalars())


def live_attempts(connection: Connection) -> set[AttemptRef]:
    """Attempts that may still be at work: running, and not without a lease for long."""
    horizon = now(connection) - abandonment(attempts.c.lease_seconds)
    rows = connection.execute(
        select(attempts.c.key, attempts.c.epoch).where(
            attempts.c.state == AttemptState.RUNNING, attempts.c.lease_until >= horizon
        )
    )
    return {AttemptRef(key=row.key, epoch=Epoch(row.epoch)) for row in rows}


# What became of a move outside whose attempt died: recorded, never repeated and never undone.


def record_landing(database: Database, intent: Intent, outside: Outside) -> Landing | None:
    """Looks where the branch is now and notes what that says; None where somebody else does."""
    mine = database.write(lambda connection: take_over_intent(connection, intent))
    if mine is None:
        return None
    reach(Failpoint.RECOVERY_TAKEN_OVER)
    move = move_from_json(mine.body)
    head = outside.find_head(move.target)
    mark = outside.find_mark(move.target)
    landing = landing_of(
        expected=move.expected,
        planned=move.planned,
        execution=move.execution,
        head=head,
        mark=mark,
    )
    reach(Failpoint.RECOVERY_CLASSIFIED)
    database.write(lambda connection: _close(connection, mine, move, landing, head))
    reach(Failpoint.RECOVERY_SETTLED)
    return landing


def _close(
    connection: Connection,
    intent: Intent,
    move: PlannedMove,
    landing: Landing,
    head: str | None,
) -> None:
    clear_intent(connection, intent.ref)
    if landing is Landing.LANDED and head is not None:
        # From here on the next attempt of the task knows whose publication it finds.
        record_maker(connection, move, head)
    record_event(
        connection,
        at=now(connection),
        actor=RECOVERY_ACTOR,
        kind=f"workspace {landing}",
        operation=intent.operation,
        original_actor=intent.actor,
        repository=move.repository,
        outside_branch=move.branch,
        action=move.action,
        head=head,
        attempt=move.key,
        epoch=move.epoch,
    )
