"""Real processes for tests: cheap to start, killed by signals, observed through files."""

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

# Longer than any step that makes progress, also on a busy machine.
_PATIENCE_SECONDS = 180.0
# Forked from a server that has imported the heavy modules once and holds no connection.
_context = multiprocessing.get_context("forkserver")
# These are imported when they are first used; the others are those that this process has.
_WARM = ["psycopg", "headgate.rows.mutate", "headgate.rows.load", "headgate.tasks.lakefs_store"]


@cache
def _warm_up() -> None:
    """Start the server with the search path of this process, which pytest has extended."""
    ours = [name for name in sys.modules if name.startswith(("headgate.", "tests.support."))]
    _context.set_forkserver_preload(["pytest", *_WARM, *ours])
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
    """Start a process that calls the function, which must be importable by name."""
    _warm_up()
    # A daemon: it ends with the test session, also after a failed test.
    process = _context.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def finish(process: BaseProcess, seconds: float = _PATIENCE_SECONDS) -> int:
    """Wait for the process, and return its exit code; minus the signal if it was killed."""
    process.join(seconds)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise AssertionError(f"process {process.pid} did not end by itself")
    return process.exitcode


def run(target: Callable[..., None], *arguments: object) -> int:
    return finish(start(target, *arguments))


def assert_killed(target: Callable[..., None], *arguments: object) -> None:
    """Assert that the process died by SIGKILL."""
    assert run(target, *arguments) == -signal.SIGKILL


@contextmanager
def running(target: Callable[..., None], *arguments: object) -> Iterator[BaseProcess]:
    """Run a process for the length of the block; kill it at the end if it still runs."""
    process = start(target, *arguments)
    try:
        yield process
    finally:
        if process.is_alive():
            process.kill()
        process.join()


def wait_until_at(point: Failpoint, flags: Path) -> None:
    """Wait until a process pauses at the failpoint."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not reached_file(flags, point).exists():
        if time.monotonic() > deadline:
            raise AssertionError(f"no process reached {point}")
        time.sleep(0.005)


def let_go(point: Failpoint, flags: Path) -> None:
    """Let the process that pauses at the failpoint continue."""
    go_file(flags, point).touch()


def stop_between_writes(pid: int, database: Database) -> None:
    """Pause a process while it does not write to an embedded catalog.

    In the middle of a write it would keep SQLite locked for all other processes.
    """

    def stop(_: Connection) -> None:
        os.kill(pid, signal.SIGSTOP)
        while _state_of(pid) not in {"T", "Z", "X"}:
            time.sleep(0.001)

    database.write(stop)


def is_alive(pid: int) -> bool:
    """Return True if the process runs; a zombie does not."""
    return _state_of(pid) not in {"Z", "X"}


def _state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "X"
