"""Running a build: plan, open, run all jobs in the order of dependency, close. See ADR 0053."""

import contextlib
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from headgate import attempts, errors
from headgate.builds.attempt import JobEventType, Jobs, Parts, keep_only_logs
from headgate.builds.job import Ledger, run_job
from headgate.builds.open import OpenedBuild, OpeningRequest, open_build
from headgate.builds.plan import PlanRequest, plan_build
from headgate.builds.report import BuildInterrupted, BuildOutcome, JobPhase, Watch
from headgate.builds.spark_jobs import SparkJobs
from headgate.catalog.attempts import CheckHolder, abort_attempt, dispatch_attempt, heartbeat
from headgate.catalog.branches import drop_unused_branches
from headgate.catalog.builds import close_build
from headgate.catalog.records import check_newest
from headgate.catalog.recovery import settle_builds
from headgate.model.changes import Caller
from headgate.model.ids import BuildId, mint_build
from headgate.model.names import build_task_key
from headgate.model.nouns import AttemptRef, AttemptState, BuildState, JobState
from headgate.storage.local import make_private_directory

PARALLEL_JOBS = 4
_GOOD = {JobState.SUCCEEDED, JobState.SKIPPED, JobState.ADOPTED}
_BAD = {JobState.FAILED, JobState.ABORTED}
# Plans made without waiting, where the catalog changes before they are opened.
_PLANS = 3
_POLL_SECONDS = 0.5
_HEARTBEAT_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class BuildRequest:
    plan: PlanRequest
    actor: str
    # Nothing is committed before everything is: the first failure ends the build.
    atomic: bool = False
    retries: int = 0
    abort_on_failure: bool = False
    wait_seconds: float = 0
    task_key: str | None = None
    # Set by a caller that needs the id before the build is open.
    id: BuildId | None = None
    # Called with the running build of the same key, before this one supersedes it.
    check_holder: CheckHolder | None = None
    # Of a client-run build: the actor whose claim it is that the published code ran.
    reported_by: str | None = None


def run_build(
    parts: Parts,
    request: BuildRequest,
    directory: Path,
    *,
    watch: Watch = lambda jobs: None,
    jobs: Jobs | None = None,
) -> BuildOutcome:
    """Plan, open and run a build; failed jobs are aborted, committed ones stay."""
    id = request.id or mint_build()
    key = id if request.task_key is None else build_task_key(request.task_key)
    attempt = dispatch_attempt(
        parts.database,
        key,
        actor=request.actor,
        lease_seconds=attempts.LEASE_SECONDS,
        scope={"branch": request.plan.branch},
        check_holder=request.check_holder,
    ).ref
    try:
        if request.task_key is not None:
            settle_builds(parts.database, actor=request.actor, key=key)
        ledger = Ledger(parts, _open(parts, request, id, attempt), directory / id, watch)
    except BaseException:
        # An interrupt after the opening must release the outputs too.
        abort_attempt(parts.database, attempt, AttemptState.FAILED, actor=request.actor)
        raise
    return _Build(ledger, request, jobs or SparkJobs(parts)).run()


def _open(parts: Parts, request: BuildRequest, id: BuildId, attempt: AttemptRef) -> OpenedBuild:
    """Open the build; plan again if the catalog changed. Holds nothing while it waits."""
    deadline = time.monotonic() + request.wait_seconds
    plans = 0
    while True:
        plan = plan_build(parts.database, parts.contents, request.plan)
        opening = OpeningRequest(
            id=id,
            plan=plan,
            caller=Caller(
                actor=request.actor,
                attempt=attempt,
                may_write_protected=request.reported_by is None
                and all(d.job.spec.source.clean for d in plan.decisions),
            ),
            atomic=request.atomic,
            reported_by=request.reported_by,
        )
        try:
            return open_build(parts.database, opening)
        except errors.PlanChanged:
            plans += 1
            if plans >= _PLANS and time.monotonic() > deadline:
                raise
        except errors.OpenTransactionAlreadyExists:
            if time.monotonic() > deadline:
                raise
            time.sleep(_POLL_SECONDS)


class _Build:
    """An open build, until it is closed."""

    def __init__(self, ledger: Ledger, request: BuildRequest, jobs: Jobs) -> None:
        self._ledger = ledger
        self._request = request
        self._jobs = jobs
        self._database = ledger.parts.database

    def run(self) -> BuildOutcome:
        try:
            make_private_directory(self._ledger.directory)
            if not self._request.atomic:
                self._ledger.emit_adopted()
            with _heartbeat(self._ledger):
                _Schedule(self._ledger, self._request, self._jobs).run()
                state = self._final_state()
                if state is BuildState.SUCCEEDED and self._request.atomic:
                    state = self._publish()
        except KeyboardInterrupt as interrupt:
            raise BuildInterrupted(self._close(BuildState.CANCELED)) from interrupt
        except BaseException:
            self._close(BuildState.FAILED)
            raise
        outcome = self._close(state)
        superseded = self._ledger.ended_by is AttemptState.SUPERSEDED
        if superseded and state is BuildState.CANCELED:
            # Raises AttemptSuperseded, which names the newer attempt.
            attempt = self._ledger.opened.attempt
            self._database.read(lambda c: check_newest(c, attempt))
        return outcome

    def _final_state(self) -> BuildState:
        if not any(report.state in _BAD for report in self._ledger.reports):
            return BuildState.SUCCEEDED
        return BuildState.CANCELED if self._ledger.ended_by else BuildState.FAILED

    def _publish(self) -> BuildState:
        """Make the one publication of an atomic build: all staged and adopted transactions."""
        ledger, opened = self._ledger, self._ledger.opened
        ids = list(ledger.staged)
        if ids or opened.adoptions:
            options = attempts.CommitOptions(
                caller=opened.caller,
                provenance=ledger.staged,
                inferred=ledger.inferred,
                fallback=opened.plan.request.fallback,
            )
            try:
                receipt = attempts.commit_transactions(
                    self._database,
                    ledger.parts.contents,
                    ids,
                    options,
                    together_with=opened.adoptions,
                )
            except errors.AttemptSuperseded:
                ledger.check_attempt()
                return BuildState.CANCELED
            ledger.add_made(ids, receipt.publication)
        ledger.emit_staged(JobEventType.COMPLETE)
        ledger.emit_adopted()
        return BuildState.SUCCEEDED

    def _close(self, state: BuildState) -> BuildOutcome:
        """Abort what is still open, drop branches made in vain, and record the end."""
        ledger, opened = self._ledger, self._ledger.opened
        if state is not BuildState.SUCCEEDED:
            ended = AttemptState.CANCELED if state is BuildState.CANCELED else AttemptState.FAILED
            abort_attempt(self._database, opened.attempt, ended, actor=opened.caller.actor)
            if self._request.atomic:
                ledger.emit_staged(JobEventType.ABORT)
            ledger.withdraw()
        drop_unused_branches(self._database, opened.branches, actor=opened.caller.actor)
        close_build(self._database, opened.id, opened.attempt, state.value)
        if state is BuildState.SUCCEEDED:
            # What remains is deleted with the logs.
            with contextlib.suppress(OSError):
                keep_only_logs(ledger.directory)
        return BuildOutcome(
            id=opened.id,
            branch=opened.plan.request.branch,
            fallback=opened.plan.request.fallback,
            state=state,
            jobs=ledger.reports,
            publications=tuple(ledger.publications),
        )


class _Schedule:
    """Runs each job after the jobs that it needs, independent jobs in parallel."""

    def __init__(self, ledger: Ledger, request: BuildRequest, jobs: Jobs) -> None:
        self._ledger = ledger
        self._request = request
        self._jobs = jobs
        reports = enumerate(ledger.reports)
        self._waiting = {p for p, report in reports if report.state is JobState.WAITING}
        self._futures: dict[Future[None], int] = {}

    def run(self) -> None:
        """Return when every job has ended; an interrupt stops the running jobs first."""
        if not self._waiting:
            return
        # Before the clock of the first job starts.
        self._ledger.set_phase(JobPhase.STARTING_SPARK, filter(self._is_ready, self._waiting))
        self._jobs.expect(len(self._waiting))
        self._ledger.set_phase(None, self._waiting)
        with ThreadPoolExecutor(max_workers=PARALLEL_JOBS) as pool:
            try:
                while self._waiting or self._futures:
                    self._step(pool)
            except BaseException:
                # Otherwise the pool waits for the jobs, however long they take.
                self._ledger.stop("the build was interrupted")
                raise

    def _step(self, pool: ThreadPoolExecutor) -> None:
        if self._ledger.stopped is not None:
            self._abort(self._waiting, self._ledger.stopped)
        for position in sorted(p for p in self._waiting if self._is_ready(p)):
            # Counts this job too: it has no process yet, and must not get the next job's.
            self._jobs.expect(len(self._waiting))
            self._waiting.discard(position)
            retries = self._request.retries
            future = pool.submit(run_job, self._ledger, self._jobs, position, retries)
            self._futures[future] = position
        done, _ = wait(self._futures, return_when=FIRST_COMPLETED)
        for future in done:
            position = self._futures.pop(future)
            future.result()
            if self._ledger.reports[position].state in _BAD:
                self._abort_after(position)

    def _is_ready(self, position: int) -> bool:
        needs = self._ledger.opened.plan.decisions[position].job.needs
        return all(self._ledger.reports[need].state in _GOOD for need in needs)

    def _abort_after(self, failed: int) -> None:
        """Abort the dependants of a failed job, or all jobs if the request requires it."""
        reports = self._ledger.reports
        reason = self._ledger.stopped or f"aborted: {reports[failed].title} failed"
        lost = {failed}
        for position, decision in enumerate(self._ledger.opened.plan.decisions):
            if lost & set(decision.job.needs):
                lost.add(position)
        if self._request.abort_on_failure or self._request.atomic:
            self._ledger.stop(reason)
            lost |= self._waiting
        self._abort(lost & self._waiting, reason)

    def _abort(self, positions: set[int], reason: str) -> None:
        for position in sorted(positions):
            self._waiting.discard(position)
            self._ledger.reports[position].error = {"message": reason}
            self._ledger.abort(position, JobState.ABORTED)


def _heartbeat(ledger: Ledger) -> attempts.Heartbeat:
    """Renew the leases of a build, and stop the build if another process ended it."""
    renewed = time.monotonic()

    def beat() -> None:
        nonlocal renewed
        # The next beat tries again; leases outlast a short outage of the catalog.
        with contextlib.suppress(errors.HeadgateError):
            ledger.check_attempt()
        if time.monotonic() - renewed >= attempts.RENEW_SECONDS and ledger.ended_by is None:
            renewed = time.monotonic()
            for ref in (ledger.opened.attempt, *ledger.live_attempts()):
                # A job that has ended meanwhile needs no lease.
                with contextlib.suppress(errors.HeadgateError):
                    heartbeat(ledger.parts.database, ref)

    return attempts.Heartbeat(beat, seconds=_HEARTBEAT_SECONDS)
