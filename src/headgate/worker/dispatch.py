"""The loop of a Conductor worker: polls, runs each dispatch in a process, drains on a signal."""

import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from headgate.attempts import RENEW_SECONDS, Heartbeat
from headgate.conductor import IN_PROGRESS, ConductorClient, Dispatch
from headgate.errors import Conflict, Denied, HeadgateError, NotFound, TaskFailed
from headgate.model.nouns import AttemptState
from headgate.tasks import supervisor
from headgate.tasks.declare import TaskDefinition
from headgate.tasks.messages import Outcome, Status, failed
from headgate.tasks.ports import AttemptHandle, find_target_branch
from headgate.tasks.supervisor import AttemptProcess, Request, TaskHost

_REPORT_ATTEMPTS = 8
_REPORT_PAUSE_SECONDS = 1.0
_MAX_REPORT_PAUSE_SECONDS = 15.0
_PROGRESS_SECONDS = 10.0
_POLL_WAIT_MS = 200
_IDLE_SECONDS = 0.05
_MAX_POLL_PAUSE_SECONDS = 30.0
# Time to stop processes and report them after the deadline of a drain.
_SHUTDOWN_SECONDS = 9.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT)

Log = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True, kw_only=True)
class WorkerContext:
    """Settings that all dispatches of a worker share."""

    host: TaskHost
    client: ConductorClient
    worker: str
    directory: Path
    module: str
    log: Log


class DispatchRun:
    """Runs one dispatch from the poll to a confirmed report; may be stopped by other threads."""

    def __init__(
        self, context: WorkerContext, definition: TaskDefinition, dispatch: Dispatch
    ) -> None:
        self._context = context
        self._definition = definition
        self.dispatch = dispatch
        self._process: AttemptProcess | None = None
        self._stop: BaseException | None = None
        # A thread per dispatch: the attempt's process dies with the thread that started it.
        self.thread = threading.Thread(target=self.run, name="task-slot", daemon=True)
        # No progress is logged for short transfers.
        self._progress_at = monotonic()

    def stop(self, error: BaseException) -> None:
        """Stop the attempt; it is reported as failed with this error."""
        self._stop = error
        if self._process is not None:
            self._process.stop(error)

    def run(self) -> None:
        """Run the attempt and report it; both leases are renewed until the report is confirmed."""
        handle = self._dispatch()
        if handle is None:
            return
        self._log("started", epoch=handle.ref.epoch)
        # A third of the shorter lease, so that one heartbeat may fail.
        response = self.dispatch.response_seconds
        seconds = max(min(RENEW_SECONDS, response / 3), 0.2) if response else RENEW_SECONDS
        with Heartbeat(partial(self._beat, handle), lost=self._lost, seconds=seconds):
            outcome = self._try_attempt(handle) if self._stop is None else failed(self._stop)
            confirmed = self._report(outcome)
        completed = outcome.status is Status.COMPLETED and confirmed
        state = AttemptState.SUCCEEDED if completed else AttemptState.FAILED
        self._clean_up(lambda: self._context.host.attempts.end(handle, state))
        self._clean_up(self._context.host.clean_up)

    def _dispatch(self) -> AttemptHandle | None:
        """Start an attempt at the catalog; return None, and report a denial, if it is rejected."""
        target = find_target_branch(self._definition, self.dispatch.data)
        try:
            self._context.client.check_current(self.dispatch)
            return self._context.host.attempts.dispatch(self.dispatch.key, branch=target)
        except Denied as error:
            # Reported at once: the response timeout has no reason and may be hours away.
            self._log("refused", reason=error.message)
            self._report(failed(error))
        except HeadgateError as error:
            self._log("not started", reason=error.message)
        return None

    def _try_attempt(self, handle: AttemptHandle) -> Outcome:
        """Run the attempt; a machine that cannot start its process is a failed outcome too."""
        try:
            return self._attempt(handle)
        except (HeadgateError, OSError) as error:
            return failed(error)

    def _attempt(self, handle: AttemptHandle) -> Outcome:
        request = Request(
            definition=self._definition,
            target=f"{self._context.module}:{self._definition.name}",
            directory=self._context.directory,
            data=self.dispatch.data,
        )
        order = supervisor.make_order(
            self._context.host, request, handle, labels=self.dispatch.labels, supervised_fence=True
        )
        process = AttemptProcess(order, command=self._context.host.command)
        self._process = process
        self._log("process", pid=process.pid, log=order.log)
        # stop() may have been called before there was a process.
        if self._stop is not None:
            process.stop(self._stop)
        return process.run(
            fence=lambda: self._context.client.check_current(self.dispatch),
            has_ended=self._context.client.has_ended,
            deadline_seconds=supervisor.deadline_seconds(self._definition),
            watch=self._watch,
        )

    def _watch(self, line: Mapping[str, Any]) -> None:
        """Log the progress of long transfers; the attempt's log has all other lines."""
        if line["event"] == "progress" and monotonic() - self._progress_at >= _PROGRESS_SECONDS:
            self._progress_at = monotonic()
            self._log("progress", **{name: line[name] for name in ("step", "files", "bytes")})

    def _beat(self, handle: AttemptHandle) -> None:
        """Renew the leases at the catalog and at Conductor; raise if either has expired."""
        self._context.host.attempts.renew(handle)
        self._context.client.check_current(self.dispatch)
        self._context.client.extend_lease(self.dispatch, worker=self._context.worker)

    def _lost(self, error: HeadgateError) -> None:
        self._log("lost", reason=error.message)
        self.stop(error)

    def _report(self, outcome: Outcome) -> bool:
        """Send the result until the server confirms it; return False if it rejects it."""
        for number in range(_REPORT_ATTEMPTS):
            try:
                confirmed = self._is_confirmed(outcome)
                if not confirmed:
                    self._context.client.report(
                        self.dispatch,
                        worker=self._context.worker,
                        status=outcome.status,
                        output=outcome.output,
                        reason=outcome.reason,
                    )
                    confirmed = self._is_confirmed(outcome)
                if confirmed:
                    self._log("reported", status=outcome.status, reason=outcome.reason)
                    return True
            except Conflict as error:
                self._log("report rejected", status=outcome.status, reason=error.message)
                return False
            except HeadgateError as error:
                self._log("report failed", attempt=number + 1, reason=error.message)
            sleep(min(_REPORT_PAUSE_SECONDS * 2**number, _MAX_REPORT_PAUSE_SECONDS))
        self._log("report abandoned", status=outcome.status)
        return False

    def _is_confirmed(self, outcome: Outcome) -> bool:
        """Read the task back, since the server replies alike to accepted and late results."""
        fresh = self._context.client.find_task(self.dispatch.task_id)
        if fresh is not None and fresh.status == outcome.status.value:
            return True
        if fresh is None or fresh.status != IN_PROGRESS:
            # Raises with the reason why the server no longer waits.
            self._context.client.check_current(self.dispatch)
        return False

    def _clean_up(self, action: Callable[[], None]) -> None:
        try:
            action()
        except (HeadgateError, OSError) as error:
            self._log("cleanup failed", reason=str(error))

    def _log(self, event: str, **facts: Any) -> None:
        self._context.log(
            {
                "event": event,
                "task": self._definition.name,
                "task_id": self.dispatch.task_id,
                "workflow": self.dispatch.workflow_id,
                **facts,
            }
        )


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """Concurrency of a worker."""

    slots: int
    # Time for attempts to finish after a signal; None is no limit.
    drain_seconds: float | None = None


class Worker:
    """Runs dispatches of Conductor, one per slot at a time."""

    def __init__(
        self, context: WorkerContext, tasks: Sequence[TaskDefinition], capacity: Capacity
    ) -> None:
        self._context = context
        self._tasks = {task.name: task for task in tasks}
        self._capacity = capacity
        self._busy: list[DispatchRun] = []
        # A plain counter: a signal handler must not wait for a lock of its own thread.
        self._signals = 0

    def run(self) -> None:
        """Poll until a signal arrives; then finish and report running attempts."""
        self._check_registered()
        before = {number: signal.signal(number, self._signalled) for number in _SIGNALS}
        try:
            self._context.host.clean_up()
            self._context.log({"event": "polling", "tasks": sorted(self._tasks)})
            self._poll_until_signalled()
            self._drain()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _signalled(self, _number: int, _frame: object) -> None:
        self._signals += 1

    def _check_registered(self) -> None:
        for name in self._tasks:
            if self._context.client.find_taskdef(name) is None:
                raise NotFound(
                    f"task {name!r} is not registered at Conductor ({self._context.client.url}). "
                    f"Register it first: headgate task register {self._context.module}",
                    task=name,
                )

    def _poll_until_signalled(self) -> None:
        failures = 0
        while not self._signals:
            try:
                started = self._poll_once()
                failures = 0
            except HeadgateError as error:
                failures += 1
                self._context.log({"event": "poll failed", "reason": error.message})
                self._pause(min(2.0 ** (failures - 1), _MAX_POLL_PAUSE_SECONDS))
                continue
            if not started:
                sleep(_IDLE_SECONDS)

    def _poll_once(self) -> int:
        """Start the dispatches that are queued; return their number."""
        started = 0
        for name, definition in self._tasks.items():
            free = self._capacity.slots - len(self._running())
            if free < 1 or self._signals:
                break
            found = self._context.client.poll(
                name, worker=self._context.worker, count=free, wait_ms=_POLL_WAIT_MS
            )
            for dispatch in found:
                run = DispatchRun(self._context, definition, dispatch)
                run.thread.start()
                self._busy.append(run)
            started += len(found)
        return started

    def _running(self) -> list[DispatchRun]:
        self._busy = [run for run in self._busy if run.thread.is_alive()]
        return self._busy

    def _drain(self) -> None:
        """Wait for running attempts; stop them at the deadline or at a second signal."""
        self._context.log({"event": "draining", "busy": len(self._running())})
        drain = self._capacity.drain_seconds
        ends_at = None if drain is None else monotonic() + drain
        while self._running():
            if self._signals > 1 or (ends_at is not None and monotonic() > ends_at):
                self._stop_all()
                break
            sleep(_IDLE_SECONDS)
        self._context.log({"event": "stopped", "left": len(self._running())})

    def _stop_all(self) -> None:
        for run in self._running():
            run.stop(TaskFailed("the worker was shut down"))
        ends_at = monotonic() + _SHUTDOWN_SECONDS
        while self._running() and monotonic() < ends_at:
            sleep(_IDLE_SECONDS)

    def _pause(self, seconds: float) -> None:
        ends_at = monotonic() + seconds
        while not self._signals and monotonic() < ends_at:
            sleep(_IDLE_SECONDS)
