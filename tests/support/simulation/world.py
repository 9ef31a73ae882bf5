"""The simulated world: processes of which one runs at a time, a clock, a disk and a database."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import psycopg
from psycopg.rows import dict_row

from headgate.files.tree_store import FileTrees
from headgate.settings import Settings
from headgate.storage.local import LocalStore
from tests.support.catalogs import make_catalog
from tests.support.postgres import PostgresServer
from tests.support.simulation import process
from tests.support.simulation.disk import Disk
from tests.support.simulation.process import Report, Turn
from tests.support.simulation.steps import ACTORS, DAY_US, TO_END, Step
from tests.support.simulation.verbs import KEYED, Request
from tests.support.simulation.witness import Row, Violation, Watched, Witness

# Patches the code of a process: see `twins.py`.
LeaveOut = Callable[[], None]
RETAIN_SECONDS = 3 * 24 * 3600
# 2020-01-01; any fixed time.
_START_US = 1_577_836_800_000_000
_TICK_US = 2_000
_PATIENCE_SECONDS = 120.0
_EXAMINE_EVERY = 60
_LAST_BOUNDARIES = 4000


class SqliteCatalog:
    """Reads a catalog. SQLite's state of a process must not be inherited by a forked one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None

    def rows(self, query: str) -> list[Row]:
        if self._connection is None:
            self._connection = sqlite3.connect(self._path)
            self._connection.row_factory = sqlite3.Row
        return cast("list[Row]", self._connection.execute(query).fetchall())

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class PostgresCatalog:
    """Reads a catalog, and knows which of its sessions wait for a lock."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True, row_factory=dict_row)

    def rows(self, query: str) -> list[Row]:
        return cast("list[Row]", self._connection.execute(query).fetchall())

    def is_blocked(self, session: str) -> bool:
        [row] = self.rows(f"SELECT cardinality(pg_blocking_pids({int(session)})) AS count")
        return bool(row["count"])

    def end_sessions(self, name: str) -> None:
        """End the sessions of a killed process, as the server does when it finds it gone."""
        mine = f"FROM pg_stat_activity WHERE application_name = '{name}'"
        self.rows(f"SELECT pg_terminate_backend(pid) {mine}")
        while self.rows(f"SELECT pid {mine}"):
            time.sleep(0.001)

    def close(self) -> None:
        self._connection.close()


@dataclass(kw_only=True)
class Actor:
    """A process, and the request that it executes."""

    number: int
    born: int = 0
    pid: int | None = None
    pipe: Connection | None = None
    watched: Watched | None = None
    skew: int = 0
    is_lost: bool = False
    # The session that waits for a lock of PostgreSQL.
    blocked: str | None = None
    # The boundary at which it handed the turn back.
    at: str = ""

    @property
    def name(self) -> str:
        return f"simulated-{self.number}-{self.born}"


@dataclass(kw_only=True)
class Tally:
    """Counts of a run."""

    steps: int = 0
    publications: int = 0
    # By verb and outcome, by kind of step, and by boundary.
    outcomes: dict[str, int] = field(default_factory=dict)
    kinds: dict[str, int] = field(default_factory=dict)
    boundaries: dict[str, int] = field(default_factory=dict)

    def count(self, table: dict[str, int], what: str) -> None:
        table[what] = table.get(what, 0) + 1


class World:
    """One store and its processes; `run` executes steps and raises `Violation`."""

    def __init__(
        self,
        settings: Settings,
        catalog: SqliteCatalog | PostgresCatalog,
        *,
        seed: str,
        tally: Tally,
        twin: LeaveOut | None = None,
    ) -> None:
        self._settings = settings
        self._catalog = catalog
        self._seed = seed
        self._tally = tally
        self._twin = twin
        warehouse = Path(settings.warehouse)
        self._disk = Disk(warehouse, settings.root / "ledger")
        self._disk.settle()
        self._clock, self._elapsed = _START_US + DAY_US, 0
        self._actors = [Actor(number=number) for number in range(ACTORS)]
        self._sent: list[Request] = []
        trees = FileTrees(LocalStore(warehouse))
        self.witness = Witness(catalog, trees, retain_us=RETAIN_SECONDS * 1_000_000)
        self.witness.observe(None, (), self._clock)
        self._handlers: dict[str, Callable[[Step], Request | None]] = {
            "start": self._start,
            "go": self._go,
            "again": self._again,
            "clock": self._pass_time,
            "skew": self._skew,
            "kill": self._kill_one,
            "crash": self._crash,
        }

    def run(self, steps: Iterable[Step]) -> None:
        """Execute the steps, and check the store after each."""
        for number, step in enumerate(steps, start=1):
            self._clock += _TICK_US
            self._elapsed += _TICK_US
            self._tally.steps += 1
            self._tally.count(self._tally.kinds, step.kind)
            request = self._handlers[step.kind](step)
            self._observe(request)
            self._resume()
            if number % _EXAMINE_EVERY == 0:
                self.witness.examine()

    def run_until(self, step: Step, boundary: str | None) -> list[str]:
        """Execute a request up to a boundary, or to its end; return the boundaries it passed."""
        actor, passed = self._actors[step.actor], list[str]()
        self.run([step])
        while actor.watched is not None:
            passed.append(actor.at)
            if actor.at == boundary:
                break
            self.run([Step("go", step.actor, a=1)])
        return passed

    def end(self) -> None:
        """Let all requests end, recover and clean up, and check the store once more."""
        for actor in self._actors:
            passed = 0
            while actor.watched is not None and passed < _LAST_BOUNDARIES:
                self.run([Step("go", actor.number, a=50)])
                passed += 50
        for actor in self._actors:
            self._kill(actor)
        self._elapsed, self._clock = self._elapsed + 3600_000_000, self._clock + 3600_000_000
        for verb in ("recover", "probe", "clean", "moment", "load"):
            self.run([Step("start", 0, verb=verb), *[Step("go", 0, a=TO_END)] * 20])
            if self._actors[0].watched is not None:
                raise Violation(f"{verb} does not end")
        self.witness.examine()
        self._tally.publications += self.witness.published

    def close(self) -> None:
        for actor in self._actors:
            self._kill(actor)

    # --- steps ------------------------------------------------------------------------------

    def _start(self, step: Step) -> Request | None:
        actor = self._actors[step.actor]
        if actor.watched is not None:
            return self._go(Step("go", step.actor, a=1 + step.a % 4))
        key = f"k{len(self._sent)}"
        request = Request(key=key, verb=step.verb, a=step.a, b=step.b, c=step.c)
        self._sent.append(request)
        actor.is_lost = step.fault == "lost"
        return self._send(actor, request)

    def _again(self, step: Step) -> Request | None:
        actor = self._actors[step.actor]
        keyed = [request for request in self._sent if request.verb in KEYED]
        if actor.watched is not None or len(keyed) <= step.a:
            return None
        actor.is_lost = False
        return self._send(actor, keyed[-1 - step.a])

    def _send(self, actor: Actor, request: Request) -> Request:
        if actor.pipe is None:
            self._fork(actor)
        actor.watched = self.witness.watch(request)
        self._turn(actor, request=request)
        return request

    def _go(self, step: Step) -> Request | None:
        actor = self._find_running(step.actor)
        if actor is None or actor.watched is None:
            return None
        request = actor.watched.request
        self._turn(actor, boundaries=step.a, fault=step.fault)
        return request

    def _find_running(self, first: int) -> Actor | None:
        """Return this process, or the next one that can run; None if all are idle or wait."""
        for number in range(first, first + ACTORS):
            actor = self._actors[number % ACTORS]
            if actor.watched is not None and actor.blocked is None:
                return actor
        return None

    def _pass_time(self, step: Step) -> None:
        self._elapsed += step.a
        self._clock += step.a + step.b

    def _skew(self, step: Step) -> None:
        self._actors[step.actor].skew = step.a

    def _kill_one(self, step: Step) -> None:
        self._kill(self._actors[step.actor])

    def _crash(self, step: Step) -> None:
        for actor in self._actors:
            self._kill(actor)
        self._disk.crash(step.a)
        self.witness.examine()

    # --- processes --------------------------------------------------------------------------

    def _fork(self, actor: Actor) -> None:
        actor.born += 1
        if isinstance(self._catalog, SqliteCatalog):
            self._catalog.close()
        inherited = [one.pipe for one in self._actors if one.pipe is not None]
        here, there = Pipe()

        def work(pipe: Connection) -> None:
            os.environ["PGAPPNAME"] = actor.name
            process.live(
                pipe,
                self._settings,
                self._disk,
                seed=f"{self._seed}/{actor.name}",
                twin=self._twin,
            )

        log = self._settings.root / "processes.log"
        actor.pid = process.start(there, [*inherited, here], log, work)
        there.close()
        actor.pipe = here

    def _kill(self, actor: Actor) -> None:
        if actor.pid is None or actor.pipe is None:
            return
        os.kill(actor.pid, signal.SIGKILL)
        os.waitpid(actor.pid, 0)
        actor.pipe.close()
        if isinstance(self._catalog, PostgresCatalog):
            self._catalog.end_sessions(actor.name)
        actor.pid = actor.pipe = actor.watched = actor.blocked = None

    def _turn(
        self,
        actor: Actor,
        *,
        boundaries: int = 1,
        fault: str = "",
        request: Request | None = None,
    ) -> None:
        """Give the process the turn, and wait until it hands it back."""
        assert actor.pipe is not None
        turn = Turn(
            clock=self._clock,
            elapsed=self._elapsed,
            skew=actor.skew,
            boundaries=max(1, boundaries),
            fault=fault,
            request=request,
        )
        actor.blocked = None
        actor.pipe.send(turn)
        while (report := self._receive(actor)).what == "waiting":
            if cast("PostgresCatalog", self._catalog).is_blocked(report.where):
                actor.blocked = report.where
                return
            actor.pipe.send(replace(turn, request=None, continues=True))
        self._take_report(actor, report)

    def _receive(self, actor: Actor) -> Report:
        assert actor.pipe is not None
        if not actor.pipe.poll(_PATIENCE_SECONDS):
            raise Violation(f"{actor.name} does not hand the turn back: {actor.watched}")
        try:
            report: Report = actor.pipe.recv()
        except (EOFError, ConnectionError) as error:
            log = (self._settings.root / "processes.log").read_text()[-2000:]
            raise Violation(f"{actor.name} died: {log}") from error
        for boundary in report.boundaries:
            self._tally.count(self._tally.boundaries, str(boundary))
        return report

    def _take_report(self, actor: Actor, report: Report) -> None:
        watched = actor.watched
        assert watched is not None
        actor.at = report.where
        if report.what in ("at", "locked"):
            return
        # Before the reply is compared with the log.
        self._observe(watched.request)
        actor.watched = None
        verb = watched.request.verb
        if report.what == "broken":
            raise Violation(f"{watched.request} raised:\n{report.value}")
        outcome = report.value[0] if report.what == "refused" else "done"
        self._tally.count(self._tally.outcomes, f"{verb}: {outcome}")
        if report.what == "refused":
            self.witness.hear_refusal(watched, *report.value)
        elif not actor.is_lost:
            self.witness.hear(watched, report.value)
        if verb == "clean":
            self.witness.examine()

    def _resume(self) -> None:
        """Let processes go on whose locks were granted; their statements have ended by now."""
        while blocked := [actor for actor in self._actors if actor.blocked is not None]:
            catalog = cast("PostgresCatalog", self._catalog)
            granted = [a for a in blocked if a.blocked and not catalog.is_blocked(a.blocked)]
            for actor in granted:
                request = actor.watched.request if actor.watched else None
                self._turn(actor)
                self._observe(request)
            if not granted:
                running = [a for a in self._actors if a.watched is not None]
                if len(blocked) < len(running) or len(running) < ACTORS:
                    return
                # All wait for each other: the database ends a deadlock after a while.
                time.sleep(0.01)

    def _observe(self, request: Request | None) -> None:
        watched = [actor.watched for actor in self._actors if actor.watched is not None]
        self.witness.observe(request, watched, self._clock)


# --- stores of simulations ------------------------------------------------------------------


class Stage:
    """Makes a new store for each run, as a copy of one that was prepared once."""

    def __init__(self, root: Path, server: PostgresServer | None) -> None:
        self._root = root
        self._server = server
        self._template = root / "template"
        self._template_database = ""
        self._is_prepared = False

    @contextmanager
    def world(self, *, seed: str, tally: Tally, twin: LeaveOut | None = None) -> Iterator[World]:
        """Yield a world whose store has the datasets of the simulation."""
        if not self._is_prepared:
            self._prepare()
        with self._opened() as (settings, catalog):
            world = World(settings, catalog, seed=seed, tally=tally, twin=twin)
            try:
                yield world
            finally:
                world.close()

    def _prepare(self) -> None:
        process.warm_up()
        here = self._root / "store"
        here.mkdir()
        if self._server is None:
            make_catalog(f"sqlite:///{here / 'catalog.db'}")
        else:
            self._template_database = self._server.create_database()
            make_catalog(self._server.database_url(self._template_database))
        settings = self._settings(self._template_database)
        Path(settings.warehouse).mkdir()
        disk = Disk(Path(settings.warehouse), here / "ledger")
        disk.settle()
        _prepare_in_a_process(settings, disk)
        shutil.rmtree(here / "ledger")
        here.rename(self._template)
        self._is_prepared = True

    @contextmanager
    def _opened(self) -> Iterator[tuple[Settings, SqliteCatalog | PostgresCatalog]]:
        here = self._root / "store"
        shutil.rmtree(here, ignore_errors=True)
        shutil.copytree(self._template, here)
        if self._server is None:
            plain = SqliteCatalog(here / "catalog.db")
            yield self._settings(""), plain
            plain.close()
            return
        name = self._server.create_database(like=self._template_database)
        catalog = PostgresCatalog(self._server.database_url(name).replace("+psycopg", ""))
        try:
            yield self._settings(name), catalog
        finally:
            catalog.close()
            self._server.drop_database(name)

    def _settings(self, database: str) -> Settings:
        here = self._root / "store"
        url = (
            f"sqlite:///{here / 'catalog.db'}"
            if self._server is None
            else self._server.database_url(database)
        )
        return Settings(
            root=here,
            catalog=url,
            warehouse=str(here / "warehouse"),
            actor="ana",
            cache=here / "cache",
            retain_seconds=RETAIN_SECONDS,
        )


def _prepare_in_a_process(settings: Settings, disk: Disk) -> None:
    """Create the datasets, by the simulated clock."""
    here, there = Pipe()
    pid = process.start(
        there,
        [here],
        settings.root / "processes.log",
        lambda pipe: process.live(pipe, settings, disk, seed="template", twin=None),
    )
    there.close()
    request = Request(key="k", verb="prepare", a=0, b=0, c=0)
    here.send(Turn(clock=_START_US, elapsed=0, boundaries=TO_END, request=request))
    report: Any = here.recv()
    while report.what in ("waiting", "at"):
        is_silent = report.what == "waiting"
        here.send(Turn(clock=_START_US, elapsed=0, boundaries=TO_END, continues=is_silent))
        report = here.recv()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    if report.what != "done":
        raise RuntimeError(f"the store of the simulation: {report}")


def replay(
    stage: Stage, steps: Sequence[Step], *, seed: str, tally: Tally, twin: LeaveOut | None = None
) -> Violation | None:
    """Execute steps in a new store; return the promise that it breaks."""
    with stage.world(seed=seed, tally=tally, twin=twin) as world:
        try:
            world.run(steps)
            world.end()
        except Violation as violation:
            return violation
    return None
