"""The local orchestrator: attempts one after the other, with epochs and leases of the catalog."""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from headgate.attempts import Pulse
from headgate.errors import (
    AttemptDied,
    HeadgateError,
    InvalidTaskInput,
    TaskDeadlinePassed,
    TaskFailed,
    Unavailable,
)
from headgate.model.ids import mint
from headgate.model.nouns import AttemptState
from headgate.tasks.attempt_directory import forget_old_logs, sweep_directories
from headgate.tasks.declare import OnTimeout, TaskDefinition
from headgate.tasks.messages import (
    ANSWER,
    ASKED,
    ENDED,
    REFUSAL,
    SAID,
    Order,
    Outcome,
    Status,
    failed,
    outcome_from_json,
)
from headgate.tasks.ports import Attempts, Fence, Held, ServerAddress, find_target

# The supervisor's side of an attempt's process: start it, hear it, answer it, end it in time.

# A string, since the room above holds it: it wires a store, which this one must not know.
PROCESS = (sys.executable, "-m", "headgate.worker.attempt")
_LOOK_SECONDS = 0.1
_LEAVE_SECONDS = 10.0

Watch = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Under which conditions a process may go on."""

    fence: Fence
    # None is for ever.
    deadline_seconds: float | None = None
    watch: Watch = lambda line: None


class AttemptProcess:
    """One attempt in a process of its own, which ends itself when this process is gone."""

    def __init__(self, order: Order, *, command: Sequence[str] = PROCESS) -> None:
        self._order = order
        self._stop: BaseException | None = None
        heard, tell = os.pipe()
        output = Path(order.log).with_suffix(".out")
        output.parent.mkdir(parents=True, exist_ok=True)
        with output.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, str(tell)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=(tell,),
                cwd=order.directory,
                # Ctrl-C on the terminal is for this process to act upon.
                start_new_session=True,
            )
        os.close(tell)
        self._heard = heard
        self._tell(order.to_line())

    @property
    def pid(self) -> int:
        return self._process.pid

    def run(self, terms: Terms) -> Outcome:
        """Its outcome; that of a process which died, or was ended, says so."""
        began = time.monotonic()
        outcome: Outcome | None = None
        try:
            for line in self._lines():
                if line is not None:
                    outcome = self._hear(line, terms) or outcome
                passed = time.monotonic() - began
                if terms.deadline_seconds is not None and passed > terms.deadline_seconds:
                    self.stop(
                        TaskDeadlinePassed(what="the attempt", seconds=terms.deadline_seconds)
                    )
                if self._stop is not None or outcome is not None:
                    break
        finally:
            self._end(leave=outcome is not None)
        if outcome is not None:
            return outcome
        return failed(self._stop or AttemptDied(how=_how(self._process.returncode)))

    def stop(self, error: BaseException) -> None:
        """Ends it, from any thread or handler: it is reported with this error unless it was over.

        One assignment and no lock: a handler may interrupt the very thread that would hold it.
        """
        self._stop = self._stop or error

    def _lines(self) -> Iterator[bytes | None]:
        """What it says, line by line, and None now and then; ends with the process."""
        pending = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._heard, selectors.EVENT_READ)
            while True:
                if not selector.select(_LOOK_SECONDS):
                    yield None
                    continue
                data = os.read(self._heard, 65536)
                if not data:
                    return
                *lines, pending = (pending + data).split(b"\n")
                yield from lines

    def _hear(self, line: bytes, terms: Terms) -> Outcome | None:
        message = orjson.loads(line)
        if ENDED in message:
            return outcome_from_json(message[ENDED])
        if ASKED in message:
            self._answer(message[ASKED], terms.fence)
        elif SAID in message:
            terms.watch(message[SAID])
        return None

    def _answer(self, number: int, fence: Fence) -> None:
        try:
            fence()
            refusal = None
        except HeadgateError as error:
            refusal = {"code": error.code, "message": error.message}
        self._tell(orjson.dumps({ANSWER: number, REFUSAL: refusal}) + b"\n")

    def _tell(self, line: bytes) -> None:
        # A process that died at once is reported by its exit code.
        with contextlib.suppress(BrokenPipeError):
            assert self._process.stdin is not None
            self._process.stdin.write(line)
            self._process.stdin.flush()

    def _end(self, *, leave: bool) -> None:
        """Lets a process leave that has said all; ends every other, and all that it started."""
        if leave:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_LEAVE_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._heard)
        with contextlib.suppress(BrokenPipeError):
            assert self._process.stdin is not None
            self._process.stdin.close()


def _how(code: int) -> str:
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def stopped(reason: str) -> TaskFailed:
    """The error of an attempt that its supervisor ended."""
    return TaskFailed(reason)


_LOGS = "logs"


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where attempts are done on this machine, and for which store."""

    attempts: Attempts
    # The directory whose settings name the store.
    store: Path
    # Where attempt directories and logs are.
    root: Path
    actor: str
    # Who serves the store, where it is not on this machine.
    server: ServerAddress | None = None
    command: Sequence[str] = PROCESS

    def log_of(self, execution: str) -> Path:
        return self.root / _LOGS / f"{execution}.jsonl"

    def tidy(self) -> None:
        """Removes what dead attempts left here; those that live keep theirs."""
        sweep_directories(self.root)
        forget_old_logs(self.root / _LOGS)


@dataclass(frozen=True, kw_only=True)
class Request:
    definition: TaskDefinition
    # As it is imported, `package.module:task`, and from where.
    target: str
    directory: Path
    data: Any
    # The identity of the work across its attempts; a new one where nobody gave one.
    key: str | None = None
    retries: int | None = None


@dataclass(frozen=True, kw_only=True)
class LocalResult:
    key: str
    outcome: Outcome
    attempts: int
    log: Path

    def to_json(self) -> dict[str, Any]:
        told = self.outcome.to_json()
        return {
            "status": told["status"],
            "output": told["output"],
            "reason": told["reason"],
            "code": told["code"],
            "attempts": self.attempts,
            "task_key": self.key,
            "log": str(self.log),
        }


@dataclass(kw_only=True)
class Hearing:
    """Who listens, and whether no further attempt is to be begun."""

    watch: Watch = lambda line: None
    draining: Callable[[], bool] = lambda: False
    sleep: Callable[[float], None] = time.sleep
    processes: list[AttemptProcess] = field(default_factory=list)


def run_locally(place: Place, request: Request, hearing: Hearing | None = None) -> LocalResult:
    """Does a task, with the retries that it declares, until it succeeds or nothing can help."""
    hearing = hearing or Hearing()
    place.tidy()
    controls = request.definition.controls
    key = request.key or f"task:{request.definition.name}:{mint('k')}"
    retries = controls.retry.count if request.retries is None else request.retries
    ends_at = time.monotonic() + (controls.timeout.total_seconds or float("inf"))
    number = 0
    while True:
        number += 1
        outcome, log = _one(place, request, key, hearing, ends_at)
        place.tidy()
        if number > retries or not _may_help(outcome, request.definition) or hearing.draining():
            return LocalResult(key=key, outcome=outcome, attempts=number, log=log)
        delay = controls.retry.delay_before(number)
        delay += random.uniform(0, controls.retry.jitter_ms / 1000)
        if time.monotonic() + delay >= ends_at:
            return LocalResult(key=key, outcome=outcome, attempts=number, log=log)
        hearing.watch({"event": "retry", "attempt": number + 1, "delay_seconds": round(delay, 3)})
        hearing.sleep(delay)


def _one(
    place: Place, request: Request, key: str, hearing: Hearing, ends_at: float
) -> tuple[Outcome, Path]:
    target = find_target(request.definition, request.data)
    held = place.attempts.dispatch(key, branch=target)
    order = make_order(place, request, held, labels={"orchestrator": "local"})
    process = AttemptProcess(order, command=place.command)
    hearing.processes[:] = [process]
    terms = Terms(
        fence=lambda: place.attempts.check(held),
        deadline_seconds=_deadline(request.definition, ends_at),
        watch=hearing.watch,
    )
    with Pulse(lambda: place.attempts.renew(held), lost=process.stop):
        outcome = process.run(terms)
    hearing.processes.clear()
    done = AttemptState.SUCCEEDED if outcome.status is Status.COMPLETED else AttemptState.FAILED
    try:
        place.attempts.end(held, done)
    except Unavailable as error:
        # What came of it is known, and told whoever asked; the lease ends by itself.
        hearing.watch({"event": "not ended", "reason": error.message})
    return outcome, Path(order.log)


def make_order(
    place: Place,
    request: Request,
    held: Held,
    *,
    labels: Mapping[str, str],
    asks: bool = False,
) -> Order:
    """An attempt as its process is told of it, under a name that no other has."""
    attempt, server = held.ref, place.server
    execution = f"{_plain(request.definition.name)}-{attempt.epoch}-{secrets.token_hex(8)}"
    return Order(
        store=str(place.store),
        directory=str(request.directory),
        target=request.target,
        data=request.data,
        root=str(place.root),
        log=str(place.log_of(execution)),
        key=attempt.key,
        epoch=attempt.epoch,
        execution=execution,
        actor=place.actor,
        task=request.definition.name,
        labels=labels,
        url=server.url if server is not None else None,
        token=server.token if server is not None else None,
        secret=held.secret,
        asks=asks,
        parent=os.getpid(),
    )


def _deadline(definition: TaskDefinition, ends_at: float) -> float | None:
    timeout = definition.controls.timeout
    if timeout.policy == OnTimeout.ALERT_ONLY:
        return None
    left = ends_at - time.monotonic()
    seconds = min(timeout.seconds or float("inf"), left)
    return None if seconds == float("inf") else max(seconds, 0.0)


def _may_help(outcome: Outcome, definition: TaskDefinition) -> bool:
    """Whether another attempt of the same input may do better."""
    if outcome.status is not Status.FAILED or outcome.is_lost:
        return False
    if outcome.code == InvalidTaskInput.code:
        # A retry gets the same input; nobody shall wait minutes to be told of a slip again.
        return False
    timed_out = outcome.code == TaskDeadlinePassed.code
    return not timed_out or definition.controls.timeout.policy == OnTimeout.RETRY


def _plain(name: str) -> str:
    plain = "".join(c if c.isascii() and c.isalnum() else "-" for c in name)
    return plain[:60].strip("-") or "task"
