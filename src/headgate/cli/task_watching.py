"""A task under a person's eyes: live steps on a terminal, and signals that drain."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from typing import Any, Self

from rich.console import Console
from rich.status import Status

from headgate.cli.formatting import size_text
from headgate.tasks.executing import stopped
from headgate.tasks.local import Hearing

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_LOOK_SECONDS = 0.1


class Watching:
    """Shows what an attempt does; a SIGTERM or Ctrl-C lets it finish, a second one ends it."""

    def __init__(self, *, quiet: bool) -> None:
        console = Console(stderr=True, highlight=False)
        self._console = console
        self._status: Status | None = (
            console.status("starting") if console.is_terminal and not quiet else None
        )
        # Plain values: a handler that waits for a lock of its own thread would wait for ever.
        self._signals = 0
        self._hearing: Hearing | None = None
        self._before: dict[int, Any] = {}

    def draining(self) -> bool:
        return self._signals > 0

    def sleep(self, seconds: float) -> None:
        """Waits, unless it is time to leave."""
        ends_at = time.monotonic() + seconds
        while not self._signals and (left := ends_at - time.monotonic()) > 0:
            time.sleep(min(left, _LOOK_SECONDS))

    def on_second_signal(self, hearing: Hearing) -> None:
        """What is to be ended by a second signal."""
        self._hearing = hearing

    def show(self, line: Mapping[str, Any]) -> None:
        if self._status is None:
            return
        if line["event"] == "step":
            self._status.update(str(line["step"]))
        elif line["event"] == "progress":
            done = f"{line['files']} files, {size_text(line['bytes'])}"
            self._status.update(f"{line['step']}: {done}")
        elif line["event"] == "retry":
            self._status.update(f"attempt {line['attempt']} in {line['delay_seconds']:g} s")

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._signalled) for number in _SIGNALS}
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _signalled(self, number: int, _frame: object) -> None:
        self._signals += 1
        if self._signals > 1 and self._hearing is not None:
            for process in self._hearing.processes:
                process.stop(stopped(f"ended by {signal.Signals(number).name}"))
