"""Process of one attempt: reads its order from stdin, sends messages to its supervisor."""

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
from headgate.tasks import messages
from headgate.tasks.attempt_directory import AttemptLog
from headgate.tasks.declare import TaskDefinition
from headgate.tasks.definitions import load_task, parse_target
from headgate.tasks.lifecycle import AttemptEnvironment, run_attempt
from headgate.tasks.messages import Order, Outcome
from headgate.tasks.ports import Identity, TableWork, TaskInput

_PR_SET_PDEATHSIG = 1
_ORPHANED_EXIT_CODE = 70
# Fail closed if the supervisor does not reply in this time.
_REPLY_SECONDS = 60.0


def _die_with_parent(parent: int) -> None:
    """Let the system kill this process when the thread that started it ends (Linux).

    Elsewhere the process exits when its pipe from the supervisor closes.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent and os.getppid() != parent:
        # The parent ended before prctl.
        os._exit(_ORPHANED_EXIT_CODE)


class Supervisor:
    """Connection to the supervisor over two pipes."""

    def __init__(self, replies: BinaryIO, message_fd: int) -> None:
        self._pipe = replies
        self._message_fd = message_fd
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._replies: queue.Queue[Mapping[str, Any]] = queue.Queue()

    def listen(self) -> None:
        """Read replies in a thread; exit the process when the pipe closes."""
        threading.Thread(target=self._read, name="supervisor", daemon=True).start()

    def log(self, line: Mapping[str, Any]) -> None:
        self._send({messages.LOG_LINE: line})

    def end(self, outcome: Outcome) -> None:
        self._send({messages.OUTCOME: outcome.to_json()})

    def check_fence(self) -> None:
        """Check the orchestrator's fence; raise if it rejects or does not reply."""
        self._request({})

    def has_ended(self, key: str) -> bool:
        """Return True if the orchestrator confirms that the workflow of a task key has ended."""
        return bool(self._request({messages.ENDED_KEY: key})[messages.HAS_ENDED])

    def _request(self, question: Mapping[str, Any]) -> Mapping[str, Any]:
        number = next(self._numbers)
        self._send({messages.FENCE_REQUEST: number, **question})
        while True:
            try:
                reply = self._replies.get(timeout=_REPLY_SECONDS)
            except queue.Empty:
                raise Unavailable(
                    f"the supervisor did not reply to the fence request in {_REPLY_SECONDS:g} s; "
                    "nothing was published."
                ) from None
            # Skip late replies to earlier requests.
            if reply[messages.FENCE_REPLY] == number:
                break
        if reply[messages.FENCE_ERROR] is not None:
            raise _FenceRefused(reply[messages.FENCE_ERROR])
        return reply

    def _read(self) -> None:
        for line in self._pipe:
            self._replies.put(orjson.loads(line))
        os._exit(_ORPHANED_EXIT_CODE)

    def _send(self, message: Mapping[str, Any]) -> None:
        data = orjson.dumps(message, default=str) + b"\n"
        with self._lock:
            while data:
                data = data[os.write(self._message_fd, data) :]


class _FenceRefused(StaleAttempt):
    """Error of the supervisor's fence, with its code and message."""

    def __init__(self, error: Mapping[str, str]) -> None:
        super(StaleAttempt, self).__init__(error["message"])
        self.code = error["code"]  # type: ignore[misc]


def main() -> int:
    """Run the attempt of the order on the first line of stdin."""
    order = Order(**orjson.loads(sys.stdin.buffer.readline()))
    _die_with_parent(order.parent)
    supervisor = Supervisor(sys.stdin.buffer, int(sys.argv[1]))
    supervisor.listen()
    try:
        outcome = _run(order, supervisor)
    except Exception as error:
        # Such as a disk too full for the log; the supervisor's pipe needs no disk.
        outcome = messages.failed(error)
    supervisor.end(outcome)
    return 0


def _run(order: Order, supervisor: Supervisor) -> Outcome:
    fields = {
        "task": order.task,
        "task_key": order.key,
        "epoch": order.epoch,
        "execution": order.execution,
        **{f"orchestrator.{name}": value for name, value in order.labels.items()},
    }
    log = AttemptLog(Path(order.log), fields, supervisor.log)
    try:
        definition = load_task(parse_target(order.target), Path(order.directory))
        store = _open_store(order)
    except Exception as error:
        outcome = messages.failed(error)
        log.write("attempt ended", level="error", **outcome.to_json())
        return outcome
    with store:
        handle = order.identity.handle

        def fence() -> None:
            store.task_attempts.check(handle)
            if order.supervised_fence:
                supervisor.check_fence()

        environment = AttemptEnvironment(
            identity=order.identity,
            root=Path(order.root),
            log=log,
            fence=fence,
            store_for=store.workspaces,
            open_tables=partial(_open_tables, store),
            has_ended=supervisor.has_ended if order.supervised_fence else None,
            marker={"pid": os.getpid(), "parent": order.parent, "execution": order.execution},
        )
        return run_attempt(definition, order.data, environment)


def _open_store(order: Order) -> Store:
    if order.url is None:
        return Store(load_settings(Path(order.store)), recover_first=False)
    from headgate.client.store import RemoteStore  # noqa: PLC0415  (slow, and rarely needed)

    settings = load_settings(Path(order.store), server_url=order.url)
    return RemoteStore(with_server(settings, url=order.url, token=order.token))


def _open_tables(
    store: Store, definition: TaskDefinition, given: TaskInput, identity: Identity
) -> TableWork:
    assert definition.tables is not None and given.workspace is not None
    return store.task_tables(definition.tables, given.workspace, identity)


if __name__ == "__main__":
    raise SystemExit(main())
