"""Since when the snapshots of tables are remembered: one moment for the whole store.

Every version lists its table's earlier snapshots. What none of them has shown since this moment is
listed no longer, whatever version is asked, so that cleanup may take the files. The moment only
ever moves forward, with the time to retain.
"""

from __future__ import annotations

import threading
import time

from sqlalchemy import Connection, insert, select, update

from headgate.catalog.database import Database
from headgate.catalog.locks import lock_counter
from headgate.catalog.schema import store
from headgate.model.ids import Instant

_KEY = "snapshots_remembered_since"
# What is forgotten stays on storage for a day at least, so a reader may be this much behind.
_BELIEVED_SECONDS = 60.0


def remembered_since(connection: Connection) -> Instant:
    """The moment; 0 as long as nothing was ever forgotten."""
    found = connection.execute(select(store.c.value).where(store.c.key == _KEY)).scalar()
    return Instant(int(found) if found is not None else 0)


def forget_before(database: Database, moment: Instant) -> Instant:
    """Moves the moment forward, never back; where it is then."""

    def work(connection: Connection) -> Instant:
        # Of two cleanups the one that is behind must not win.
        lock_counter(connection)
        held = remembered_since(connection)
        if not held:
            connection.execute(insert(store).values(key=_KEY, value=str(moment)))
        elif held < moment:
            connection.execute(update(store).where(store.c.key == _KEY).values(value=str(moment)))
        return max(held, moment)

    return database.write(work)


class Remembered:
    """The moment, asked for at most once a minute; safe to use from many threads."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._since: Instant | None = None
        self._asked_at = 0.0

    def __call__(self) -> Instant:
        with self._lock:
            at = time.monotonic()
            if self._since is None or at - self._asked_at > _BELIEVED_SECONDS:
                self._since = self._database.read(remembered_since)
                self._asked_at = at
            return self._since
