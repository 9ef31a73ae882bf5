"""Writers of one branch in one process: one after the other, rather than one against the other."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from weakref import WeakValueDictionary


class Turns:
    """A turn for each branch; it spares losers their work, and decides nothing: the door does."""

    def __init__(self) -> None:
        # Forgotten with the last writer who waits for it; a writer need not wait for itself.
        self._locks: WeakValueDictionary[Hashable, threading.RLock] = WeakValueDictionary()
        self._guard = threading.Lock()

    @contextmanager
    def taken(self, branch: Hashable, *, patience_seconds: float) -> Iterator[None]:
        """Waits for the others who write this branch; after a while, goes on all the same."""
        with self._guard:
            lock = self._locks.setdefault(branch, threading.RLock())
        mine = lock.acquire(timeout=patience_seconds)
        try:
            yield
        finally:
            if mine:
                lock.release()
