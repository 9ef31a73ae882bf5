"""Attempts of tasks at the catalog itself."""

from __future__ import annotations

from functools import partial
from typing import Any

from headgate.attempts.pulse import LEASE_SECONDS
from headgate.catalog.attempts import check_newest, dispatch_attempt, end_attempt, heartbeat
from headgate.catalog.database import Database
from headgate.model.nouns import AttemptState
from headgate.tasks.ports import Held


class CatalogAttempts:
    """Implements `Attempts` in one actor's name; whoever has the catalog needs no secret."""

    def __init__(self, database: Database, actor: str) -> None:
        self._database = database
        self._actor = actor

    def dispatch(self, key: str, *, branch: str | None = None) -> Held:
        made = dispatch_attempt(
            self._database,
            key,
            actor=self._actor,
            lease_seconds=LEASE_SECONDS,
            scope=attempt_scope(branch),
        )
        return Held(ref=made.ref)

    def renew(self, held: Held) -> None:
        heartbeat(self._database, held.ref)

    def check(self, held: Held) -> None:
        self._database.read(partial(check_newest, ref=held.ref))

    def end(self, held: Held, state: AttemptState) -> None:
        end_attempt(self._database, held.ref, state)


def attempt_scope(branch: str | None) -> dict[str, Any]:
    """What is known of a task's attempt when it is dispatched; tables come later, if at all."""
    return {"branch": branch, "inputs": {}, "outputs": {}}
