"""What each client has read: the memory that catches a replacement prepared on an older view."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, replace

from headgate.model.names import DatasetName


@dataclass(frozen=True, kw_only=True)
class LastRead:
    """The version that a client last read on purpose."""

    location: str
    # The client marks its statements' loads, so an unmarked one is a refresh inside a commit.
    marks_loads: bool
    # A refused snapshot stays refused, however often its client refreshes and sends it again.
    refused: frozenset[int] = frozenset()


class ServedVersions:
    """Remembers, for each client and table, which version a statement was given to start from.

    Spark loads a table with `?snapshots=…` when it plans a statement, and again without it just
    before it commits. Only the first is what the statement's author saw.
    """

    def __init__(self, *, limit: int = 50_000) -> None:
        self._limit = limit
        self._last: OrderedDict[tuple[str, DatasetName], LastRead] = OrderedDict()
        self._lock = threading.Lock()

    def note_load(self, client: str, name: DatasetName, location: str, *, marked: bool) -> None:
        """A client was given this version."""
        with self._lock:
            known = self._last.get((client, name))
            if known is not None and known.marks_loads and not marked:
                return
            self._keep(client, name, LastRead(location=location, marks_loads=marked))

    def note_commit(self, client: str, name: DatasetName, location: str) -> None:
        """A client made this version, and so knows it."""
        with self._lock:
            known = self._last.get((client, name))
            marks = known is not None and known.marks_loads
            self._keep(client, name, LastRead(location=location, marks_loads=marks))

    def note_refusal(
        self, client: str, name: DatasetName, location: str, snapshots: frozenset[int]
    ) -> None:
        """A client was told that its snapshots are stale: a later statement may start from here."""
        with self._lock:
            known = self._last.get((client, name))
            if known is None or not snapshots:
                return
            refused = known.refused | snapshots
            self._keep(client, name, replace(known, location=location, refused=refused))

    def find(self, client: str, name: DatasetName) -> LastRead | None:
        """What the client last read, if it is still remembered."""
        with self._lock:
            return self._last.get((client, name))

    def _keep(self, client: str, name: DatasetName, read: LastRead) -> None:
        self._last[client, name] = read
        self._last.move_to_end((client, name))
        while len(self._last) > self._limit:
            self._last.popitem(last=False)
