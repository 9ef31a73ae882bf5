"""Actions at failpoints of the test's own process: kill, pause, call a function, or record."""

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
    """Kill the process when it reaches the failpoint for the nth time."""
    arm(_at(point, _die, nth))


def pause_at(*points: Failpoint, flags: Path) -> None:
    """Wait once at each failpoint until the test creates its `go_file`."""
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
    """Call the action at the nth arrival at the failpoint; its exception propagates."""
    with armed(_at(point, action, nth)):
        yield


@contextmanager
def reached_points() -> Iterator[list[Failpoint]]:
    """Yield a list of the failpoints that the block reaches, in order."""
    points: list[Failpoint] = []
    with armed(points.append):
        yield points


@contextmanager
def armed(hook: Hook) -> Iterator[None]:
    """Call the hook at every failpoint that the block reaches."""
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
    # The signal is delivered asynchronously.
    signal.pause()
