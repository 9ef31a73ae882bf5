"""Runs attempts in processes of their own.

`AttemptProcess` is the supervisor's side of one process. `run_locally` is the local orchestrator:
it runs a task with its retries, using epochs and leases of the catalog.
"""

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
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from headgate import errors
from headgate.attempts import Heartbeat
from headgate.model.ids import mint
from headgate.model.nouns import AttemptState
from headgate.storage.local import make_private_directory, storage_errors
from headgate.tasks import messages
from headgate.tasks.attempt_directory import delete_old_logs, sweep_directories
from headgate.tasks.declare import OnTimeout, TaskDefinition
from headgate.tasks.messages import Order, Outcome, Status
from headgate.tasks.ports import AttemptHandle, Attempts, Fence, ServerAddress, find_target_branch

# By name: the worker package imports this one.
PROCESS = (sys.executable, "-m", "headgate.worker.attempt")
_POLL_SECONDS = 0.1
_EXIT_SECONDS = 10.0

Watch = Callable[[Mapping[str, Any]], None]


def _ignore(line: Mapping[str, Any]) -> None:
    """Drop an event."""


class AttemptProcess:
    """The process of one attempt, which exits when this process ends."""

    def __init__(self, order: Order, *, command: Sequence[str] = PROCESS) -> None:
        self._order = order
        self._stop: BaseException | None = None
        output = Path(order.log).with_suffix(".out")
        with storage_errors(output):
            make_private_directory(output.parent)
            log = output.open("ab")
        with log:
            self._messages, write_end = os.pipe()
            self._process = subprocess.Popen(
                [*command, str(write_end)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=(write_end,),
                cwd=order.directory,
                # Ctrl-C on the terminal goes to this process only.
                start_new_session=True,
            )
        os.close(write_end)
        self._send(order.to_line())

    @property
    def pid(self) -> int:
        return self._process.pid

    def run(
        self,
        *,
        fence: Fence,
        has_ended: Callable[[str], bool] = lambda key: False,
        deadline_seconds: float | None = None,
        watch: Watch = _ignore,
    ) -> Outcome:
        """Wait for the process and return its outcome, also if it died or was stopped.

        :param fence: checked when the process requests it.
        :param has_ended: True if the workflow of a task key has ended without success.
        :param deadline_seconds: stop the process after this time; None is no deadline.
        :param watch: called with each log line.
        """
        began = time.monotonic()
        outcome: Outcome | None = None
        try:
            for line in self._lines():
                if line is not None:
                    outcome = self._receive(line, fence, has_ended, watch) or outcome
                if deadline_seconds is not None and time.monotonic() - began > deadline_seconds:
                    self.stop(
                        errors.TaskDeadlinePassed(what="the attempt", seconds=deadline_seconds)
                    )
                if self._stop is not None or outcome is not None:
                    break
        finally:
            self._end(graceful=outcome is not None)
        if outcome is not None:
            return outcome
        return messages.failed(
            self._stop or errors.AttemptDied(how=_exit_text(self._process.returncode))
        )

    def stop(self, error: BaseException) -> None:
        """Stop the process; its outcome is this error unless it has ended.

        Safe in threads and signal handlers: without a lock, a handler cannot wait for the thread
        that it interrupts.
        """
        self._stop = self._stop or error

    def _lines(self) -> Iterator[bytes | None]:
        """Yield messages until the process closes its pipe, and None when there are none."""
        pending = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._messages, selectors.EVENT_READ)
            while True:
                if not selector.select(_POLL_SECONDS):
                    yield None
                    continue
                data = os.read(self._messages, 65536)
                if not data:
                    return
                *lines, pending = (pending + data).split(b"\n")
                yield from lines

    def _receive(
        self, line: bytes, fence: Fence, has_ended: Callable[[str], bool], watch: Watch
    ) -> Outcome | None:
        message = orjson.loads(line)
        if messages.OUTCOME in message:
            sent = message[messages.OUTCOME]
            return messages.Outcome(**{**sent, "status": messages.Status(sent["status"])})
        if messages.FENCE_REQUEST in message:
            key = message.get(messages.ENDED_KEY)
            check = fence if key is None else partial(has_ended, key)
            self._reply(message[messages.FENCE_REQUEST], check)
        elif messages.LOG_LINE in message:
            watch(message[messages.LOG_LINE])
        return None

    def _reply(self, number: int, check: Callable[[], object]) -> None:
        reply: dict[str, Any] = {messages.FENCE_REPLY: number, messages.FENCE_ERROR: None}
        try:
            reply[messages.HAS_ENDED] = check()
        except errors.HeadgateError as error:
            reply[messages.FENCE_ERROR] = {"code": error.code, "message": error.message}
        self._send(orjson.dumps(reply) + b"\n")

    def _send(self, line: bytes) -> None:
        # A process that has died is reported by its exit code.
        with contextlib.suppress(BrokenPipeError):
            assert self._process.stdin is not None
            self._process.stdin.write(line)
            self._process.stdin.flush()

    def _end(self, *, graceful: bool) -> None:
        """Kill the process and its children; if graceful, wait first for it to exit."""
        if graceful:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_EXIT_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._messages)
        with contextlib.suppress(BrokenPipeError):
            assert self._process.stdin is not None
            self._process.stdin.close()


def _exit_text(code: int) -> str:
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


_LOGS = "logs"


@dataclass(frozen=True, kw_only=True)
class TaskHost:
    """Settings under which this machine runs the attempts of a store."""

    attempts: Attempts
    # Directory with the settings of the store.
    store: Path
    # Directory of attempt directories and logs.
    root: Path
    actor: str
    # Server of a store that is not on this machine.
    server: ServerAddress | None = None
    command: Sequence[str] = PROCESS

    def log_path(self, execution: str) -> Path:
        return self.root / _LOGS / f"{execution}.jsonl"

    def clean_up(self) -> None:
        """Remove directories of dead attempts and old logs."""
        sweep_directories(self.root)
        delete_old_logs(self.root / _LOGS)


@dataclass(frozen=True, kw_only=True)
class Request:
    """A task to run."""

    definition: TaskDefinition
    # `package.module:task`, and the directory from which it is imported.
    target: str
    directory: Path
    data: Any
    # Identity of the work across its attempts; None for a new one.
    key: str | None = None
    retries: int | None = None
    # Publication of another task that may be replaced.
    replaces: str | None = None


@dataclass(frozen=True, kw_only=True)
class LocalResult:
    key: str
    outcome: Outcome
    attempts: int
    log: Path

    def to_json(self) -> dict[str, Any]:
        return {
            "status": self.outcome.status.value,
            "output": self.outcome.output,
            "reason": self.outcome.reason,
            "code": self.outcome.code,
            "attempts": self.attempts,
            "task_key": self.key,
            "log": str(self.log),
        }


@dataclass(kw_only=True)
class RunControl:
    """Callbacks of a local run, and its current process."""

    watch: Watch = _ignore
    # No further attempt starts once this returns True.
    draining: Callable[[], bool] = lambda: False
    sleep: Callable[[float], None] = time.sleep
    processes: list[AttemptProcess] = field(default_factory=list)


def run_locally(host: TaskHost, request: Request, control: RunControl | None = None) -> LocalResult:
    """Run a task with its retries until it succeeds or a retry cannot help."""
    control = control or RunControl()
    host.clean_up()
    controls = request.definition.controls
    key = request.key or f"task:{request.definition.name}:{mint('k')}"
    retries = controls.retry.count if request.retries is None else request.retries
    ends_at = time.monotonic() + (controls.timeout.total_seconds or float("inf"))
    number = 0
    while True:
        number += 1
        outcome, log = _run_once(host, request, key, control, ends_at)
        host.clean_up()
        if number > retries or not _is_retryable(outcome, request.definition) or control.draining():
            return LocalResult(key=key, outcome=outcome, attempts=number, log=log)
        delay = controls.retry.delay_before(number)
        delay += random.uniform(0, controls.retry.jitter_ms / 1000)
        if time.monotonic() + delay >= ends_at:
            return LocalResult(key=key, outcome=outcome, attempts=number, log=log)
        control.watch({"event": "retry", "attempt": number + 1, "delay_seconds": round(delay, 3)})
        control.sleep(delay)


def _run_once(
    host: TaskHost, request: Request, key: str, control: RunControl, ends_at: float
) -> tuple[Outcome, Path]:
    target = find_target_branch(request.definition, request.data)
    handle = host.attempts.dispatch(key, branch=target)
    order = make_order(host, request, handle, labels={"orchestrator": "local"})
    try:
        process = AttemptProcess(order, command=host.command)
    except (errors.Unavailable, OSError):
        with contextlib.suppress(errors.Unavailable):
            host.attempts.end(handle, AttemptState.FAILED)
        raise
    control.processes[:] = [process]
    with Heartbeat(lambda: host.attempts.renew(handle), lost=process.stop):
        outcome = process.run(
            fence=lambda: host.attempts.check(handle),
            deadline_seconds=deadline_seconds(request.definition, ends_at),
            watch=control.watch,
        )
    control.processes.clear()
    state = AttemptState.SUCCEEDED if outcome.status is Status.COMPLETED else AttemptState.FAILED
    try:
        host.attempts.end(handle, state)
    except errors.Unavailable as error:
        # The outcome is known; the lease expires by itself.
        control.watch({"event": "not ended", "reason": error.message})
    return outcome, Path(order.log)


def make_order(
    host: TaskHost,
    request: Request,
    handle: AttemptHandle,
    *,
    labels: Mapping[str, str],
    supervised_fence: bool = False,
) -> Order:
    """Return the order for an attempt's process, with a unique execution name."""
    attempt, server = handle.ref, host.server
    execution = f"{_slug(request.definition.name)}-{attempt.epoch}-{secrets.token_hex(8)}"
    return Order(
        store=str(host.store),
        directory=str(request.directory),
        target=request.target,
        data=request.data,
        root=str(host.root),
        log=str(host.log_path(execution)),
        key=attempt.key,
        epoch=attempt.epoch,
        execution=execution,
        actor=host.actor,
        task=request.definition.name,
        labels=labels,
        url=server.url if server is not None else None,
        token=server.token if server is not None else None,
        secret=handle.secret,
        supervised_fence=supervised_fence,
        replaces=request.replaces,
        parent=os.getpid(),
    )


def deadline_seconds(definition: TaskDefinition, ends_at: float = float("inf")) -> float | None:
    """Return the seconds after which an attempt is stopped; None is no deadline."""
    timeout = definition.controls.timeout
    if timeout.policy == OnTimeout.ALERT_ONLY:
        return None
    seconds = min(timeout.seconds or float("inf"), ends_at - time.monotonic())
    return None if seconds == float("inf") else max(seconds, 0.0)


def _is_retryable(outcome: Outcome, definition: TaskDefinition) -> bool:
    """True if another attempt with the same input may succeed."""
    if outcome.status is not Status.FAILED or outcome.is_superseded:
        return False
    # The input stays the same, and no attempt moves the target back to it.
    if outcome.code in {errors.InvalidTaskInput.code, errors.PublishFenceRefused.code}:
        return False
    timed_out = outcome.code == errors.TaskDeadlinePassed.code
    return not timed_out or definition.controls.timeout.policy == OnTimeout.RETRY


def _slug(name: str) -> str:
    slug = "".join(c if c.isascii() and c.isalnum() else "-" for c in name)
    return slug[:60].strip("-") or "task"
