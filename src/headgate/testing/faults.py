"""Faults in attempts of a build: killed processes and superseded attempts."""

import contextlib
import enum
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headgate.builds.attempt import Attempt, JobResult, Jobs, JobWork, Progress
from headgate.builds.job import explain_end
from headgate.catalog.attempts import dispatch_attempt
from headgate.catalog.database import Database
from headgate.model.names import DatasetName, parse_dataset_name

_LEASE_SECONDS = 60


class AttemptEvent(enum.StrEnum):
    """Events of a job at which a fault occurs."""

    STARTED = "started"
    WRITTEN = "written"


@dataclass(frozen=True, kw_only=True)
class _Fault:
    dataset: DatasetName
    attempt: int
    event: AttemptEvent
    kills: bool


class Failpoints:
    """Faults in the builds of one test; the fixture `headgate_failpoints`.

    ::

        headgate_failpoints.kill("sales.daily", attempt=1, at="written")
    """

    def __init__(self) -> None:
        self._faults: list[_Fault] = []
        self._seen: dict[str, int] = {}
        # Error message of each attempt that had a fault.
        self.struck: list[str] = []

    def kill(
        self, dataset: str, *, attempt: int = 1, at: AttemptEvent | str = AttemptEvent.STARTED
    ) -> None:
        """Kill the process of an attempt of the job that writes the dataset."""
        self._add(dataset, attempt, AttemptEvent(at), kills=True)

    def make_zombie(
        self, dataset: str, *, attempt: int = 1, at: AttemptEvent | str = AttemptEvent.STARTED
    ) -> None:
        """Supersede an attempt while it runs; it continues, but cannot publish."""
        self._add(dataset, attempt, AttemptEvent(at), kills=False)

    def wrap(self, jobs: Jobs, database: Database) -> Jobs:
        """Return the same jobs, with faults in some of their attempts."""
        self._seen.clear()
        return _FaultyJobs(self, jobs, database)

    def _add(self, dataset: str, attempt: int, event: AttemptEvent, *, kills: bool) -> None:
        name = parse_dataset_name(dataset)
        self._faults.append(_Fault(dataset=name, attempt=attempt, event=event, kills=kills))

    def take(self, work: JobWork) -> _Fault | None:
        """Return and remove the fault of this attempt."""
        number = self._seen[work.attempt.key] = self._seen.get(work.attempt.key, 0) + 1
        for fault in self._faults:
            if fault.dataset in work.outputs and fault.attempt == number:
                self._faults.remove(fault)
                return fault
        return None


@dataclass
class _FaultyJobs:
    failpoints: Failpoints
    jobs: Jobs
    database: Database

    def expect(self, count: int) -> None:
        self.jobs.expect(count)

    def start(self, work: JobWork) -> Attempt:
        attempt, fault = self.jobs.start(work), self.failpoints.take(work)
        if fault is None:
            return attempt
        return _FaultyAttempt(attempt, work, fault, self.failpoints, self.database)


@dataclass
class _FaultyAttempt:
    attempt: Attempt
    work: JobWork
    fault: _Fault
    failpoints: Failpoints
    database: Database
    pid: int = 0

    def run(self, progress: Progress) -> JobResult:
        def on_event(event: Mapping[str, Any]) -> None:
            if event["event"] == AttemptEvent.STARTED:
                self.pid = int(event["pid"])
            if event["event"] == self.fault.event:
                self._inject()
            progress(event)

        result = self.attempt.run(on_event)
        ended = explain_end(self.database, self.work.attempt, result).error or {}
        message = str(ended.get("message", "the attempt ended without an error"))
        self.failpoints.struck.append(message)
        if self.fault.kills and result.succeeded:
            # The job ended before the signal arrived; it counts as killed.
            return JobResult(succeeded=False, error={"message": "the process was killed"})
        return result

    def stop(self, reason: str) -> None:
        self.attempt.stop(reason)

    def _inject(self) -> None:
        if self.fault.kills:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            return
        dispatch_attempt(
            self.database,
            self.work.attempt.key,
            actor="headgate:testing",
            lease_seconds=_LEASE_SECONDS,
            carry_transactions=True,
        )
