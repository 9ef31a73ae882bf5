"""Attempts of a build that die, or live on as zombies, when a test wants them to."""

from __future__ import annotations

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


class Moment(enum.StrEnum):
    """When an attempt is struck; the words are those of a job's own events."""

    STARTED = "started"
    WRITTEN = "written"


@dataclass(frozen=True, kw_only=True)
class _Fault:
    dataset: DatasetName
    attempt: int
    moment: Moment
    kills: bool


class Failpoints:
    """What is to happen to the attempts of the builds of one test."""

    def __init__(self) -> None:
        self._faults: list[_Fault] = []
        self._seen: dict[str, int] = {}
        # What each struck attempt said, or what was said of it.
        self.struck: list[str] = []

    def kill(self, dataset: str, *, attempt: int = 1, at: Moment | str = Moment.STARTED) -> None:
        """The process of that attempt of the job that makes the dataset dies by SIGKILL."""
        self._add(dataset, attempt, Moment(at), kills=True)

    def make_zombie(
        self, dataset: str, *, attempt: int = 1, at: Moment | str = Moment.STARTED
    ) -> None:
        """That attempt is superseded while it runs, and goes on: nothing it does counts."""
        self._add(dataset, attempt, Moment(at), kills=False)

    def around(self, jobs: Jobs, database: Database) -> Jobs:
        """The same jobs, some of whose attempts will be struck."""
        self._seen.clear()
        return _FaultyJobs(self, jobs, database)

    def _add(self, dataset: str, attempt: int, moment: Moment, *, kills: bool) -> None:
        name = parse_dataset_name(dataset)
        self._faults.append(_Fault(dataset=name, attempt=attempt, moment=moment, kills=kills))

    def take(self, work: JobWork) -> _Fault | None:
        """What is to happen to this attempt; each thing happens once."""
        number = self._seen[work.attempt.key] = self._seen.get(work.attempt.key, 0) + 1
        for fault in self._faults:
            if fault.dataset in work.outputs and fault.attempt == number:
                self._faults.remove(fault)
                return fault
        return None


class _FaultyJobs:
    def __init__(self, failpoints: Failpoints, jobs: Jobs, database: Database) -> None:
        self._failpoints = failpoints
        self._jobs = jobs
        self._database = database

    def expect(self, count: int) -> None:
        self._jobs.expect(count)

    def start(self, work: JobWork) -> Attempt:
        attempt, fault = self._jobs.start(work), self._failpoints.take(work)
        if fault is None:
            return attempt
        return _Struck(attempt, work, fault, self._failpoints, self._database)


class _Struck:
    """An attempt to which something happens on its way."""

    def __init__(
        self,
        attempt: Attempt,
        work: JobWork,
        fault: _Fault,
        failpoints: Failpoints,
        database: Database,
    ) -> None:
        self._attempt = attempt
        self._work = work
        self._fault = fault
        self._failpoints = failpoints
        self._database = database
        self._pid = 0

    def run(self, progress: Progress) -> JobResult:
        def notice(event: Mapping[str, Any]) -> None:
            if event["event"] == Moment.STARTED:
                self._pid = int(event["pid"])
            if event["event"] == self._fault.moment:
                self._strike()
            progress(event)

        result = self._attempt.run(notice)
        ended = explain_end(self._database, self._work.attempt, result).error or {}
        told = str(ended.get("message", "it ended as if nothing had happened"))
        self._failpoints.struck.append(told)
        if self._fault.kills and result.succeeded:
            # It was dead before anybody could hear what it had to say.
            return JobResult(succeeded=False, error={"message": "its process was killed"})
        return result

    def stop(self, reason: str) -> None:
        self._attempt.stop(reason)

    def _strike(self) -> None:
        if self._fault.kills:
            # A short job may have ended by itself: it counts as killed all the same.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            return
        dispatch_attempt(
            self._database,
            self._work.attempt.key,
            actor="headgate:testing",
            lease_seconds=_LEASE_SECONDS,
            carry_transactions=True,
        )
