"""Evaluators: child processes in which a server reads rows, and runs the scripts of clients.

A crash, or a script without end, is then an error of one client. An evaluator has limits on memory
and time, and holds neither the catalog nor a token: what it must know of the catalog it requests
here, and what it prepared is published here. It is used again until it fails.
"""

import base64
import logging
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from headgate import errors
from headgate.catalog.database import PLACE, Suspended, Wait
from headgate.catalog.database import Place as Turn
from headgate.errors.families import kinds_by_code, rebuild
from headgate.files.objects import StoredContent
from headgate.model.ids import Instant
from headgate.model.names import DatasetName, parse_dataset_name
from headgate.model.nouns import PublicationKind, TransactionType
from headgate.rows import write
from headgate.rows.branch_tables import BranchTable, BranchTables
from headgate.rows.outcome import Counts, Creation, Interrupt, Outcome, Parts, Request
from headgate.rows.sources import SourceLike, SourcesByTable
from headgate.rows.working_set import VersionMove, WorkingSet
from headgate.settings import ServerSettings
from headgate.spark.job_processes import ForkedProcess, ForkServer
from headgate.storage.local import create_private, make_private_directory

_log = logging.getLogger("headgate.server")

_PROGRAM = "headgate.rows.evaluator"
# Everything else in the server's environment may be a secret.
_KEPT_VARIABLES = ("PATH", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH")
_VARIABLES = {
    # Arrow's own allocator reserves a gibibyte at once, which would count as used.
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    # Threads that nothing here uses.
    "OPENBLAS_NUM_THREADS": "1",
}
_STORAGE_VARIABLES = "AWS_"
# Events of an evaluator. The last one of each order is a result or an error.
ASK, DONE, ERROR, DEFECT = "ask", "done", "error", "defect"
OTHER_ROWS, OUT_OF_MEMORY = "other_rows", "out_of_memory"
# Beside it: the evaluator is not to be used again.
LAST = "last"
_WAIT_SECONDS = 60.0
# Of the log, which holds the libraries' warnings; it begins anew above that.
_LOG_BYTES = 16 * 1024 * 1024
_POLL_SECONDS = 0.05
_REPEAT_SECONDS = 5.0
# Until the fork server reports the end of a process whose pipe is closed.
_REPORT_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class Work:
    """A script, or the sources of a load: bytes, or digests of contents of the store."""

    sql: str | None = None
    sources: Mapping[DatasetName, Sequence[bytes | str]] = field(default_factory=dict)
    mode: str = ""
    creation: Creation | None = None


# Reads and writes tables; returns a document.
Task: TypeAlias = Callable[[WorkingSet], dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Place:
    """The branch and the storage that the work is for."""

    branch: str
    warehouse: str
    # Snapshots before this time are forgotten.
    remembered: Instant
    # Credentials of the storage, where it needs any; never those of the catalog.
    options: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Order:
    """Work to parse, or to prepare if it has a place; or a task."""

    work: Work | Task
    place: Place | None = None
    removed: write.Removed | None = None


class _Evaluator(ForkedProcess):
    """One child process; `stopped` is the error with which it was ended."""

    # It has sent its result, and waits for the next order.
    is_ready = False
    stopped: Exception | None = None

    def order(self, value: object) -> None:
        self.is_ready = False
        self.send(base64.b64encode(pickle.dumps(value)))

    def stop(self, error: Exception) -> None:
        self.stopped = self.stopped or error
        self.send_kill()


class EvaluatorPool:
    """The evaluators of a server: as many at once as its settings allow."""

    def __init__(self, limits: ServerSettings, directory: Path, environ: Mapping[str, str]) -> None:
        """`directory` is for the log of the evaluators, `environ` has the server's variables."""
        self.limits = limits
        make_private_directory(directory)
        self._log = directory / "evaluators.log"
        self._environ = {n: environ[n] for n in _KEPT_VARIABLES if n in environ} | _VARIABLES
        self._lock = threading.Lock()
        self._taken = 0
        # Requests that wait for an evaluator, in order, each with the end of its wait.
        self._waiting: dict[Interrupt, float] = {}
        # Of requests without one: a request that is repeated after a wait keeps its turn by it.
        self._interrupts: WeakKeyDictionary[Turn, Interrupt] = WeakKeyDictionary()
        # Of a request that is repeated after a wait, so that its script is not parsed again.
        self.targets: WeakKeyDictionary[Interrupt, list[DatasetName]] = WeakKeyDictionary()
        self._forks: ForkServer | None = None
        self._idle: list[_Evaluator] = []
        self._busy: set[_Evaluator] = set()
        self._closed: Exception | None = None

    def start(self) -> None:
        """Let a first evaluator start, so that the first client does not wait for it."""
        with self._lock:
            self._idle.append(self._fork())

    def close(self) -> None:
        """End all evaluators; those that wait for one get an error."""
        with self._lock:
            self._closed = errors.Unavailable(
                "the server is about to stop; nothing was changed. Try again in a minute."
            )
            for one in self._busy:
                one.stop(self._closed)
            idle, self._idle = self._idle, []
            forks, self._forks = self._forks, None
        for one in idle:
            one.kill()
            one.close()
        if forks is not None:
            forks.close()

    def mutate(self, parts: Parts, request: Request, sql: str) -> Outcome:
        """Run a script as `mutate.mutate` does."""
        return write.write_tables(parts, request, _EvaluatedWrite(self, request, Work(sql=sql)))

    def load(
        self,
        parts: Parts,
        request: Request,
        sources: SourcesByTable,
        mode: str,
        creation: Creation | None = None,
    ) -> Outcome:
        """Load sources that a client sent as `load.load` does."""
        sent = {name: [_sent(one) for one in each] for name, each in sources.items()}
        work = Work(sources=sent, mode=mode, creation=creation)
        return write.write_tables(parts, request, _EvaluatedWrite(self, request, work))

    def perform(
        self, parts: Parts, tables: BranchTables, task: Task, interrupt: Interrupt | None = None
    ) -> dict[str, Any]:
        """Return the result of a task that this package sends, on the tables of a branch."""
        if interrupt is None:
            turn = PLACE.get() or Turn()
            interrupt = self._interrupts.setdefault(turn, Interrupt())
        order = Order(work=task, place=_place(parts, str(tables.context)))
        return self.run(order, interrupt=interrupt, answer=partial(_answer, tables))

    def run(
        self,
        order: Order,
        *,
        interrupt: Interrupt,
        answer: Callable[[Mapping[str, Any]], object] = lambda _: None,
    ) -> dict[str, Any]:
        """Return the result of an order; `answer` answers what the evaluator requests."""
        with self._evaluator(interrupt) as one:
            one.order(order)
            for event in one.events():
                if ASK in event:
                    one.order(answer(event[ASK]))
                    continue
                one.is_ready = not event.get(LAST)
                if DONE not in event:
                    raise self._failure(event)
                done: dict[str, Any] = event[DONE]
                return done
            raise self._death(one)

    @contextmanager
    def _evaluator(self, interrupt: Interrupt) -> Iterator[_Evaluator]:
        """Take an evaluator, and stop it when the time is over or at an interrupt."""
        self._wait_for_room(interrupt)
        try:
            one, seconds = self._take(), self.limits.statement_seconds
            too_slow = errors.StatementStopped(
                reason=f"took over {seconds:g} s", setting="statement_seconds", limit=seconds
            )
            timer = threading.Timer(seconds, one.stop, [too_slow])
            timer.daemon = True
            timer.start()
            try:
                with interrupt.calling(one.stop):
                    yield one
            finally:
                timer.cancel()
                self._give_back(one)
        finally:
            with self._lock:
                self._taken -= 1

    def _wait_for_room(self, interrupt: Interrupt) -> None:
        """Wait for the turn of this request; in a server it raises `Suspended` instead."""
        while not self._enter(interrupt):
            moment = time.monotonic()
            try:
                interrupt.check()
                if self._closed is not None:
                    raise self._closed
                if moment >= self._waiting.get(interrupt, moment):
                    raise errors.Unavailable(
                        f"{self.limits.statements} scripts and loads run already, as many as "
                        "[server] statements allows; nothing was changed. Try again later.",
                        setting="statements",
                    )
            except BaseException:
                self._waiting.pop(interrupt, None)
                raise
            if PLACE.get() is not None:
                # Repeated sooner than the ticket of a writer expires.
                deadline = min(self._waiting.get(interrupt, moment), moment + _REPEAT_SECONDS)
                raise Suspended(Wait(deadline=deadline, is_over=lambda: self._is_turn(interrupt)))
            time.sleep(_POLL_SECONDS)

    def _enter(self, interrupt: Interrupt) -> bool:
        """Return whether an evaluator is free for this request; if not, it waits behind others."""
        with self._lock:
            self._waiting.setdefault(interrupt, time.monotonic() + _WAIT_SECONDS)
            if not self._is_first(interrupt):
                return False
            del self._waiting[interrupt]
            self._taken += 1
            return True

    def _is_turn(self, interrupt: Interrupt) -> bool:
        with self._lock:
            return self._is_first(interrupt)

    def _is_first(self, interrupt: Interrupt) -> bool:
        for first, until in list(self._waiting.items()):
            if first is interrupt:
                return self._taken < self.limits.statements
            # A client that left is not repeated; one whose time is over leaves by itself.
            if not first.is_set and until + _REPEAT_SECONDS > time.monotonic():
                return False
            del self._waiting[first]
        return False

    def _take(self) -> _Evaluator:
        with self._lock:
            if self._closed is not None:
                raise self._closed
            while self._idle:
                one = self._idle.pop()
                if one.alive:
                    break
                one.close()
            else:
                one = self._fork()
            self._busy.add(one)
        # Only a process that exists can be stopped.
        one.wait_started()
        return one

    def _fork(self) -> _Evaluator:
        if self._log.exists() and self._log.stat().st_size > _LOG_BYTES:
            self._log.unlink()
        with suppress(FileExistsError):
            os.close(create_private(self._log))
        if self._forks is None or not self._forks.alive:
            self._forks = ForkServer(
                _PROGRAM, log=self._log, environ=self._environ, cwd=self._log.parent
            )
        one = self._forks.fork(self._log, _Evaluator)
        one.order(self.limits)
        return one

    def _give_back(self, one: _Evaluator) -> None:
        """Keep an evaluator that has sent its result; end any other."""
        with self._lock:
            self._busy.discard(one)
            if one.is_ready and one.stopped is None and self._closed is None:
                self._idle.append(one)
                return
        one.kill()
        one.close()

    def _too_large(self) -> errors.StatementStopped:
        return errors.StatementStopped(
            reason="needed more memory than it may use",
            setting="statement_memory_bytes",
            limit=self.limits.statement_memory_bytes,
        )

    def _failure(self, event: Mapping[str, Any]) -> Exception:
        """Return the error that an evaluator sent."""
        if OTHER_ROWS in event:
            return write.OtherRows()
        if OUT_OF_MEMORY in event:
            return self._too_large()
        if ERROR in event:
            sent = event[ERROR]
            facts = {name: value for name, value in sent.items() if name not in {"error", "code"}}
            return rebuild(kinds_by_code()[sent["code"]], sent["error"], facts)
        _log.error("an evaluator failed:\n%s", event.get(DEFECT))
        return RuntimeError("an evaluator failed; the log has its traceback")

    def _death(self, one: _Evaluator) -> Exception:
        """Return why an evaluator ended without a result."""
        code = one.wait(_REPORT_SECONDS)
        if one.stopped is not None:
            return one.stopped
        if code == -signal.SIGKILL:
            # Nothing but the kernel kills it, where the machine has no memory left.
            return self._too_large()
        how = f"ended with exit code {code}"
        if code is not None and code < 0:
            how = f"was ended by {signal.Signals(-code).name}"
        _log.error("an evaluator %s; its output is in %s", how, self._log)
        return errors.EvaluatorDied(how=how)


class _EvaluatedWrite:
    """A script or a load; see `write.Write`."""

    kind = PublicationKind.COMMIT
    dry_run = False

    def __init__(self, pool: EvaluatorPool, request: Request, work: Work) -> None:
        self._pool = pool
        self._request = request
        self._work = work
        self.verb = "mutate" if work.sql is not None else f"load-{work.mode}"

    @cached_property
    def targets(self) -> Sequence[DatasetName]:
        """The tables that are written; a script is parsed for them."""
        if self._work.sql is None:
            return list(self._work.sources)
        interrupt, known = self._request.interrupt, self._pool.targets
        if interrupt not in known:
            found = self._pool.run(Order(work=self._work), interrupt=interrupt)
            known[interrupt] = [parse_dataset_name(name) for name in found["targets"]]
        return known[interrupt]

    def prepare(
        self, parts: Parts, tables: BranchTables, removed: write.Removed | None
    ) -> write.Prepared:
        """Prepare the change in an evaluator, which sees the branch through `tables`."""

        def answer(asked: Mapping[str, Any]) -> object:
            if "create" in asked:
                assert self._work.creation is not None, "only a load that may create tables asks"
                return tables.create(parse_dataset_name(asked["create"]))
            return _answer(tables, asked)

        place = _place(parts, self._request.branch)
        done = self._pool.run(
            Order(work=self._work, place=place, removed=removed),
            interrupt=self._request.interrupt,
            answer=answer,
        )
        return read_prepared(parts, tables, done)


def _place(parts: Parts, branch: str) -> Place:
    return Place(
        branch=branch,
        warehouse=parts.versions.warehouse,
        remembered=parts.versions.remembered,
        options={n: v for n, v in parts.options.items() if n.startswith(_STORAGE_VARIABLES)},
    )


def _answer(tables: BranchTables, asked: Mapping[str, Any]) -> object:
    """Return the tables that an evaluator requests."""
    if "load" in asked:
        name, line, column = asked["load"]
        return tables.load(parse_dataset_name(name), line=line, column=column)
    names = [parse_dataset_name(name) for name in asked["find"]]
    tables.prefetch(names)
    return {name: tables.find(name) for name in names}


def _sent(source: SourceLike) -> bytes | str:
    """Return the bytes of a source, or the digest of a content; a client cannot send a path."""
    if isinstance(source, StoredContent):
        return source.digest
    assert isinstance(source, bytes), "a server loads no files of its own"
    return source


def write_prepared(prepared: write.Prepared) -> dict[str, Any]:
    """Return a prepared change as the document that an evaluator sends."""

    def sent(name: DatasetName, one: write.PreparedTable | VersionMove) -> dict[str, Any]:
        return {
            "dataset": str(name),
            "location": one.version.location if one.version else "",
            "type": one.type,
            "counts": one.counts.to_json(),
            "facts": dict(one.facts),
        }

    tables = [
        sent(one.dataset, one) | {"keys_hold": one.keys_hold, "created": dict(one.created)}
        for one in prepared.tables
    ]
    moves = [sent(one.on_branch.dataset.name, one) for one in prepared.moves]
    read = [str(name) for name in prepared.read]
    return {"tables": tables, "moves": moves, "read": read, "removed": prepared.removed}


def _found(tables: BranchTables, name: str) -> BranchTable:
    found = tables.find(parse_dataset_name(name))
    assert found is not None, "a write finds its tables first"
    return found


def read_prepared(
    parts: Parts,
    tables: BranchTables,
    sent: Mapping[str, Any],
    known: write.Known = MappingProxyType({}),
) -> write.Prepared:
    """Return the change that an evaluator prepared; raise for a version in another place."""

    def read(one: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "version": write.version_of(
                parts, _found(tables, one["dataset"]), one["location"], known
            ),
            "type": TransactionType(one["type"]),
            "counts": Counts(**one["counts"]),
            "facts": one["facts"],
        }

    marks = sent["removed"]
    return write.Prepared(
        tables=tuple(
            write.PreparedTable(
                dataset=parse_dataset_name(one["dataset"]),
                keys_hold=one["keys_hold"],
                created=one["created"],
                **read(one),
            )
            for one in sent["tables"]
        ),
        moves=tuple(
            VersionMove(on_branch=_found(tables, one["dataset"]), **read(one))
            for one in sent["moves"]
        ),
        read=tuple(parse_dataset_name(name) for name in sent["read"]),
        removed=None if marks is None else tuple((n, (c, h)) for n, (c, h) in marks),
    )
