"""What a test does to its own process at a failpoint: kill it, pause it, fail it, or take notes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from headgate.model.failpoints import Failpoint, arm

Hook = Callable[[Failpoint], None]

_POLL_SECONDS = 0.005


def die_at(point: Failpoint, *, nth: int = 1) -> None:
    """From now on the process ends by SIGKILL when it reaches the place for the nth time."""
    arm(_at(point, _die, nth))


def pause_at(*points: Failpoint, flags: Path) -> None:
    """The process waits at each place, once, until a test lets it go on by `go_file`."""
    waiting = set(points)

    def hook(point: Failpoint) -> None:
        if point in waiting:
            waiting.remove(point)
            reached_file(flags, point).touch()
            while not go_file(flags, point).exists():
                time.sleep(_POLL_SECONDS)

    arm(hook)


def reached_file(flags: Path, point: Failpoint) -> Path:
    return flags / f"{point}.reached"


def go_file(flags: Path, point: Failpoint) -> Path:
    return flags / f"{point}.go"


@contextmanager
def calling_at(point: Failpoint, action: Callable[[], None], *, nth: int = 1) -> Iterator[None]:
    """Within the block the action is called at that place, once; what it raises goes through."""
    with armed(_at(point, action, nth)):
        yield


@contextmanager
def reached_points() -> Iterator[list[Failpoint]]:
    """Within the block every place that is reached is noted, in order."""
    points: list[Failpoint] = []
    with armed(points.append):
        yield points


@contextmanager
def armed(hook: Hook) -> Iterator[None]:
    """Arms the process's failpoints for the length of the block."""
    arm(hook)
    try:
        yield
    finally:
        arm(None)


def _at(point: Failpoint, action: Callable[[], None], nth: int) -> Hook:
    seen = 0

    def hook(reached: Failpoint) -> None:
        nonlocal seen
        if reached is point:
            seen += 1
            if seen == nth:
                action()

    return hook


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    # The signal is delivered to the process, not at once to this thread.
    signal.pause()
