"""Lineage of builds: job events become OpenLineage events, sent in the background.

A build neither waits for the receiver nor fails with it.
"""

import logging
import queue
import threading
import time
from typing import Any

from headgate.builds.attempt import JobEvent
from headgate.catalog.database import Database
from headgate.catalog.records import load_transactions
from headgate.model.ids import TransactionId
from headgate.settings import LineageSettings
from headgate.tables.versions import TableVersions

_log = logging.getLogger(__name__)

# Seconds that the end of a process waits for events that are not sent.
_CLOSE_SECONDS = 5.0
_SEND_SECONDS = 2.0
# Limits the memory of a long build whose receiver is unavailable.
_QUEUE_SIZE = 10_000


class Lineage:
    """Receives job events, and sends them in order from a thread of its own."""

    def __init__(
        self, settings: LineageSettings, database: Database, tables: TableVersions
    ) -> None:
        self._settings = settings
        self._database = database
        self._tables = tables
        self._queue: queue.Queue[JobEvent | None] = queue.Queue(_QUEUE_SIZE)
        self._thread: threading.Thread | None = None
        self._transport: Any = None
        self._warned = False

    def receive(self, event: JobEvent) -> None:
        """Queue an event; never blocks."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._send_all, name="lineage", daemon=True)
            self._thread.start()
        try:
            self._queue.put_nowait(event)
        except queue.Full:
            self._warn(f"more than {_QUEUE_SIZE} events wait to be sent")

    def close(self) -> None:
        """Wait a few seconds for queued events, then discard them."""
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
        while (event := self._queue.get()) is not None:
            # An error of the receiver or of a library must not fail a build.
            try:
                self._send(event)
            except Exception as error:
                self._warn(str(error) or type(error).__name__)

    def _send(self, event: JobEvent) -> None:
        try:
            from headgate.lineage import openlineage  # noqa: PLC0415  (optional, and slow)
        except ImportError:
            self._warn("its client is not installed: pip install 'headgate[lineage]'")
            return
        if self._transport is None:
            self._transport = openlineage.open_transport(
                self._settings, timeout_seconds=_SEND_SECONDS
            )
        read = (given["transaction"] for given in event.inputs if given["transaction"])
        ids = [TransactionId(id) for id in (*read, *event.outputs.values())]
        transactions = self._database.read(lambda c: load_transactions(c, ids))
        self._transport.emit(
            openlineage.run_event(event, transactions, self._tables, self._settings.namespace)
        )

    def _warn(self, why: str) -> None:
        """Log the first failure only: later events fail for the same reason."""
        if not self._warned:
            self._warned = True
            _log.warning(
                "OpenLineage events for %s are lost: %s. The data is not affected.",
                self._settings.url,
                why,
            )
