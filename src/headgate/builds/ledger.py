"""State of a running build: its job reports, its attempts, and the transactions it has made.

Job events go from here to the build's listener, after the catalog transaction commits.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headgate.attempts import LEASE_SECONDS
from headgate.builds.attempt import Attempt, JobEvent, JobEventType, Parts, job_key
from headgate.builds.report import Watch, planned_reports
from headgate.catalog.attempts import dispatch_attempt, find_attempt_state, give_up
from headgate.catalog.builds import record_jobs
from headgate.catalog.records import load_transactions
from headgate.errors import HeadgateError
from headgate.model.changes import Provenance
from headgate.model.ids import PublicationNumber, TransactionId
from headgate.model.names import DatasetName
from headgate.model.nouns import AttemptRef, AttemptState, JobState, Transaction

if TYPE_CHECKING:
    from headgate.builds.open import OpenedBuild

# Spark reports progress twice a second; for readers of the catalog, less is enough.
_RECORD_SECONDS = 1.0


class Ledger:
    """Safe to use from the threads of all jobs."""

    def __init__(self, parts: Parts, opened: OpenedBuild, directory: Path, watch: Watch) -> None:
        self.parts = parts
        self.opened = opened
        self.directory = directory
        self.reports = planned_reports(opened.plan, opened.adopted)
        self.publications: list[PublicationNumber] = list(opened.publications)
        # Of an atomic build: provenance to be committed with each staged transaction.
        self.staged: dict[TransactionId, Provenance] = {}
        # Staged transactions whose type follows from their content.
        self.inferred: set[TransactionId] = set()
        # Reason why no further work may begin.
        self.stopped: str | None = None
        # State of the build's attempt, where another process ended it.
        self.ended_by: AttemptState | None = None
        self._watch = watch
        self._lock = threading.Lock()
        self._running: dict[int, Attempt] = {}
        # Time at which each job's progress was last recorded.
        self._recorded_at: dict[int, float] = {}
        self._current: dict[int, AttemptRef] = dict(opened.attempts)
        self._made: dict[DatasetName, Transaction] = {}
        self.add_made(opened.adopted.values(), publication=None)

    # --- transactions -----------------------------------------------------------------------

    def find_made(self, name: DatasetName) -> Transaction | None:
        """Return this build's transaction of a dataset: committed or, if atomic, staged."""
        with self._lock:
            return self._made.get(name)

    def add_made(
        self, ids: Collection[TransactionId], publication: PublicationNumber | None
    ) -> None:
        """Add transactions that this build has committed, staged or adopted."""
        found = self.parts.database.read(lambda c: load_transactions(c, ids))
        with self._lock:
            self._made |= {transaction.dataset: transaction for transaction in found.values()}
            if publication is not None:
                self.publications.append(publication)

    def add_staged(
        self, made: Mapping[TransactionId, Provenance], inferred: Collection[TransactionId]
    ) -> None:
        """Add transactions that the end of an atomic build commits."""
        with self._lock:
            self.staged |= made
            self.inferred |= set(inferred)

    # --- attempts ---------------------------------------------------------------------------

    def attempt(self, position: int) -> AttemptRef:
        with self._lock:
            return self._current[position]

    def live_attempts(self) -> list[AttemptRef]:
        """Return the attempts of jobs that have not ended."""
        unfinished = {JobState.WAITING, JobState.RUNNING}
        with self._lock:
            return [r for p, r in self._current.items() if self.reports[p].state in unfinished]

    def next_attempt(self, position: int) -> AttemptRef:
        """Dispatch a retry: a new epoch, whose transactions start again from their base."""
        ref = dispatch_attempt(
            self.parts.database,
            job_key(self.opened.id, position),
            actor=self.opened.caller.actor,
            lease_seconds=LEASE_SECONDS,
            parent=self.opened.attempt,
            carry_transactions=True,
        ).ref
        with self._lock:
            self._current[position] = ref
        return ref

    def directory_of(self, attempt: AttemptRef) -> Path:
        """Return the working directory of an attempt, which also has its log."""
        return self.directory / f"{attempt.key.replace('/', '-')}-{attempt.epoch}"

    def start(self, position: int, attempt: Attempt) -> None:
        with self._lock:
            self._running[position] = attempt
            stopped = self.stopped
        if stopped is not None:
            attempt.stop(stopped)
        self.set(position, JobState.RUNNING)

    def end(self, position: int) -> None:
        with self._lock:
            self._running.pop(position, None)

    # --- stopping ---------------------------------------------------------------------------

    def stop(self, reason: str) -> None:
        """Stop the running attempts; no further attempt begins."""
        with self._lock:
            self.stopped = self.stopped or reason
            attempts = list(self._running.values())
        for attempt in attempts:
            attempt.stop(reason)

    def check_attempt(self) -> None:
        """Stop if another process ended the build: canceled, or superseded by a newer attempt."""
        ref = self.opened.attempt
        state = self.parts.database.read(lambda c: find_attempt_state(c, ref))
        if state is not AttemptState.RUNNING:
            self.ended_by = state
            self.stop(f"the build was {state}")

    def abort(self, position: int, state: JobState) -> None:
        """End a job's attempt and abort its transactions, unless that has happened already."""
        good = state is JobState.SUCCEEDED
        give_up(
            self.parts.database,
            self.attempt(position),
            AttemptState.SUCCEEDED if good else AttemptState.FAILED,
            actor=self.opened.caller.actor,
        )
        self.set(position, state)

    def withdraw(self, *, atomic: bool) -> None:
        """Mark unfinished jobs as aborted; of a failed atomic build, the finished ones too."""
        lost = {JobState.WAITING, JobState.RUNNING}
        if atomic:
            lost |= {JobState.SUCCEEDED, JobState.ADOPTED}
        positions = [p for p, report in enumerate(self.reports) if report.state in lost]
        for position in positions:
            self.reports[position].transactions = {}
            self.reports[position].enter(JobState.ABORTED)
        self._record(positions)
        self._watch(self.reports)

    # --- reports ----------------------------------------------------------------------------

    def set(self, position: int, state: JobState) -> None:
        self.reports[position].enter(state)
        self._record([position])
        self._watch(self.reports)

    def update(self, position: int, event: Mapping[str, Any]) -> None:
        """Apply an event of a job's process; the catalog has it within a second."""
        self.reports[position].update(event)
        now = time.monotonic()
        with self._lock:
            is_due = now - self._recorded_at.get(position, -_RECORD_SECONDS) >= _RECORD_SECONDS
            if is_due:
                self._recorded_at[position] = now
        if is_due:
            # Lost progress is no reason to fail: the next event records it.
            with contextlib.suppress(HeadgateError):
                self._record([position])
        self._watch(self.reports)

    def _record(self, positions: list[int]) -> None:
        found = [self.reports[position].to_record(position) for position in positions]
        record_jobs(self.parts.database, self.opened.id, found)

    # --- events -----------------------------------------------------------------------------

    def emit(self, position: int, type: JobEventType, attempt: AttemptRef | None) -> None:
        """Send a job event to the listener, which neither blocks nor raises."""
        if self.parts.listener is None:
            return
        report, opened = self.reports[position], self.opened
        outputs = report.transactions or {
            str(name): id for name, id in opened.transactions.get(position, {}).items()
        }
        published = type is not JobEventType.COMPLETE or bool(report.transactions)
        self.parts.listener(
            JobEvent(
                type=type,
                at=datetime.now(UTC),
                actor=self.opened.caller.actor,
                build=opened.id,
                branch=opened.plan.request.branch,
                fallback=opened.plan.request.fallback,
                position=position,
                decision=report.decision,
                attempt=attempt,
                inputs=tuple(dict(given) for given in report.inputs),
                outputs=outputs if published else {},
                rows=report.rows,
                spark_jobs=report.spark_jobs,
                error=dict(report.error) if report.error else None,
            )
        )

    def emit_adopted(self) -> None:
        """Emit the events of adopted jobs: once the build is open or, if atomic, at its end."""
        for position, report in enumerate(self.reports):
            if report.decision.candidate is not None:
                self.emit(position, JobEventType.START, None)
                self.emit(position, JobEventType.COMPLETE, None)

    def emit_staged(self, type: JobEventType) -> None:
        """Emit the ends of an atomic build's jobs, once its publication is made or given up."""
        for position, report in enumerate(self.reports):
            if report.transactions and report.decision.candidate is None:
                self.emit(position, type, self.attempt(position))
