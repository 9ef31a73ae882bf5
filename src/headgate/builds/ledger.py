"""A running build's book: what each job is doing, what was made, who may act for it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from headgate.builds.attempt import Attempt, Parts
from headgate.builds.open import LEASE_SECONDS, OpenedBuild, job_key
from headgate.builds.report import ShownJob, job_record, planned_reports
from headgate.catalog.attempts import dispatch_attempt, find_attempt_state, give_up
from headgate.catalog.builds import record_jobs
from headgate.catalog.records import load_transactions
from headgate.errors import HeadgateError
from headgate.model.changes import Provenance
from headgate.model.ids import PublicationNumber, TransactionId
from headgate.model.names import DatasetName
from headgate.model.nouns import AttemptRef, AttemptState, JobState, Transaction

Watch = Callable[[Sequence[ShownJob]], None]

# Spark reports twice a second; who looks from elsewhere is content with less.
_TELL_SECONDS = 1.0


class Ledger:
    """Safe to use from the threads of all jobs."""

    def __init__(
        self, parts: Parts, opened: OpenedBuild, actor: str, directory: Path, watch: Watch
    ) -> None:
        self.parts = parts
        self.opened = opened
        self.actor = actor
        self.directory = directory
        self.reports = planned_reports(opened.plan, opened.adopted)
        self.publications: list[PublicationNumber] = list(opened.publications)
        # Of an atomic build: what its transactions will say of themselves once they are committed.
        self.staged: dict[TransactionId, Provenance] = {}
        # Of those, the ones whose type follows from what they hold.
        self.natural: set[TransactionId] = set()
        # Why no further work may begin, and whether it was decided outside of this process.
        self.stopped: str | None = None
        self.ended_by: AttemptState | None = None
        self._watch = watch
        self._lock = threading.Lock()
        self._running: dict[int, Attempt] = {}
        # When each job's progress was last written down.
        self._told: dict[int, float] = {}
        self._current: dict[int, AttemptRef] = dict(opened.attempts)
        adopted = parts.database.read(lambda c: load_transactions(c, opened.adopted.values()))
        self._made = {name: adopted[id] for name, id in opened.adopted.items()}

    # --- what jobs make ---------------------------------------------------------------------

    def find_made(self, name: DatasetName) -> Transaction | None:
        """What this build made of a dataset: committed or, in an atomic one, staged."""
        with self._lock:
            return self._made.get(name)

    def note_made(
        self, made: Mapping[DatasetName, Transaction], publication: PublicationNumber | None
    ) -> None:
        with self._lock:
            self._made |= made
            if publication is not None:
                self.publications.append(publication)

    def note_staged(
        self, made: Mapping[TransactionId, Provenance], natural: Collection[TransactionId]
    ) -> None:
        """These wait for the end of an atomic build."""
        with self._lock:
            self.staged |= made
            self.natural |= set(natural)

    # --- attempts ---------------------------------------------------------------------------

    def attempt(self, position: int) -> AttemptRef:
        with self._lock:
            return self._current[position]

    def live_attempts(self) -> list[AttemptRef]:
        """The attempts of jobs that have not ended."""
        unfinished = {JobState.WAITING, JobState.RUNNING}
        with self._lock:
            return [r for p, r in self._current.items() if self.reports[p].state in unfinished]

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

    def directory_of(self, attempt: AttemptRef) -> Path:
        """Where an attempt works and leaves its log."""
        return self.directory / f"{attempt.key.replace('/', '-')}-{attempt.epoch}"

    def started(self, position: int, attempt: Attempt) -> None:
        with self._lock:
            self._running[position] = attempt
            stopped = self.stopped
        if stopped is not None:
            attempt.stop(stopped)
        self.set(position, JobState.RUNNING)

    def ended(self, position: int) -> None:
        with self._lock:
            self._running.pop(position, None)

    # --- stopping ---------------------------------------------------------------------------

    def stop(self, reason: str) -> None:
        """No attempt begins from now on, and those that run are ended."""
        with self._lock:
            self.stopped = self.stopped or reason
            attempts = list(self._running.values())
        for attempt in attempts:
            attempt.stop(reason)

    def look_outside(self) -> None:
        """Stops if the build was ended by somebody else: canceled, or superseded by a newer one."""
        ref = self.opened.attempt
        state = self.parts.database.read(lambda c: find_attempt_state(c, ref))
        if state is not AttemptState.RUNNING:
            self.ended_by = state
            self.stop(f"the build was {state}")

    def abort(self, position: int, state: JobState) -> None:
        """Ends a job's attempt and aborts its transactions, unless somebody else has done so."""
        good = state is JobState.SUCCEEDED
        give_up(
            self.parts.database,
            self.attempt(position),
            AttemptState.SUCCEEDED if good else AttemptState.FAILED,
            actor=self.actor,
        )
        self.set(position, state)

    def withdraw(self, *, atomic: bool) -> None:
        """The build has not succeeded: nothing waits any more, and an atomic one made nothing."""
        lost = {JobState.WAITING, JobState.RUNNING}
        if atomic:
            lost |= {JobState.SUCCEEDED, JobState.ADOPTED}
        positions = [p for p, report in enumerate(self.reports) if report.state in lost]
        for position in positions:
            self.reports[position].transactions = {}
            self.reports[position].enter(JobState.ABORTED)
        self._tell(positions)

    # --- telling ----------------------------------------------------------------------------

    def noticed(self, position: int, event: Mapping[str, Any]) -> None:
        """Something that a job's process reported; others read of it in the catalog soon after."""
        self.reports[position].notice(event)
        now = time.monotonic()
        with self._lock:
            told_lately = now - self._told.get(position, -_TELL_SECONDS) < _TELL_SECONDS
            if not told_lately:
                self._told[position] = now
        if not told_lately:
            # Progress is worth no failure: a catalog that does not answer is told the next time.
            with contextlib.suppress(HeadgateError):
                self._record([position])
        self._watch(self.reports)

    def set(self, position: int, state: JobState) -> None:
        self.reports[position].enter(state)
        self._tell([position])

    def _tell(self, positions: list[int]) -> None:
        """Writes down how these jobs are doing, and shows it."""
        self._record(positions)
        self._watch(self.reports)

    def _record(self, positions: list[int]) -> None:
        found = [job_record(position, self.reports[position]) for position in positions]
        record_jobs(self.parts.database, self.opened.id, found)
