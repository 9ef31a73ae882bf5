"""A build's pulse: its leases are renewed, and an end that came from outside is noticed."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Self

from headgate.builds.ledger import Ledger
from headgate.catalog.attempts import heartbeat
from headgate.errors import HeadgateError

_LOOK_SECONDS = 1.0
_RENEW_SECONDS = 15.0


class Heartbeat:
    """Beats for the length of a `with` block, in a thread of its own."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="build-heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _beat(self) -> None:
        renewed = time.monotonic()
        while not self._ended.wait(_LOOK_SECONDS):
            # A catalog that does not answer for a while is asked again; leases outlast it.
            with contextlib.suppress(HeadgateError):
                self._ledger.look_outside()
            if time.monotonic() - renewed >= _RENEW_SECONDS and self._ledger.ended_by is None:
                renewed = time.monotonic()
                self._renew()

    def _renew(self) -> None:
        database = self._ledger.parts.database
        for ref in (self._ledger.opened.attempt, *self._ledger.live_attempts()):
            # A job that ended meanwhile needs no lease.
            with contextlib.suppress(HeadgateError):
                heartbeat(database, ref)
