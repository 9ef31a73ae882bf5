"""A running build's book: what each job is doing, what was committed, who may act for it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from typing import Any

from headgate.builds.job import JobAttempt
from headgate.builds.opening import LEASE_SECONDS, OpenedBuild, job_key
from headgate.builds.parts import Parts
from headgate.builds.report import BuildState, JobReport, JobState, planned_reports
from headgate.catalog.attempts import dispatch_attempt, end_attempt, heartbeat
from headgate.catalog.builds import JobRecord, end_build, record_build, record_job
from headgate.catalog.find import views_on
from headgate.catalog.transactions import abort_transactions, open_transactions_of
from headgate.errors import HeadgateError, TransactionNotOpen
from headgate.model.ids import PublicationNumber
from headgate.model.names import DatasetName
from headgate.model.nouns import AttemptRef, AttemptState, Transaction

Watch = Callable[[list[JobReport]], None]


class Ledger:
    """Safe to use from the threads of all jobs."""

    def __init__(self, parts: Parts, opened: OpenedBuild, actor: str, watch: Watch) -> None:
        self.parts = parts
        self.opened = opened
        self.actor = actor
        self.reports = planned_reports(opened.plan)
        self.publications: list[PublicationNumber] = list(opened.publications)
        self._watch = watch
        self._lock = threading.Lock()
        self._committed: dict[DatasetName, Transaction] = {}
        self._running: dict[int, JobAttempt] = {}
        self._current: dict[int, AttemptRef] = dict(opened.attempts)

    @property
    def branch(self) -> str:
        return self.opened.plan.request.branch

    def begin(self) -> None:
        """Records the build; what was adopted is committed already and known from here on."""
        request = self.opened.plan.request
        record_build(
            self.parts.database,
            id=self.opened.id,
            branch=request.branch,
            actor=self.actor,
            attempt=self.opened.attempt,
            body={"targets": list(request.targets), "fallback": list(request.fallback)},
            planned=[_record(p, r) for p, r in enumerate(self.reports)],
        )
        adopted = [r for r in self.reports if r.state is JobState.ADOPTED]
        names = [name for report in adopted for name in report.decision.job.outputs]
        self._committed = self.parts.database.read(lambda c: views_on(c, names, request.branch))
        for report in adopted:
            report.transactions = {
                str(name): self._committed[name].id for name in report.decision.job.outputs
            }
            for given in report.inputs:
                made = next(
                    (t for n, t in self._committed.items() if str(n) == given["dataset"]), None
                )
                given["transaction"] = given["transaction"] or (made.id if made else None)

    def committed(self, name: DatasetName) -> Transaction:
        """What this build committed on a dataset."""
        with self._lock:
            return self._committed[name]

    def note_commit(
        self, made: Mapping[DatasetName, Transaction], publication: PublicationNumber | None
    ) -> None:
        with self._lock:
            self._committed |= made
            if publication is not None:
                self.publications.append(publication)

    def attempt(self, position: int) -> AttemptRef:
        with self._lock:
            return self._current[position]

    def next_attempt(self, position: int) -> AttemptRef:
        """A retry is a new epoch; its transactions start again from their base."""
        ref = dispatch_attempt(
            self.parts.database,
            job_key(self.opened.id, position),
            actor=self.actor,
            lease_seconds=LEASE_SECONDS,
            parent=self.opened.attempt,
            carry_transactions=True,
        ).ref
        with self._lock:
            self._current[position] = ref
        return ref

    def started(self, position: int, attempt: JobAttempt) -> None:
        with self._lock:
            self._running[position] = attempt
        self.set(position, JobState.RUNNING)

    def ended(self, position: int) -> None:
        with self._lock:
            self._running.pop(position, None)

    def stop_running(self, reason: str) -> None:
        """Ends the processes of all jobs that run now."""
        with self._lock:
            attempts = list(self._running.values())
        for attempt in attempts:
            attempt.stop(reason)

    def noticed(self, position: int, event: Mapping[str, Any]) -> None:
        """Something that a job's process reported."""
        if event["event"] == "written":
            self.reports[position].rows += int(event.get("rows") or 0)
        self._watch(self.reports)

    def set(self, position: int, state: JobState) -> None:
        report = self.reports[position]
        report.state = state
        record_job(self.parts.database, self.opened.id, _record(position, report))
        self._watch(self.reports)

    def abort(self, position: int, state: JobState) -> None:
        """Aborts a job's transactions; whoever took over may have done so already."""
        attempt = self.attempt(position)
        mine = self.parts.database.read(lambda c: open_transactions_of(c, attempt=attempt))
        with contextlib.suppress(TransactionNotOpen):
            abort_transactions(self.parts.database, [t.id for t in mine], actor=self.actor)
        end_attempt(self.parts.database, attempt, AttemptState.FAILED)
        self.set(position, state)

    def abort_unfinished(self) -> None:
        self.stop_running("the build was interrupted")
        for position, report in enumerate(self.reports):
            if report.state in {JobState.WAITING, JobState.RUNNING}:
                self.abort(position, JobState.ABORTED)

    def beat(self) -> None:
        """Renews all leases; a build that was superseded stops its jobs at once."""
        with self._lock:
            refs = list(self._current.values())
        try:
            heartbeat(self.parts.database, self.opened.attempt)
        except HeadgateError as error:
            if error.code == "attempt_superseded":
                self.stop_running(error.message)
            return
        for ref in refs:
            # A job that has ended needs no lease.
            with contextlib.suppress(HeadgateError):
                heartbeat(self.parts.database, ref)

    def close(self, state: BuildState) -> None:
        succeeded = state is BuildState.SUCCEEDED
        end_attempt(
            self.parts.database,
            self.opened.attempt,
            AttemptState.SUCCEEDED if succeeded else AttemptState.FAILED,
        )
        end_build(self.parts.database, self.opened.id, state.value)


def _record(position: int, report: JobReport) -> JobRecord:
    return JobRecord(
        ordinal=position,
        state=report.state.value,
        reason=report.decision.reason.value,
        attempts=report.attempts,
        body=report.to_json(),
    )
