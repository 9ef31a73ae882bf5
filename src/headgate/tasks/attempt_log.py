"""One line of JSON for each thing that happens in an attempt: for people, and for programs."""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

Listener = Callable[[Mapping[str, Any]], None]

# Logs of attempts are kept this long after their last line.
_RETAIN_SECONDS = 30 * 24 * 3600


class AttemptLog:
    """Appends to one file; whoever listens hears each line too."""

    def __init__(
        self, path: Path, about: Mapping[str, Any], listener: Listener = lambda line: None
    ) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._about = dict(about)
        self._listener = listener
        self._lock = threading.Lock()

    def say(self, event: str, *, level: str = "info", **facts: Any) -> None:
        """One thing that happened."""
        line = {"at": _now(), "level": level, "event": event, **self._about, **facts}
        with self._lock, self.path.open("ab") as file:
            file.write(orjson.dumps(line, default=str) + b"\n")
        self._listener(line)

    @contextmanager
    def step(self, name: str) -> Iterator[dict[str, Any]]:
        """A step with its duration; what the block puts into the facts is told with its end."""
        facts: dict[str, Any] = {}
        began = time.perf_counter()
        self._listener({"event": "step", "step": name})
        try:
            yield facts
        except BaseException as error:
            seconds = round(time.perf_counter() - began, 3)
            self.say(
                "step failed",
                level="warning",
                step=name,
                seconds=seconds,
                error=type(error).__name__,
                **facts,
            )
            raise
        self.say("step done", step=name, seconds=round(time.perf_counter() - began, 3), **facts)

    def progress(self, step: str) -> Callable[[int, int], None]:
        """Reports of a long transfer, for whoever watches; they are not kept."""
        told = 0.0

        def report(files: int, done_bytes: int) -> None:
            nonlocal told
            if time.monotonic() - told >= 1.0:
                told = time.monotonic()
                self._listener(
                    {"event": "progress", "step": step, "files": files, "bytes": done_bytes}
                )

        return report


def forget_old_logs(directory: Path) -> None:
    """Deletes logs that nobody has written to for a month."""
    horizon = time.time() - _RETAIN_SECONDS
    for path in directory.glob("*.*"):
        try:
            if path.stat().st_mtime < horizon:
                path.unlink()
        except FileNotFoundError:
            continue


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
