"""What became of a move outside whose attempt died: recorded, never repeated and never undone."""

from __future__ import annotations

from sqlalchemy import Connection

from headgate.catalog.database import Database, now
from headgate.catalog.intents import Intent, clear_intent, take_over_intent
from headgate.catalog.workspaces import PlannedMove, move_from_json, record_maker
from headgate.catalog.writes import record_event
from headgate.model.failpoints import Failpoint, reach
from headgate.model.ports import Outside
from headgate.model.recovery import RECOVERY_ACTOR, Landing, landing_of


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
