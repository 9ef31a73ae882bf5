"""The local orchestrator: attempts one after the other, with epochs and leases of the catalog."""

from __future__ import annotations

import os
import random
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headgate.attempts.pulse import Pulse
from headgate.errors import InvalidTaskInput, TaskDeadlinePassed, Unavailable
from headgate.model.ids import mint
from headgate.model.nouns import AttemptState
from headgate.tasks.attempt_log import forget_old_logs
from headgate.tasks.controls import OnTimeout
from headgate.tasks.declaring import TaskDefinition
from headgate.tasks.directories import sweep_directories
from headgate.tasks.executing import PROCESS, AttemptProcess, Terms, Watch
from headgate.tasks.inputs import find_target
from headgate.tasks.orders import Order
from headgate.tasks.outcomes import Outcome, Status
from headgate.tasks.ports import Attempts, Held, ServerAddress

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
