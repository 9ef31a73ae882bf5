"""The loop of a worker: polls while a slot is free, and drains on a signal."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from headgate.attempts import RENEW_SECONDS, Pulse
from headgate.conductor import IN_PROGRESS, ConductorClient, Dispatch
from headgate.errors import Conflict, Denied, HeadgateError, NotFound, TaskFailed
from headgate.model.nouns import AttemptState
from headgate.tasks.declare import OnTimeout, TaskDefinition
from headgate.tasks.messages import Outcome, Status, failed
from headgate.tasks.ports import Held, find_target
from headgate.tasks.supervisor import AttemptProcess, Place, Request, Terms, make_order

# One dispatch of Conductor from poll to a confirmed report: fenced, leased, in its own process.

_REPORT_TRIES = 8
_REPORT_PAUSE_SECONDS = 1.0
_MOST_PAUSE_SECONDS = 15.0
_PROGRESS_SECONDS = 10.0

Say = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True, kw_only=True)
class Duty:
    """What a slot needs to do any dispatch of its tasks."""

    place: Place
    client: ConductorClient
    worker: str
    directory: Path
    module: str
    say: Say


class Service:
    """One dispatch under way; its process can be ended from outside."""

    def __init__(self, duty: Duty, definition: TaskDefinition, dispatch: Dispatch) -> None:
        self._duty = duty
        self._definition = definition
        self.dispatch = dispatch
        self._process: AttemptProcess | None = None
        self._stop: BaseException | None = None
        # Short transfers are not worth a line.
        self._told = time.monotonic()

    def stop(self, error: BaseException) -> None:
        """Ends the attempt; it is reported as failed with this error."""
        self._stop = error
        if self._process is not None:
            self._process.stop(error)

    def run(self) -> None:
        """Does it and reports it; the leases hold until the report is confirmed."""
        held = self._begin()
        if held is None:
            return
        self._say("begun", epoch=held.ref.epoch)
        with Pulse(partial(self._beat, held), lost=self._lost, seconds=_interval(self.dispatch)):
            outcome = self._attempt(held)
            confirmed = self._report(outcome)
        completed = outcome.status is Status.COMPLETED and confirmed
        state = AttemptState.SUCCEEDED if completed else AttemptState.FAILED
        self._quietly(lambda: self._duty.place.attempts.end(held, state))
        self._quietly(self._duty.place.tidy)

    def _begin(self) -> Held | None:
        """The attempt, or None where there is none: who waits for a refused one is told so."""
        target = find_target(self._definition, self.dispatch.data)
        try:
            self._duty.client.check_current(self.dispatch)
            return self._duty.place.attempts.dispatch(self.dispatch.key, branch=target)
        except Denied as error:
            # Said at once: the response timeout would say less, and may be hours away.
            self._say("refused", reason=error.message)
            self._report(failed(error))
        except HeadgateError as error:
            self._say("not begun", reason=error.message)
        return None

    def _attempt(self, held: Held) -> Outcome:
        if self._stop is not None:
            return failed(self._stop)
        request = Request(
            definition=self._definition,
            target=f"{self._duty.module}:{self._definition.name}",
            directory=self._duty.directory,
            data=self.dispatch.data,
        )
        order = make_order(self._duty.place, request, held, labels=self.dispatch.labels, asks=True)
        process = AttemptProcess(order, command=self._duty.place.command)
        self._process = process
        self._say("process", pid=process.pid, log=order.log)
        self._stop_if_told(process)
        return process.run(
            Terms(
                fence=lambda: self._duty.client.check_current(self.dispatch),
                deadline_seconds=_deadline_seconds(self._definition),
                watch=self._watch,
            )
        )

    def _watch(self, line: Mapping[str, Any]) -> None:
        """Passes on how far a long transfer is, now and then; the attempt's log has the rest."""
        if line["event"] == "progress" and time.monotonic() - self._told >= _PROGRESS_SECONDS:
            self._told = time.monotonic()
            facts = {name: line[name] for name in ("step", "files", "bytes")}
            self._say("progress", **facts)

    def _stop_if_told(self, process: AttemptProcess) -> None:
        """Whoever said so before there was a process meant this one."""
        if self._stop is not None:
            process.stop(self._stop)

    def _beat(self, held: Held) -> None:
        """Both leases; an attempt that either of them no longer knows has lost its work."""
        self._duty.place.attempts.renew(held)
        self._duty.client.check_current(self.dispatch)
        self._duty.client.extend_lease(self.dispatch, worker=self._duty.worker)

    def _lost(self, error: HeadgateError) -> None:
        self._say("lost", reason=error.message)
        self.stop(error)

    def _report(self, outcome: Outcome) -> bool:
        """Sends the result until the server shows it; False where it is not wanted any more."""
        for number in range(_REPORT_TRIES):
            try:
                if self._confirmed(outcome):
                    self._say("reported", status=outcome.status, reason=outcome.reason)
                    return True
                self._duty.client.report(
                    self.dispatch,
                    worker=self._duty.worker,
                    status=outcome.status,
                    output=outcome.output,
                    reason=outcome.reason,
                )
                if self._confirmed(outcome):
                    self._say("reported", status=outcome.status, reason=outcome.reason)
                    return True
            except Conflict as error:
                self._say("report not wanted", status=outcome.status, reason=error.message)
                return False
            except HeadgateError as error:
                self._say("report failed", attempt=number + 1, reason=error.message)
            time.sleep(min(_REPORT_PAUSE_SECONDS * 2**number, _MOST_PAUSE_SECONDS))
        self._say("report given up", status=outcome.status)
        return False

    def _confirmed(self, outcome: Outcome) -> bool:
        """Read back, since a server answers a late result as it answers a wanted one."""
        fresh = self._duty.client.find_task(self.dispatch.task_id)
        if fresh is not None and fresh.status == outcome.status.value:
            return True
        if fresh is None or fresh.status != IN_PROGRESS:
            # Raises, and says in which way nobody waits for it.
            self._duty.client.check_current(self.dispatch)
        return False

    def _quietly(self, do: Callable[[], None]) -> None:
        try:
            do()
        except HeadgateError as error:
            self._say("not tidied", reason=error.message)

    def _say(self, event: str, **facts: Any) -> None:
        self._duty.say(
            {
                "event": event,
                "task": self._definition.name,
                "task_id": self.dispatch.task_id,
                "workflow": self.dispatch.workflow_id,
                **facts,
            }
        )


def _interval(dispatch: Dispatch) -> float:
    """Often enough for the shorter of the two leases, with room for one beat that is lost."""
    if not dispatch.response_seconds:
        return RENEW_SECONDS
    return max(min(RENEW_SECONDS, dispatch.response_seconds / 3), 0.2)


def _deadline_seconds(definition: TaskDefinition) -> float | None:
    timeout = definition.controls.timeout
    if timeout.policy == OnTimeout.ALERT_ONLY or not timeout.seconds:
        return None
    return float(timeout.seconds)


_POLL_WAIT_MS = 200
_IDLE_SECONDS = 0.05
_MOST_POLL_PAUSE_SECONDS = 30.0
# After the deadline of a drain: to end processes, and to report that they were ended.
_LAST_WORDS_SECONDS = 9.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True, kw_only=True)
class Capacity:
    slots: int
    # How long attempts may go on after a signal; None is until they are done.
    drain_seconds: float | None = None


@dataclass(kw_only=True)
class _Slot:
    service: Service
    thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        # It starts the attempt's process, which the system ends with the thread that started it.
        self.thread = threading.Thread(target=self.service.run, name="task-slot", daemon=True)
        self.thread.start()


class Worker:
    """Does what Conductor dispatches, as many at once as it has slots."""

    def __init__(self, duty: Duty, tasks: Sequence[TaskDefinition], capacity: Capacity) -> None:
        self._duty = duty
        self._tasks = {task.name: task for task in tasks}
        self._capacity = capacity
        self._busy: list[_Slot] = []
        # A plain count: a handler must not wait for what its own thread may hold.
        self._signals = 0

    def run(self) -> None:
        """Until a signal comes; then what is under way is finished and reported."""
        self._check_registered()
        before = {number: signal.signal(number, self._signalled) for number in _SIGNALS}
        try:
            self._duty.place.tidy()
            self._duty.say({"event": "polling", "tasks": sorted(self._tasks)})
            self._poll_until_signalled()
            self._drain()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _signalled(self, _number: int, _frame: object) -> None:
        self._signals += 1

    def _check_registered(self) -> None:
        for name in self._tasks:
            if self._duty.client.find_taskdef(name) is None:
                raise NotFound(
                    f"Conductor at {self._duty.client.url} does not know the task {name!r}. "
                    f"Register it first: headgate task register {self._duty.module}",
                    task=name,
                )

    def _poll_until_signalled(self) -> None:
        failures = 0
        while not self._signals:
            try:
                began = self._poll_once()
                failures = 0
            except HeadgateError as error:
                failures += 1
                self._duty.say({"event": "poll failed", "reason": error.message})
                self._pause(min(2.0 ** (failures - 1), _MOST_POLL_PAUSE_SECONDS))
                continue
            if not began:
                time.sleep(_IDLE_SECONDS)

    def _poll_once(self) -> int:
        """Begins what there is to do; how much that was."""
        began = 0
        for name, definition in self._tasks.items():
            free = self._capacity.slots - len(self._living())
            if free < 1 or self._signals:
                break
            found = self._duty.client.poll(
                name, worker=self._duty.worker, count=free, wait_ms=_POLL_WAIT_MS
            )
            for dispatch in found:
                self._busy.append(_Slot(service=Service(self._duty, definition, dispatch)))
            began += len(found)
        return began

    def _living(self) -> list[_Slot]:
        self._busy = [slot for slot in self._busy if slot.thread.is_alive()]
        return self._busy

    def _drain(self) -> None:
        """Waits for what is under way; past the deadline, or at a second signal, ends it."""
        self._duty.say({"event": "draining", "busy": len(self._living())})
        drain = self._capacity.drain_seconds
        ends_at = None if drain is None else time.monotonic() + drain
        while self._living():
            if self._signals > 1 or (ends_at is not None and time.monotonic() > ends_at):
                self._end_all()
                break
            time.sleep(_IDLE_SECONDS)
        self._duty.say({"event": "stopped", "left": len(self._living())})

    def _end_all(self) -> None:
        for slot in self._living():
            slot.service.stop(TaskFailed("the worker is shut down"))
        ends_at = time.monotonic() + _LAST_WORDS_SECONDS
        while self._living() and time.monotonic() < ends_at:
            time.sleep(_IDLE_SECONDS)

    def _pause(self, seconds: float) -> None:
        ends_at = time.monotonic() + seconds
        while not self._signals and time.monotonic() < ends_at:
            time.sleep(_IDLE_SECONDS)
