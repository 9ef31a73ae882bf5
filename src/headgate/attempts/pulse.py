"""The pulse of work that takes long: leases are renewed for as long as its process may go on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Self

from headgate.errors import Conflict, HeadgateError

RENEW_SECONDS = 15.0
LEASE_SECONDS = 60


def _lose_nothing(error: HeadgateError) -> None:
    """For work that nobody else can have."""


class Pulse:
    """Beats for the length of a `with` block, in a thread of its own."""

    def __init__(
        self,
        beat: Callable[[], None],
        *,
        lost: Callable[[HeadgateError], None] = _lose_nothing,
        seconds: float = RENEW_SECONDS,
    ) -> None:
        self._beat = beat
        self._lost = lost
        self._seconds = seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="pulse", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _go_on(self) -> None:
        while not self._ended.wait(self._seconds):
            try:
                self._beat()
            except Conflict as error:
                # Somebody else has the work now: whatever is still done here is in vain.
                self._lost(error)
                return
            except HeadgateError:
                # Who does not answer for a while is asked again; leases outlast it.
                continue
