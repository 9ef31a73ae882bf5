"""Spark jobs that begin after their owner was ended, and are ended too.

A process that is killed may have asked the JVM for a job a moment before; Spark refuses future
jobs of a group, but not those under a tag, and threads of user code have only the session's tag.
"""

from __future__ import annotations

import contextlib
import heapq
import threading
import time
from collections.abc import Callable, Iterable

_FIRST_SECONDS = 0.25
# A question to the JVM that was still being planned then has long been answered.
_LAST_SECONDS = 300.0


class LateJobs:
    """Looks again under each tag, ever more seldom, until nothing can come under it any more."""

    def __init__(self, cancel: Callable[[str], None]) -> None:
        self._cancel = cancel
        # When to look next, under which tag, and how long to wait after that.
        self._due: list[tuple[float, str, float]] = []
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def watch(self, tags: Iterable[str]) -> None:
        """From now on nothing under these tags lives long."""
        with self._changed:
            for tag in tags:
                heapq.heappush(
                    self._due, (time.monotonic() + _FIRST_SECONDS, tag, 2 * _FIRST_SECONDS)
                )
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._look, name="late-jobs", daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        """Ends the watch: the JVM is about to end, or is somebody else's from here on."""
        with self._changed:
            self._closed = True
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _look(self) -> None:
        while (tag := self._next()) is not None:
            # A JVM that does not answer, or no longer, has nothing left that could be ended.
            with contextlib.suppress(Exception):
                self._cancel(tag)

    def _next(self) -> str | None:
        with self._changed:
            while not self._closed:
                wait = self._due[0][0] - time.monotonic() if self._due else None
                if wait is None or wait > 0:
                    self._changed.wait(wait)
                    continue
                _, tag, pause = heapq.heappop(self._due)
                if pause < _LAST_SECONDS:
                    heapq.heappush(self._due, (time.monotonic() + pause, tag, 2 * pause))
                return tag
        return None
