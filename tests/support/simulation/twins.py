"""Broken twins of the product: each leaves one rule out, inside the simulated processes.

A simulation that finds nothing in a twin would find nothing in the product either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from sqlalchemy import bindparam, delete

from headgate.catalog import garbage_collection, publish, records
from headgate.catalog.operations import claim_operation
from headgate.catalog.schema import holds, operations
from headgate.storage import local
from headgate.store import transactions
from tests.support.simulation.steps import DAY_US, SECOND_US, TO_END, Focus, Step, choose


def _patch(module: ModuleType, name: str, broken: object) -> None:
    assert hasattr(module, name), name
    setattr(module, name, broken)


def _skip_attempt_fence() -> None:
    """The door does not check that an attempt is the newest."""
    _patch(records, "lock_attempt", lambda *_: None)


def _look_operations_up_last() -> None:
    """A repeated request is recognised only after it was published again."""

    def claim(connection: Any, operation: Any, key: Any) -> None:
        connection.execute(operations.delete().where(operations.c.key == key.key))
        claim_operation(connection, operation, key)

    _patch(publish, "claim_operation", claim)
    _patch(transactions, "do_once", lambda _database, _key, act: act())


def _skip_directory_sync() -> None:
    """A new name in a directory is not synced."""
    _patch(local, "_sync_directory", lambda _: None)


def _publish_condemned() -> None:
    """The door accepts content that cleanup has condemned."""
    _patch(publish, "_check_nothing_condemned", lambda *_: None)


def _sweep_by_old_marks() -> None:
    """Cleanup sweeps what it found condemned, and does not look again under the lock."""
    _patch(garbage_collection, "claim_objects", lambda _database, due, _at: sorted(due))


def _forget_holds() -> None:
    """A reset does not hold what it removes."""
    nothing = bindparam("the_branch") == ""
    _patch(publish, "_HOLD", delete(holds).where(nothing))


# Leaves a condemned content that the same text needs again.
_CONDEMNED = (
    Step("start", 0, verb="put"),
    Step("go", 0, a=TO_END),
    Step("start", 0, c=1, verb="put"),
    Step("go", 0, a=TO_END),
    Step("clock", a=5 * DAY_US),
    Step("start", 0, verb="clean"),
    Step("go", 0, a=TO_END),
    Step("clock", a=26 * 3600 * SECOND_US),
)
# Two results of one job, of two inputs.
_BUILT_TWICE = tuple(
    step
    for text in (5, 6)
    for start in (Step("start", 0, 2, 0, text, "put"), Step("start", 0, 4, 0, 1, "build"))
    for step in (start, Step("go", 0, a=TO_END))
)


@dataclass(frozen=True, kw_only=True)
class Twin:
    """A rule that is left out, and where its absence shows."""

    leave_out: Callable[[], None]
    focus: Focus | None = None
    # Of an episode.
    steps: int = 250
    # The rule matters for a few boundaries of a cleanup: each episode stops it at another one.
    preempts: bool = False

    def episode(self, number: int) -> list[Step]:
        if not self.preempts:
            return list(choose(f"twin-{number}", self.steps, self.focus))
        return [
            *_CONDEMNED,
            Step("start", 1, verb="clean"),
            Step("go", 1, a=1 + 2 * number),
            Step("start", 0, verb="put"),
            Step("go", 0, a=TO_END),
            Step("go", 1, a=TO_END),
        ]


TWINS: Mapping[str, Twin] = {
    "attempt fence": Twin(
        leave_out=_skip_attempt_fence,
        focus=Focus(verbs=("task",), ranges=(range(1), range(1), range(1000)), has_faults=False),
    ),
    "operation looked up last": Twin(
        leave_out=_look_operations_up_last, focus=Focus(verbs=("put", "remove", "reset"))
    ),
    "directory not synced": Twin(
        leave_out=_skip_directory_sync, focus=Focus(verbs=("put", "read"))
    ),
    "condemned content published": Twin(leave_out=_publish_condemned, preempts=True),
    "swept by an old mark": Twin(leave_out=_sweep_by_old_marks, preempts=True),
    "resets do not hold": Twin(
        leave_out=_forget_holds,
        focus=Focus(
            verbs=("build", "reset"),
            ranges=(range(4, 5), range(1), range(1000)),
            prelude=_BUILT_TWICE,
        ),
    ),
}
