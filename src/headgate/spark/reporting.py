"""How a job process speaks to its build, and how it notices that the build is gone."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Mapping
from typing import Any

from headgate.spark.document import EventKind

_PROGRESS_SECONDS = 0.5


class Reporter:
    """Writes events to a pipe, each one line, whichever thread it comes from."""

    def __init__(self, fd: int) -> None:
        # What user code starts must not hold the pipe open after this process has ended.
        os.set_inheritable(fd, False)
        self._pipe = os.fdopen(fd, "wb", buffering=0)
        self._lock = threading.Lock()

    def say(self, kind: EventKind, **facts: Any) -> None:
        line = json.dumps({"event": kind.value, **facts}, default=str).encode() + b"\n"
        with self._lock:
            self._pipe.write(line)


def end_with_parent() -> None:
    """Kills this process and all it started once the other end of its stdin is closed."""
    lifeline = os.dup(0)
    os.set_inheritable(lifeline, False)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)

    def watch() -> None:
        while os.read(lifeline, 4096):
            pass
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, name="end-with-parent", daemon=True).start()


class ProgressWatch:
    """Reports how far Spark is while it works, whenever that has changed."""

    def __init__(self, measure: Callable[[], Mapping[str, int] | None], reporter: Reporter) -> None:
        self._measure = measure
        self._reporter = reporter
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="progress", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        last: Mapping[str, int] | None = None
        while not self._ended.wait(_PROGRESS_SECONDS):
            now = self._measure()
            if now and now != last:
                self._reporter.say(EventKind.PROGRESS, **now)
            last = now
