"""A build's pulse: its leases are renewed, and an end that came from outside is noticed."""

from __future__ import annotations

import contextlib
import time

from headgate.attempts.pulse import RENEW_SECONDS, Pulse
from headgate.builds.ledger import Ledger
from headgate.catalog.attempts import heartbeat
from headgate.errors import HeadgateError

_LOOK_SECONDS = 1.0


def beating(ledger: Ledger) -> Pulse:
    """To be entered for as long as the build's jobs run."""
    renewed = time.monotonic()

    def beat() -> None:
        nonlocal renewed
        # A catalog that does not answer for a while is asked again; leases outlast it.
        with contextlib.suppress(HeadgateError):
            ledger.look_outside()
        if time.monotonic() - renewed >= RENEW_SECONDS and ledger.ended_by is None:
            renewed = time.monotonic()
            _renew(ledger)

    return Pulse(beat, seconds=_LOOK_SECONDS)


def _renew(ledger: Ledger) -> None:
    for ref in (ledger.opened.attempt, *ledger.live_attempts()):
        # A job that ended meanwhile needs no lease.
        with contextlib.suppress(HeadgateError):
            heartbeat(ledger.parts.database, ref)
