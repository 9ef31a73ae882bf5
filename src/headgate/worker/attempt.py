"""The process of one attempt: it is told what to do on stdin, and says how it went."""

from __future__ import annotations

import ctypes
import itertools
import os
import queue
import signal
import sys
import threading
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from headgate.errors import StaleAttempt, Unavailable
from headgate.settings import load_settings, with_server
from headgate.store.embedded import Store
from headgate.tasks.attempt_directory import AttemptLog
from headgate.tasks.declare import TaskDefinition
from headgate.tasks.definitions import load_task, parse_target
from headgate.tasks.lifecycle import Surroundings, run_attempt
from headgate.tasks.messages import (
    ANSWER,
    ASKED,
    ENDED,
    REFUSAL,
    SAID,
    Order,
    Outcome,
    failed,
    order_from_line,
)
from headgate.tasks.ports import TableWork, TaskInput

# A process that must not outlive the one that started it.

_PR_SET_PDEATHSIG = 1
ORPHANED = 70


def die_with_parent(parent: int) -> None:
    """From here on the system kills this process as soon as the thread that started it is gone.

    The pipe from the parent does the same where the system does not.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent and os.getppid() != parent:
        # It was gone before the wish was known.
        os._exit(ORPHANED)


# A supervisor that takes longer is not there any more, or cannot say: fail closed.
_ANSWER_SECONDS = 60.0


class Supervisor:
    """The process that gave the order, at the other end of two pipes."""

    def __init__(self, told: BinaryIO, tell_fd: int) -> None:
        self._told = told
        self._tell_fd = tell_fd
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._answers: queue.Queue[Mapping[str, Any]] = queue.Queue()

    def listen(self) -> None:
        """Hears answers from now on; when the pipe ends, so does this process, at once."""
        threading.Thread(target=self._hear, name="supervisor", daemon=True).start()

    def say(self, line: Mapping[str, Any]) -> None:
        self._send({SAID: line})

    def end(self, outcome: Outcome) -> None:
        self._send({ENDED: outcome.to_json()})

    def ask(self) -> None:
        """Asks the orchestrator's fence; an answer that does not come is a refusal."""
        number = next(self._numbers)
        self._send({ASKED: number})
        while True:
            try:
                answer = self._answers.get(timeout=_ANSWER_SECONDS)
            except queue.Empty:
                raise Unavailable(
                    "the supervisor did not say whether this attempt is still wanted; nothing was "
                    "published."
                ) from None
            # One that came too late for its question is none to this one.
            if answer[ANSWER] == number:
                break
        refusal = answer[REFUSAL]
        if refusal is not None:
            raise _Refused(refusal)

    def _hear(self) -> None:
        for line in self._told:
            self._answers.put(orjson.loads(line))
        os._exit(ORPHANED)

    def _send(self, message: Mapping[str, Any]) -> None:
        data = orjson.dumps(message, default=str) + b"\n"
        with self._lock:
            while data:
                data = data[os.write(self._tell_fd, data) :]


class _Refused(StaleAttempt):
    """The orchestrator's own words, as the supervisor passed them on."""

    def __init__(self, refusal: Mapping[str, str]) -> None:
        super(StaleAttempt, self).__init__(refusal["message"])
        self.code = refusal["code"]  # type: ignore[misc]


def main() -> int:
    """Does the attempt that the first line of stdin asks for."""
    told = sys.stdin.buffer
    order = order_from_line(told.readline())
    die_with_parent(order.parent)
    supervisor = Supervisor(told, int(sys.argv[1]))
    supervisor.listen()
    supervisor.end(_do(order, supervisor))
    return 0


def _do(order: Order, supervisor: Supervisor) -> Outcome:
    about = {
        "task": order.task,
        "task_key": order.key,
        "epoch": order.epoch,
        "execution": order.execution,
        **{f"orchestrator.{name}": value for name, value in order.labels.items()},
    }
    log = AttemptLog(Path(order.log), about, supervisor.say)
    try:
        definition = load_task(parse_target(order.target), Path(order.directory))
        store = _open_store(order)
    except Exception as error:
        outcome = failed(error)
        log.say("attempt ended", level="error", **outcome.to_json())
        return outcome
    with store:
        held = order.identity.held

        def fence() -> None:
            store.task_attempts.check(held)
            if order.asks:
                supervisor.ask()

        around = Surroundings(
            identity=order.identity,
            root=Path(order.root),
            log=log,
            fence=fence,
            store_for=store.workspaces,
            open_tables=partial(_open_tables, store, order),
            marker={"pid": os.getpid(), "parent": order.parent, "execution": order.execution},
        )
        return run_attempt(definition, order.data, around)


def _open_store(order: Order) -> Store:
    """The store that the supervisor has open, once more in this process."""
    server = order.server
    if server is None:
        return Store(load_settings(Path(order.store)), recover_first=False)
    from headgate.client.store import RemoteStore  # noqa: PLC0415  (slow, and seldom needed)

    settings = load_settings(Path(order.store), server_url=server.url)
    return RemoteStore(with_server(settings, url=server.url, token=server.token))


def _open_tables(
    store: Store, order: Order, definition: TaskDefinition, given: TaskInput
) -> TableWork:
    assert definition.tables is not None and given.workspace is not None
    return store.task_tables(definition.tables, given.workspace, order.identity)


if __name__ == "__main__":
    raise SystemExit(main())
