"""Jobs of a running build: the ledger of all, and the steps of one.

The ledger has the job reports, the attempts and the transactions that the build has made. Job
events go from there to the build's listener, after the catalog transaction commits. A job pins its
inputs, runs its attempts, and commits or aborts its outputs.
"""

import contextlib
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from headgate import errors
from headgate.attempts import (
    LEASE_SECONDS,
    CommitOptions,
    commit_transactions,
    complete_transactions,
)
from headgate.builds import plan as planning
from headgate.builds.attempt import (
    Attempt,
    JobEvent,
    JobEventType,
    JobResult,
    Jobs,
    JobWork,
    Parts,
    Pinned,
    job_key,
    log_in,
)
from headgate.builds.open import OpenedBuild, opening_type
from headgate.builds.report import JobPhase, Watch, planned_reports
from headgate.catalog import attempts as catalog_attempts
from headgate.catalog.builds import record_jobs
from headgate.catalog.database import Connection, Database
from headgate.catalog.merge_base import retype_transactions
from headgate.catalog.records import check_newest, find_datasets, load_transactions
from headgate.model import incrementality, nouns
from headgate.model.changes import Provenance
from headgate.model.failpoints import Failpoint, reach
from headgate.model.freshness import Decision, PlannedInput, fingerprint, hold, with_base
from headgate.model.ids import ContentId, PublicationNumber, TransactionId
from headgate.model.names import DatasetName
from headgate.tables.snapshots import current_snapshot_id

# Spark reports progress twice a second; for readers of the catalog, less is enough.
_RECORD_SECONDS = 1.0


class Ledger:
    """State of a running build; safe to use from the threads of all jobs."""

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
        self.ended_by: nouns.AttemptState | None = None
        self._watch = watch
        self._lock = threading.Lock()
        self._running: dict[int, Attempt] = {}
        # Time at which each job's progress was last recorded.
        self._recorded_at: dict[int, float] = {}
        self._current: dict[int, nouns.AttemptRef] = dict(opened.attempts)
        self._made: dict[DatasetName, nouns.Transaction] = {}
        self.add_made(opened.adopted.values(), publication=None)

    # --- transactions -----------------------------------------------------------------------

    def find_made(self, name: DatasetName) -> nouns.Transaction | None:
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

    def attempt(self, position: int) -> nouns.AttemptRef:
        with self._lock:
            return self._current[position]

    def live_attempts(self) -> list[nouns.AttemptRef]:
        """Return the attempts of jobs that have not ended."""
        unfinished = {nouns.JobState.WAITING, nouns.JobState.RUNNING}
        with self._lock:
            return [r for p, r in self._current.items() if self.reports[p].state in unfinished]

    def next_attempt(self, position: int) -> nouns.AttemptRef:
        """Dispatch a retry: a new epoch, whose transactions start again from their base."""
        ref = catalog_attempts.dispatch_attempt(
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

    def directory_of(self, attempt: nouns.AttemptRef) -> Path:
        """Return the working directory of an attempt, which also has its log."""
        return self.directory / f"{attempt.key.replace('/', '-')}-{attempt.epoch}"

    def start(self, position: int, attempt: Attempt) -> None:
        with self._lock:
            self._running[position] = attempt
            stopped = self.stopped
        if stopped is not None:
            attempt.stop(stopped)
        self.set(position, nouns.JobState.RUNNING)

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
        state = self.parts.database.read(lambda c: catalog_attempts.find_attempt_state(c, ref))
        if state is not nouns.AttemptState.RUNNING:
            self.ended_by = state
            self.stop(f"the build was {state}")

    def abort(self, position: int, state: nouns.JobState) -> None:
        """End a job's attempt and abort its transactions, unless that has happened already."""
        good = state in {nouns.JobState.SUCCEEDED, nouns.JobState.SKIPPED}
        catalog_attempts.abort_attempt(
            self.parts.database,
            self.attempt(position),
            nouns.AttemptState.SUCCEEDED if good else nouns.AttemptState.FAILED,
            actor=self.opened.caller.actor,
        )
        self.set(position, state)

    def withdraw(self) -> None:
        """Mark unfinished jobs as aborted; of a failed atomic build, the finished ones too."""
        lost = {nouns.JobState.WAITING, nouns.JobState.RUNNING}
        if self.opened.atomic:
            lost |= {nouns.JobState.SUCCEEDED, nouns.JobState.ADOPTED}
        positions = [p for p, report in enumerate(self.reports) if report.state in lost]
        for position in positions:
            report = self.reports[position]
            report.transactions = {}
            if self.stopped is not None:
                report.error = report.error or {"message": self.stopped}
            report.enter(nouns.JobState.ABORTED)
        self._record(positions)
        self._watch(self.reports)

    # --- reports ----------------------------------------------------------------------------

    def set(self, position: int, state: nouns.JobState) -> None:
        self.reports[position].enter(state)
        self._record([position])
        self._watch(self.reports)

    def set_phase(self, phase: JobPhase | None, positions: Iterable[int]) -> None:
        """Show what waiting jobs wait for."""
        changed = [p for p in positions if self.reports[p].phase is not phase]
        for position in changed:
            self.reports[position].phase = phase
        self._record(changed)
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
            with contextlib.suppress(errors.HeadgateError):
                self._record([position])
        self._watch(self.reports)

    def _record(self, positions: list[int]) -> None:
        found = [self.reports[position].to_record(position) for position in positions]
        record_jobs(self.parts.database, self.opened.id, found)

    # --- events -----------------------------------------------------------------------------

    def emit(self, position: int, type: JobEventType, attempt: nouns.AttemptRef | None) -> None:
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
        """Emit the ends of an atomic build's jobs, once its publication is made or abandoned."""
        for position, report in enumerate(self.reports):
            if report.transactions and report.decision.candidate is None:
                self.emit(position, type, self.attempt(position))


# One job.


def run_job(ledger: Ledger, jobs: Jobs, position: int, retries: int) -> None:
    """Run a job until it succeeds or has no retry left; never raises for user code."""
    _Job(ledger, jobs, position).run(retries)


def explain_end(database: Database, attempt: nouns.AttemptRef, result: JobResult) -> JobResult:
    """Add to a failure that the attempt was superseded: a rejected HEAD request has no reason."""
    try:
        database.read(partial(check_newest, ref=attempt))
    except errors.AttemptSuperseded as superseded:
        own = (result.error or {}).get("message")
        message = f"{superseded.message} The job's own error: {own}" if own else superseded.message
        return replace(result, error={**(result.error or {}), "message": message})
    return result


class _Job:
    """The steps of one job: it pins its inputs, runs its attempts, and ends its outputs."""

    def __init__(self, ledger: Ledger, jobs: Jobs, position: int) -> None:
        self._ledger = ledger
        self._jobs = jobs
        self._position = position
        self._report = ledger.reports[position]
        self._opened = ledger.opened
        self._database = ledger.parts.database
        self._contents = ledger.parts.contents
        self._planned = ledger.opened.plan.decisions[position]
        self._outputs = ledger.opened.transactions.get(position, {})

    def run(self, retries: int) -> None:
        ledger, report = self._ledger, self._report
        work: JobWork | None = None
        for number in range(1, retries + 2):
            if ledger.stopped is not None:
                break
            try:
                if work is None:
                    work = self._prepare_work()
                    if self._is_held():
                        ledger.abort(self._position, nouns.JobState.SKIPPED)
                        return
                else:
                    attempt = ledger.next_attempt(self._position)
                    work = replace(work, attempt=attempt, directory=ledger.directory_of(attempt))
                report.attempts, report.log = number, str(log_in(work.directory))
                result = self._run_once(work)
                if result.succeeded:
                    self._succeed(work, result)
                    return
                report.error = result.error or {}
            except (errors.HeadgateError, OSError) as error:
                if (known := errors.find_known_error(error)) is None:
                    raise
                report.error = {"message": known.message, "code": known.code}
            # The cause of any error may be that the build was canceled or superseded.
            with contextlib.suppress(errors.HeadgateError):
                ledger.check_attempt()
            if work is not None:
                failed = JobEventType.FAIL if ledger.stopped is None else JobEventType.ABORT
                ledger.emit(self._position, failed, work.attempt)
        if ledger.stopped is not None:
            report.error = {"message": ledger.stopped}
            ledger.abort(self._position, nouns.JobState.ABORTED)
        else:
            ledger.abort(self._position, nouns.JobState.FAILED)

    def _run_once(self, work: JobWork) -> JobResult:
        attempt = self._jobs.start(work)
        self._ledger.start(self._position, attempt)
        self._ledger.emit(self._position, JobEventType.START, work.attempt)
        try:
            result = attempt.run(partial(self._ledger.update, self._position))
        finally:
            self._ledger.end(self._position)
        if not result.succeeded:
            result = explain_end(self._database, work.attempt, result)
        self._report.spark_jobs += result.spark_jobs
        self._report.rows, self._report.checks = result.rows, result.checks
        return result

    def _succeed(self, work: JobWork, result: JobResult) -> None:
        """Commit all outputs of a job at once or, in an atomic build, stage them for its end."""
        ledger, report, opened = self._ledger, self._report, self._opened
        report.error = None
        if result.aborted:
            ledger.abort(self._position, nouns.JobState.SUCCEEDED)
            ledger.emit(self._position, JobEventType.COMPLETE, work.attempt)
            return
        reach(Failpoint.BUILD_JOB_ENDED)
        ids = list(work.outputs.values())
        provenance = planning.provenance_of(
            opened.id,
            work.decision,
            report.inputs,
            checks=result.checks,
            snapshots=work.snapshots,
            reported_by=opened.reported_by,
        )
        made = dict.fromkeys(ids, provenance)
        inferred = ids if opening_type(work.decision) is nouns.TransactionType.UPDATE else []
        publication = None
        if opened.atomic:
            complete_transactions(self._database, ids, work.attempt)
            catalog_attempts.transfer_to_build(self._database, work.attempt, ids)
            ledger.add_staged(made, inferred)
        else:
            publication = self._commit(work, made, inferred)
        ledger.add_made(ids, publication)
        report.transactions = {str(name): id for name, id in work.outputs.items()}
        ledger.set(self._position, nouns.JobState.SUCCEEDED)
        if not opened.atomic:
            ledger.emit(self._position, JobEventType.COMPLETE, work.attempt)

    def _commit(
        self,
        work: JobWork,
        made: Mapping[TransactionId, Provenance],
        inferred: Collection[TransactionId],
    ) -> PublicationNumber | None:
        is_clean = work.decision.job.spec.source.clean and self._opened.reported_by is None
        caller = replace(self._opened.caller, attempt=work.attempt, may_write_protected=is_clean)
        options = CommitOptions(
            caller=caller, provenance=made, inferred=inferred, fallback=work.request.fallback
        )
        receipt = commit_transactions(self._database, self._contents, list(made), options)
        catalog_attempts.end_attempt(self._database, work.attempt, nouns.AttemptState.SUCCEEDED)
        return receipt.publication

    # --- pinned inputs ----------------------------------------------------------------------

    def _prepare_work(self) -> JobWork:
        """Pin every input to one transaction: a planned one, or one that this build has made."""
        decision, request = self._planned, self._opened.plan.request
        names = [given.dataset for given in decision.inputs]
        kinds = self._database.read(lambda c: find_datasets(c, names))
        pins: dict[str, Pinned] = {}
        contents: dict[str, ContentId] = {}
        for given in decision.inputs:
            branch, id, content = self._read_at(given)
            if id is None or content is None:
                raise errors.InputNotFound(
                    dataset=str(given.dataset), where=branch, needed_by=decision.job.spec.title
                )
            contents[given.name] = content
            kind = kinds[given.dataset].kind
            pins[given.name] = Pinned(
                dataset=given.dataset, branch=branch, transaction=id, kind=kind
            )
        self._report.inputs = [
            {"dataset": str(p.dataset), "branch": p.branch, "transaction": p.transaction}
            for p in pins.values()
        ]
        made_from = decision.made_from or fingerprint(
            decision.job.spec, parameters=request.parameters, inputs=contents
        )
        settled, snapshots = self._settle_extent(replace(decision, made_from=made_from), pins)
        self._report.decision = settled
        attempt = self._ledger.attempt(self._position)
        return JobWork(
            decision=settled,
            attempt=attempt,
            inputs=pins,
            snapshots=snapshots,
            outputs=self._outputs,
            request=request,
            directory=self._ledger.directory_of(attempt),
        )

    def _is_held(self) -> bool:
        """Return whether a reset holds the key, which may be known only once inputs are made."""
        if self._planned.made_from is not None:
            return False
        plan, decision = self._opened.plan, self._report.decision
        held = self._database.read(lambda c: planning.find_late_hold(c, plan, decision))
        if held is not None:
            self._report.decision = hold(decision, held)
        return held is not None

    def _read_at(self, given: PlannedInput) -> tuple[str, TransactionId | None, ContentId | None]:
        """Return branch, transaction and content of an input."""
        if given.made_by is None:
            return given.branch, given.transaction, given.content
        request = self._opened.plan.request
        if (made := self._ledger.find_made(given.dataset)) is not None:
            return request.branch, made.id, made.version.content_id if made.version else None
        # The upstream job aborted its output, so the earlier view is still the input.
        view = self._database.read(lambda c: planning.first_view(c, given.dataset, request.chain))
        if view is None:
            return " > ".join(request.chain), None, None
        return view.branch, view.transaction, view.content

    # --- full or incremental ----------------------------------------------------------------

    def _settle_extent(
        self, decision: Decision, pins: Mapping[str, Pinned]
    ) -> tuple[Decision, dict[str, int]]:
        """Return the decision with its extent, and the snapshots of the tables that it reads.

        Raise `NotIncremental` where a transform that requires an incremental build cannot have one.
        """
        if decision.job.spec.declaration.incremental is None:
            return decision, {}
        extent = decision.incremental
        if extent is None or extent.extent is incrementality.Extent.UNDECIDED:
            decision = self._decide_extent(decision, pins)
            extent = decision.incremental
        assert extent is not None, "the extent of a job is decided before it runs"
        if extent.refused:
            raise errors.NotIncremental(
                transform=decision.job.spec.title, reason=extent.reason, broken_by=extent.broken_by
            )
        current = self._current_snapshots(pins)
        reads = tuple(_at_current_snapshot(span, current) for span in extent.reads)
        found = ((str(pin.dataset), current.get(name)) for name, pin in pins.items())
        snapshots = {dataset: id for dataset, id in found if id is not None}
        return replace(decision, incremental=replace(extent, reads=reads)), snapshots

    def _decide_extent(self, decision: Decision, pins: Mapping[str, Pinned]) -> Decision:
        """Decide by the rules of planning, from the transactions that this build has made."""
        spec = decision.job.spec.declaration.incremental
        assert spec is not None
        places = [
            incrementality.Place(name=name, dataset=pin.dataset, head=pin.transaction)
            for name, pin in pins.items()
        ]
        answers: dict[incrementality.Question, incrementality.Answer] = {}
        outputs = self._outputs

        def decide(
            connection: Connection,
        ) -> tuple[incrementality.Incrementality, dict[DatasetName, incrementality.Base]]:
            opened = load_transactions(connection, outputs.values())
            past = planning.CatalogPast(connection, lambda name: opened[outputs[name]].parent)
            bases = {name: past.base(name) for name in outputs}
            return incrementality.decide_incremental(spec, places, bases, past, answers), bases

        while True:
            extent, bases = self._database.read(decide)
            if not extent.questions:
                break
            answers |= planning.inspect_content(self._database, self._contents, extent.questions)
        made_from = decision.made_from
        if made_from is not None and extent.extent is incrementality.Extent.INCREMENTAL:
            made_from = with_base(made_from, bases)
        decided = replace(decision, incremental=extent, made_from=made_from)
        type, attempt = opening_type(decided), self._ledger.attempt(self._position)
        if type is not nouns.TransactionType.SNAPSHOT:
            # They were opened for a full build.
            retype_transactions(self._database, list(outputs.values()), type, attempt=attempt)
        return decided

    def _current_snapshots(self, pins: Mapping[str, Pinned]) -> dict[str, int | None]:
        """Return the current snapshot of each input that is a table."""
        tables = {n: p.transaction for n, p in pins.items() if p.kind is nouns.DatasetKind.TABLE}
        found = self._database.read(lambda c: load_transactions(c, tables.values()))
        current: dict[str, int | None] = {}
        for name, id in tables.items():
            version = found[id].version
            if version is not None:
                metadata = self._contents.tables.read(version.location).metadata
                current[name] = current_snapshot_id(metadata)
        return current


def _at_current_snapshot(
    span: incrementality.Span, current: Mapping[str, int | None]
) -> incrementality.Span:
    """Start a span without new rows at the current snapshot: it is empty after any compaction."""
    if span.since is None or span.has_new:
        return span
    return replace(span, since_snapshot=current.get(span.name))
