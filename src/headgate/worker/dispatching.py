"""One dispatch of Conductor from poll to a confirmed report: fenced, leased, in its own process."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from headgate.attempts.pulse import RENEW_SECONDS, Pulse
from headgate.conductor.client import IN_PROGRESS, ConductorClient, Dispatch
from headgate.errors import Conflict, Denied, HeadgateError
from headgate.model.nouns import AttemptState
from headgate.tasks.controls import OnTimeout
from headgate.tasks.declaring import TaskDefinition
from headgate.tasks.executing import AttemptProcess, Terms
from headgate.tasks.inputs import find_target
from headgate.tasks.local import Place, Request, make_order
from headgate.tasks.outcomes import Outcome, Status, failed
from headgate.tasks.ports import Held

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
