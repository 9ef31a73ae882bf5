"""The supervisor's side of an attempt's process: start it, hear it, answer it, end it in time."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from headgate.errors import AttemptDied, HeadgateError, TaskDeadlinePassed, TaskFailed
from headgate.tasks.orders import ANSWER, ASKED, ENDED, REFUSAL, SAID, Order
from headgate.tasks.outcomes import Outcome, failed, outcome_from_json
from headgate.tasks.ports import Fence

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
