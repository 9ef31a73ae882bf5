"""Publications of workspace tasks to lakeFS: the one effect that is outside the catalog.

Each publication is an intent, an effect and a record. The catalog records the intent, the attempt
moves the lakeFS branch by one merge or hard reset, and the catalog records which attempt made the
commit and clears the intent. An attempt that dies in between leaves an intent for recovery.
"""

import enum
from dataclasses import asdict, dataclass

import sqlalchemy as sa

from headgate.catalog.database import now
from headgate.catalog.records import dump, lock_attempt
from headgate.catalog.schema import intents, table
from headgate.errors import IntentTakenOver
from headgate.model.ids import Epoch, Instant, IntentId, OperationId, mint_intent, mint_operation
from headgate.model.nouns import AttemptRef
from headgate.model.recovery import Landing, WorkspaceHead, landing_of

workspace_publications = table(
    "workspace_publications",
    key="repository ref",
    text="branch attempt_key execution action",
    number="attempt_epoch at",
)


class Action(enum.StrEnum):
    MERGE = "merge"
    # Replaces an abandoned publication by the staged commit.
    RESET = "reset"
    # Removes an abandoned publication; makes no commit.
    RESET_TO_INPUT = "reset to input"


@dataclass(frozen=True, kw_only=True)
class PlannedMove:
    """A move of a lakeFS branch, and the attempt that makes it."""

    repository: str
    branch: str
    # The head when the move was decided.
    expected: str
    action: Action
    # The commit that a reset shows; None for a merge, whose commit only lakeFS can name.
    planned: str | None
    key: str
    epoch: int
    execution: str

    @property
    def attempt(self) -> AttemptRef:
        return AttemptRef(key=self.key, epoch=Epoch(self.epoch))

    def landing(self, head: WorkspaceHead | None) -> Landing:
        """Classify the move by what the branch shows now."""
        return landing_of(
            expected=self.expected, planned=self.planned, execution=self.execution, head=head
        )


@dataclass(frozen=True, kw_only=True)
class Intent:
    """A move without a record. The owner is the holder of the newest epoch."""

    id: IntentId
    epoch: Epoch
    operation: OperationId
    actor: str
    lease_until: Instant
    # None where the stored text cannot be read.
    move: PlannedMove | None


def announce_move(
    connection: sa.Connection, move: PlannedMove, *, actor: str, lease_seconds: int
) -> Intent:
    """Record the intent; raise `AttemptSuperseded` unless the attempt is its key's newest."""
    lock_attempt(connection, move.attempt)
    at = now(connection)
    intent = Intent(
        id=mint_intent(),
        epoch=Epoch(1),
        operation=mint_operation(),
        actor=actor,
        lease_until=Instant(at + lease_seconds * 1_000_000),
        move=move,
    )
    connection.execute(
        sa.insert(intents).values(
            id=intent.id,
            operation_id=intent.operation,
            kind="workspace",
            actor=actor,
            phase="A",
            epoch=intent.epoch,
            lease_seconds=lease_seconds,
            lease_until=intent.lease_until,
            body=dump(asdict(move)),
            created_at=at,
        )
    )
    return intent


def record_move(
    connection: sa.Connection, intent: Intent, move: PlannedMove, made: str | None
) -> None:
    """Clear the intent and record the maker of the commit `made`; None if the move did not land.

    Raise `IntentTakenOver` where recovery owned the intent meanwhile and did not see the commit.
    """
    seen = made is not None and find_maker(connection, move.repository, made) == move.attempt
    if not _clear(connection, intent) and not seen:
        raise IntentTakenOver(intent=intent.id, epoch=intent.epoch)
    if made is not None:
        record_maker(connection, move, made)


def record_maker(connection: sa.Connection, move: PlannedMove, made: str) -> None:
    """Record which attempt made a commit."""
    if move.action is Action.RESET_TO_INPUT:
        return
    makers = workspace_publications
    connection.execute(
        sa.delete(makers).where(makers.c.repository == move.repository, makers.c.ref == made)
    )
    connection.execute(
        sa.insert(makers).values(
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


def find_maker(connection: sa.Connection, repository: str, ref: str) -> AttemptRef | None:
    """Return the attempt that made a commit; None for a commit of another writer."""
    makers = workspace_publications
    row = connection.execute(
        sa.select(makers.c.attempt_key, makers.c.attempt_epoch).where(
            makers.c.repository == repository, makers.c.ref == ref
        )
    ).one_or_none()
    return AttemptRef(key=row.attempt_key, epoch=Epoch(row.attempt_epoch)) if row else None


def clear_intent(connection: sa.Connection, intent: Intent) -> None:
    """Delete the intent; raise `IntentTakenOver` where another process owns it."""
    if not _clear(connection, intent):
        raise IntentTakenOver(intent=intent.id, epoch=intent.epoch)


def _clear(connection: sa.Connection, intent: Intent) -> bool:
    mine = intents.c.id == intent.id, intents.c.epoch == intent.epoch
    return connection.execute(sa.delete(intents).where(*mine)).rowcount == 1


# Staging branches, for cleanup.


def known_repositories(connection: sa.Connection) -> list[str]:
    """Return the repositories in which tasks of this store have published."""
    column = workspace_publications.c.repository
    return sorted(connection.execute(sa.select(column).distinct()).scalars())
