"""A process of the simulation: it runs only while it has the turn, and its world is simulated.

The process hands the turn back at boundaries: failpoints, the begin and end of SQL transactions,
statements on PostgreSQL, file system calls in the warehouse, and sleeps. Clocks and randomness come
from the simulation. It can be killed at any boundary; none of its code runs then.
"""

from __future__ import annotations

import importlib
import os
import random
import secrets
import select
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from types import ModuleType
from typing import Any

import psycopg
import sqlalchemy
from psycopg.waiting import WAIT_R, WAIT_W
from sqlalchemy import event

from headgate import attempts
from headgate.catalog import database, warehouse
from headgate.catalog.postgres import SelfClosingConnection
from headgate.errors import HeadgateError
from headgate.model import failpoints
from headgate.settings import Settings
from headgate.store.embedded import Store
from tests.support.simulation import disk as disks
from tests.support.simulation.disk import Disk
from tests.support.simulation.verbs import VERBS, Request

# Imported by the product when they are first used; here once, before the processes are forked.
_WARM = (
    "duckdb",
    "headgate.rows.load",
    "headgate.spark.workplace",
    "headgate.tasks.files_store",
    "headgate.rows.engine",
    "headgate.iceberg.app",
)

# A statement that has no reply by then may wait for a lock.
_REPLY_SECONDS = 0.003
_NEVER_SECONDS = 1e9


@dataclass(frozen=True, kw_only=True)
class Turn:
    """The right to run, and the state of the world meanwhile."""

    # The clock of the database, and the time since the beginning; in microseconds.
    clock: int
    elapsed: int
    # Offset of this process's own clock.
    skew: int = 0
    # Boundaries to pass before the turn is handed back.
    boundaries: int = 1
    fault: str = ""
    request: Request | None = None
    # The turn that was handed back goes on: nothing else has run.
    continues: bool = False


@dataclass(frozen=True, kw_only=True)
class Report:
    """The reason why a process hands the turn back."""

    # at, waiting (for a lock of PostgreSQL, or for an answer), locked (SQLite), done, refused,
    # broken.
    what: str
    where: str = ""
    value: Any = None
    # Passed since the last report.
    boundaries: tuple[str, ...] = ()


class World:
    """The simulated world of this process."""

    def __init__(self, pipe: Pipe, seed: str) -> None:
        self._pipe = pipe
        self._chance = random.Random(seed)
        self.turn = Turn(clock=0, elapsed=0)
        self._thread = threading.get_ident()
        self._left = 0
        self._slept = 0.0
        self._passed: list[str] = []
        self._fault = ""
        self.faults: disks.DiskFaults | None = None

    def clock(self) -> int:
        return self.turn.clock

    def take(self) -> Turn:
        """Wait for the turn."""
        return self._begin(self._pipe.recv())

    def _begin(self, turn: Turn) -> Turn:
        self.turn = turn
        self._left = self.turn.boundaries
        self._fault = self.turn.fault
        if self.faults is not None:
            self.faults.is_full = self._fault == "full"
        clock = sqlalchemy.text("SELECT CAST(:clock AS BIGINT)").bindparams(clock=self.turn.clock)
        database.NOW.update(sqlite=clock, postgresql=clock)
        return self.turn

    def report(self, what: str, where: str = "", value: Any = None) -> None:
        passed, self._passed = tuple(map(str, self._passed)), []
        self._pipe.send(Report(what=what, where=where, value=value, boundaries=passed))

    def boundary(self, where: str) -> None:
        if threading.get_ident() != self._thread:
            # It would take the turn of the other thread; the world reports the end of the process.
            traceback.print_stack()
            os._exit(1)
        self._passed.append(where)
        self._left -= 1
        if self._left <= 0:
            self.hand_back("at", where)

    def hand_back(self, what: str, where: str) -> None:
        self.report(what, where)
        self.take()

    def wait_for_reply(self, session: str) -> bool:
        """Report that the server is silent; return whether others have run until it replied."""
        self.report("waiting", session)
        turn = self._pipe.recv()
        if not turn.continues:
            self._begin(turn)
        return not turn.continues

    def is_struck(self, fault: str) -> bool:
        """Return whether this fault strikes now; it strikes once."""
        is_struck = self._fault == fault
        if is_struck:
            self._fault = ""
        return is_struck

    @property
    def is_unreachable(self) -> bool:
        return self._fault == "unreachable"

    # --- time and chance --------------------------------------------------------------------

    def monotonic(self) -> float:
        return self.turn.elapsed / 1e6 + self._slept

    def time_ns(self) -> int:
        return (self.turn.clock + self.turn.skew) * 1000 + round(self._slept * 1e9)

    def sleep(self, seconds: float) -> None:
        self._slept += seconds
        self.boundary("sleep")

    def random_bytes(self, count: int) -> bytes:
        return self._chance.randbytes(count)

    def install(self, disk: Disk) -> None:
        """Replace clocks, randomness, the disk and the driver of the database in this process."""
        self.faults = disks.install(disk, self.clock, self.boundary)
        replaced: dict[ModuleType, dict[str, Callable[..., Any]]] = {
            time: {
                "sleep": self.sleep,
                "monotonic": self.monotonic,
                "time_ns": self.time_ns,
                "time": lambda: self.time_ns() / 1e9,
            },
            os: {"urandom": self.random_bytes},
            random: {"_urandom": self.random_bytes},
            secrets: {"token_bytes": lambda count=None: self.random_bytes(count or 32)},
        }
        for module, functions in replaced.items():
            for name, function in functions.items():
                setattr(module, name, function)
        random.seed(self._chance.getrandbits(64))
        failpoints.arm(self.boundary)
        # One thread of a process runs at a time.
        ThreadPoolExecutor.submit = _run_at_once  # type: ignore[method-assign]
        # Threads that would begin after some seconds of the real time.
        attempts.Heartbeat._run = lambda self: None  # type: ignore[method-assign]
        warehouse._TRACE_SECONDS = _NEVER_SECONDS
        _install_sqlite(self)
        _install_postgres(self)


def _run_at_once(_: Any, call: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
    future: Future[Any] = Future()
    try:
        future.set_result(call(*given, **named))
    except BaseException as error:
        future.set_exception(error)
    return future


def _install_sqlite(world: World) -> None:
    """Let a writer that finds SQLite locked hand the turn back, in place of polling."""

    def begin(connection: sqlalchemy.Connection) -> None:
        is_writer = connection.info.get("immediate", False)
        world.boundary("begin")
        while True:
            try:
                connection.exec_driver_sql("PRAGMA busy_timeout=0")
                _limit_pages(connection, is_full=bool(world.faults and world.faults.is_full))
                connection.exec_driver_sql("BEGIN IMMEDIATE" if is_writer else "BEGIN")
                return
            except sqlalchemy.exc.OperationalError as error:
                if "locked" not in str(error.orig):
                    raise
            world.hand_back("locked", "begin")

    database._begin_sqlite = begin
    event.listen(sqlalchemy.Engine, "commit", lambda connection: world.boundary("commit"))


def _limit_pages(connection: sqlalchemy.Connection, *, is_full: bool) -> None:
    if is_full or connection.info.get("is_limited", False):
        count = connection.exec_driver_sql("PRAGMA page_count").scalar_one() if is_full else 1 << 30
        connection.exec_driver_sql(f"PRAGMA max_page_count={count}")
        connection.info["is_limited"] = is_full


def _install_postgres(world: World) -> None:
    """Let a process that waits for a lock hand the turn back, and cut its connections."""
    commit: Any = SelfClosingConnection.commit
    connect: Any = vars(psycopg.Connection)["connect"].__func__

    def wait(self: Any, gen: Generator[Any, Any, Any], *_: Any, **__: Any) -> Any:
        if world.is_unreachable or world.is_struck("cut"):
            raise _cut(self)
        is_blocked = False
        try:
            state = next(gen)
            while True:
                ready = _poll(self.pgconn.socket, state)
                if not ready and world.wait_for_reply(str(self.pgconn.backend_pid)):
                    is_blocked = True
                state = gen.send(ready)
        except StopIteration as stop:
            if is_blocked:
                world.hand_back("at", "lock granted")
            return stop.value

    def cut_commit(self: Any) -> None:
        is_open = self.info.transaction_status != psycopg.pq.TransactionStatus.IDLE
        if is_open and world.is_struck("cut before commit"):
            raise _cut(self)
        commit(self)
        if is_open and world.is_struck("cut after commit"):
            raise _cut(self)

    def reach_server(cls: Any, *arguments: Any, **named: Any) -> Any:
        if world.is_unreachable:
            raise psycopg.OperationalError("connection refused by the simulation")
        return connect(cls, *arguments, **named)

    psycopg.Connection.wait = wait  # type: ignore[method-assign]
    SelfClosingConnection.commit = cut_commit  # type: ignore[method-assign]
    SelfClosingConnection.connect = classmethod(reach_server)  # type: ignore[assignment]


def _cut(connection: Any) -> psycopg.OperationalError:
    connection.close()
    return psycopg.OperationalError("server closed the connection unexpectedly (simulation)")


def _poll(socket: int, state: int) -> int:
    reading = [socket] if state & WAIT_R else []
    writing = [socket] if state & WAIT_W else []
    read, write, _ = select.select(reading, writing, [], _REPLY_SECONDS)
    return (WAIT_R if read else 0) | (WAIT_W if write else 0)


def _install_statements(world: World) -> None:
    """On PostgreSQL, writers meet between statements too."""
    event.listen(sqlalchemy.Engine, "before_cursor_execute", lambda *_: world.boundary("statement"))


def live(
    pipe: Pipe,
    settings: Settings,
    disk: Disk,
    *,
    seed: str,
    twin: Callable[[], None] | None,
) -> None:
    """Serve requests until the process is killed."""
    world = World(pipe, seed)
    world.install(disk)
    if settings.catalog.startswith("postgres"):
        _install_statements(world)
    if twin is not None:
        twin()
    store: Store | None = None
    while True:
        turn = world.take()
        assert turn.request is not None, "a process without a request got the turn"
        request = turn.request
        try:
            if store is None:
                store = Store(settings, recover_first=False)
            value = VERBS[request.verb](store, request)
        except HeadgateError as error:
            world.report("refused", type(error).__name__, (error.code, error.message))
        except BaseException:
            world.report("broken", request.verb, traceback.format_exc())
        else:
            world.report("done", request.verb, value)


def warm_up() -> None:
    for name in _WARM:
        importlib.import_module(name)


def start(pipe: Pipe, inherited: Sequence[Pipe], log: Path, work: Callable[[Pipe], None]) -> int:
    """Fork a process, and return its id."""
    pid = os.fork()
    if pid:
        return pid
    try:
        for other in inherited:
            other.close()
        target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(target, 1)
        os.dup2(target, 2)
        work(pipe)
    except EOFError:
        # The simulation has ended.
        pass
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(1)
