"""Writers of one process at one SQLite catalog: served in the order in which they came.

SQLite lets its writers poll: who has waited longest looks least often, and in a crowd one may
wait for seconds while others are served again and again.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager


class Line:
    """It makes waiting fair and short, and decides nothing: the database does."""

    def __init__(self) -> None:
        self._waiting: deque[threading.Event] = deque()
        self._guard = threading.Lock()

    @contextmanager
    def turn(self, *, patience_seconds: float) -> Iterator[None]:
        """Waits for those who came before; after a while, goes on all the same."""
        mine = threading.Event()
        try:
            with self._guard:
                self._waiting.append(mine)
                self._call_the_first()
            mine.wait(patience_seconds)
            yield
        finally:
            with self._guard:
                if mine in self._waiting:
                    self._waiting.remove(mine)
                self._call_the_first()

    def _call_the_first(self) -> None:
        if self._waiting:
            self._waiting[0].set()
