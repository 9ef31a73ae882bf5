"""OpenLineage events, sent in the background: a build neither waits for them nor fails of them."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from headgate.builds.happening import JobHappening
from headgate.catalog.database import Database
from headgate.catalog.find import load_transactions
from headgate.lineage.facts import Read, facts_of
from headgate.model.ids import TransactionId
from headgate.settings import LineageSettings
from headgate.tables.versions import TableVersions

_log = logging.getLogger(__name__)

# How long the end of a process waits for what has not been sent.
_CLOSE_SECONDS = 5.0
_SEND_SECONDS = 2.0
# A receiver that is away must not make a long build remember all it did.
_WAITING = 10_000


class Lineage:
    """Hears what happened to jobs, looks up what they read and wrote, and sends it in order."""

    def __init__(
        self, settings: LineageSettings, database: Database, tables: TableVersions
    ) -> None:
        self._settings = settings
        self._database = database
        self._tables = tables
        self._queue: queue.Queue[JobHappening | None] = queue.Queue(_WAITING)
        self._thread: threading.Thread | None = None
        self._transport: Any = None
        self._warned = False

    def hear(self, happening: JobHappening) -> None:
        """Returns at once, whatever becomes of it."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._send_all, name="lineage", daemon=True)
            self._thread.start()
        try:
            self._queue.put_nowait(happening)
        except queue.Full:
            self._warn(f"more than {_WAITING} events wait to be sent")

    def close(self) -> None:
        """Waits a little for what has not been sent yet, then lets go of it."""
        if self._thread is None:
            return
        deadline = time.monotonic() + _CLOSE_SECONDS
        try:
            self._queue.put(None, timeout=_CLOSE_SECONDS)
        except queue.Full:
            return
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            self._warn(f"{self._queue.qsize()} events were not sent in time")

    def _send_all(self) -> None:
        while (happening := self._queue.get()) is not None:
            # Whatever goes wrong, on the way or in a library, is no reason for a build to fail.
            try:
                self._send(happening)
            except Exception as error:
                self._warn(str(error) or type(error).__name__)

    def _send(self, happening: JobHappening) -> None:
        try:
            from headgate.lineage import wire  # noqa: PLC0415  (optional, and slow)
        except ImportError:
            self._warn("its client is not installed: pip install 'headgate[lineage]'")
            return
        if self._transport is None:
            self._transport = wire.open_transport(self._settings, timeout_seconds=_SEND_SECONDS)
        facts = facts_of(happening, self._read(happening))
        self._transport.emit(wire.run_event(facts, self._settings.namespace))

    def _read(self, happening: JobHappening) -> dict[str, Read]:
        """Every transaction that the job read or wrote, with its schema; by transaction."""
        ids = [*_transactions(happening.inputs), *happening.outputs.values()]
        found = self._database.read(lambda c: load_transactions(c, map(TransactionId, ids)))
        return {
            id: Read(transaction=transaction, tables=self._tables)
            for id, transaction in found.items()
        }

    def _warn(self, why: str) -> None:
        """Says it once: the next event fails for the same reason."""
        if not self._warned:
            self._warned = True
            _log.warning(
                "OpenLineage events for %s are lost: %s. The data is not affected.",
                self._settings.url,
                why,
            )


def _transactions(inputs: Sequence[Mapping[str, Any]]) -> list[str]:
    return [given["transaction"] for given in inputs if given["transaction"]]
