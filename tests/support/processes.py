"""Real processes for tests: cheap to start, killed for real, watched by files."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path

from sqlalchemy import Connection

from headgate.catalog.database import Database
from headgate.model.failpoints import Failpoint
from headgate.testing.failpoints import go_file, reached_file

# Only what hangs takes so long, on a machine however busy.
_PATIENCE_SECONDS = 180.0
# Forked from a server that has imported the heavy modules once and holds no connection.
_context = multiprocessing.get_context("forkserver")
_WARM = ["pytest", "psycopg", "headgate.store", "headgate.catalog.recovery"]
# Slow to import, and optional.
_WARM += ["headgate.rows.mutate", "headgate.rows.load", "headgate.tasks.lakefs_store"]
_context.set_forkserver_preload(_WARM)


@cache
def _warm_up() -> None:
    """Starts the server with the search path of this process, which pytest has extended."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    try:
        forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def start(target: Callable[..., None], *arguments: object) -> BaseProcess:
    """Starts a process that calls the function, which must be importable by name."""
    _warm_up()
    # A daemon: it ends with the test session, whatever became of the test.
    process = _context.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def finish(process: BaseProcess) -> int:
    """Waits for the process and gives its exit code; minus the signal where it was killed."""
    process.join(_PATIENCE_SECONDS)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise AssertionError(f"process {process.pid} did not end by itself")
    return process.exitcode


def run(target: Callable[..., None], *arguments: object) -> int:
    return finish(start(target, *arguments))


def assert_killed(target: Callable[..., None], *arguments: object) -> None:
    """The process died by SIGKILL, and of nothing else."""
    assert run(target, *arguments) == -signal.SIGKILL


@contextmanager
def running(target: Callable[..., None], *arguments: object) -> Iterator[BaseProcess]:
    """A process for the length of the block; killed at its end if it still lives."""
    process = start(target, *arguments)
    try:
        yield process
    finally:
        if process.is_alive():
            process.kill()
        process.join()


def wait_until_at(point: Failpoint, flags: Path) -> None:
    """Returns when a process pauses at the failpoint."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not reached_file(flags, point).exists():
        if time.monotonic() > deadline:
            raise AssertionError(f"nobody came to {point}")
        time.sleep(0.005)


def let_go(point: Failpoint, flags: Path) -> None:
    """Whoever pauses at the failpoint goes on."""
    go_file(flags, point).touch()


def stop_between_writes(pid: int, database: Database) -> None:
    """Lets a process stand still, at a moment when it is not writing to an embedded catalog.

    In the midst of a write it would keep SQLite locked for everybody, until it goes on.
    """

    def stop(_: Connection) -> None:
        os.kill(pid, signal.SIGSTOP)
        while _state_of(pid) not in {"T", "Z", "X"}:
            time.sleep(0.001)

    database.write(stop)


def is_alive(pid: int) -> bool:
    """Whether the process runs: one that only waits to be buried does not."""
    return _state_of(pid) not in {"Z", "X"}


def _state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "X"
