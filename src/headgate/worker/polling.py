"""The loop of a worker: polls while a slot is free, and drains on a signal."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from headgate.errors import HeadgateError, NotFound, TaskFailed
from headgate.tasks.declaring import TaskDefinition
from headgate.worker.dispatching import Duty, Service

_POLL_WAIT_MS = 200
_IDLE_SECONDS = 0.05
_MOST_PAUSE_SECONDS = 30.0
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
                self._pause(min(2.0 ** (failures - 1), _MOST_PAUSE_SECONDS))
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
