"""Running a build: one plan, one opening, all jobs, one end."""

from __future__ import annotations

import contextlib
import shutil
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

from headgate.attempts import RENEW_SECONDS, CommitOptions, Pulse, commit_transactions
from headgate.builds.attempt import Happened, Jobs, Parts, tell_adopted, tell_staged
from headgate.builds.job import run_job
from headgate.builds.ledger import Ledger, Watch
from headgate.builds.open import LEASE_SECONDS, OpenedBuild, OpeningRequest, open_build
from headgate.builds.plan import PlanRequest, plan_build
from headgate.builds.report import BuildInterrupted, BuildOutcome
from headgate.builds.spark_jobs import SparkJobs
from headgate.catalog.attempts import check_newest, dispatch_attempt, give_up, heartbeat
from headgate.catalog.builds import close_build, drop_unused_branches, settle_builds
from headgate.catalog.records import load_transactions
from headgate.errors import (
    AttemptSuperseded,
    HeadgateError,
    OpenTransactionAlreadyExists,
    PlanChanged,
)
from headgate.model.ids import BuildId, mint_build
from headgate.model.nouns import AttemptRef, AttemptState, BuildState, JobState

# The order of a build's jobs: each after what it needs, independent ones side by side.

PARALLEL_JOBS = 4
_GOOD = {JobState.SUCCEEDED, JobState.SKIPPED, JobState.ADOPTED}
_BAD = {JobState.FAILED, JobState.ABORTED}


@dataclass(kw_only=True)
class Schedule:
    """The jobs that wait, and those that run."""

    ledger: Ledger
    jobs: Jobs
    retries: int
    # Nothing is committed before all of it is: the first failure ends the build.
    atomic: bool
    abort_on_failure: bool
    _waiting: set[int] = field(default_factory=set)
    _futures: dict[Future[None], int] = field(default_factory=dict)

    def run(self) -> None:
        """Returns when every job has ended; an interrupt first ends all that runs."""
        reports = enumerate(self.ledger.reports)
        self._waiting = {p for p, report in reports if report.state is JobState.WAITING}
        if not self._waiting:
            return
        # Before the first job's clock runs.
        self.jobs.expect(len(self._waiting))
        with ThreadPoolExecutor(max_workers=PARALLEL_JOBS) as pool:
            try:
                while self._waiting or self._futures:
                    self._step(pool)
            except BaseException:
                # Else the pool would wait for the jobs, however long they take.
                self.ledger.stop("the build was interrupted")
                raise

    def _step(self, pool: ThreadPoolExecutor) -> None:
        if self.ledger.stopped is not None:
            self._abort(self._waiting)
        for position in sorted(p for p in self._waiting if self._is_ready(p)):
            # This one too: it has not taken its process yet, and must not take the next one's.
            self.jobs.expect(len(self._waiting))
            self._waiting.discard(position)
            self._futures[pool.submit(self._run_job, position)] = position
        done, _ = wait(self._futures, return_when=FIRST_COMPLETED)
        for future in done:
            position = self._futures.pop(future)
            future.result()
            if self.ledger.reports[position].state in _BAD:
                self._give_up_after(position)

    def _run_job(self, position: int) -> None:
        run_job(self.ledger, self.jobs, position, retries=self.retries, atomic=self.atomic)

    def _is_ready(self, position: int) -> bool:
        needs = self.ledger.opened.plan.decisions[position].job.needs
        return all(self.ledger.reports[need].state in _GOOD for need in needs)

    def _give_up_after(self, failed: int) -> None:
        """A failure takes its dependants with it, and everything where that was asked for."""
        lost = {failed}
        for position, decision in enumerate(self.ledger.opened.plan.decisions):
            if lost & set(decision.job.needs):
                lost.add(position)
        if self.abort_on_failure or self.atomic:
            self.ledger.stop("another job of this build failed")
            lost |= self._waiting
        self._abort(lost & self._waiting)

    def _abort(self, positions: set[int]) -> None:
        for position in sorted(positions):
            self._waiting.discard(position)
            self.ledger.abort(position, JobState.ABORTED)


# A build's pulse: its leases are renewed, and an end that came from outside is noticed.

_LOOK_SECONDS = 1.0


def beating(ledger: Ledger) -> Pulse:
    """To be entered for as long as the build's jobs run."""
    renewed = time.monotonic()

    def beat() -> None:
        nonlocal renewed
        # A catalog that does not answer for a while is asked again; leases outlast it.
        with contextlib.suppress(HeadgateError):
            ledger.look_outside()
        if time.monotonic() - renewed >= RENEW_SECONDS and ledger.ended_by is None:
            renewed = time.monotonic()
            _renew(ledger)

    return Pulse(beat, seconds=_LOOK_SECONDS)


def _renew(ledger: Ledger) -> None:
    for ref in (ledger.opened.attempt, *ledger.live_attempts()):
        # A job that ended meanwhile needs no lease.
        with contextlib.suppress(HeadgateError):
            heartbeat(ledger.parts.database, ref)


# The end of an atomic build: everything it made and adopted becomes visible at once.


def publish_staged(ledger: Ledger) -> None:
    """One publication, with the build's own attempt; raises and shows nothing where refused."""
    opened, ids = ledger.opened, list(ledger.staged)
    if not ids and not opened.adoptions:
        return
    receipt = commit_transactions(
        ledger.parts.database,
        ledger.parts.contents,
        ids,
        CommitOptions(
            actor=ledger.actor,
            attempt=opened.attempt,
            may_write_protected=opened.may_write_protected,
            provenance=ledger.staged,
            natural=ledger.natural,
        ),
        together_with=opened.adoptions,
    )
    found = ledger.parts.database.read(lambda c: load_transactions(c, ids))
    ledger.note_made({t.dataset: t for t in found.values()}, receipt.publication)


# How often a plan that changed under the opening is made again without being asked to wait.
_PLANS = 3
_POLL_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class BuildRequest:
    plan: PlanRequest
    actor: str
    atomic: bool = False
    retries: int = 0
    abort_on_failure: bool = False
    wait_seconds: float = 0
    task_key: str | None = None
    # Given by whoever has to know it before the build is open.
    id: BuildId | None = None
    # Who says that the code was what computed it, where that is only said.
    on_word_of: str | None = None


def run_build(
    parts: Parts,
    request: BuildRequest,
    directory: Path,
    *,
    watch: Watch = lambda jobs: None,
    jobs: Jobs | None = None,
) -> BuildOutcome:
    """Plans, opens and runs; whatever fails is aborted, whatever committed stays."""
    id = request.id or mint_build()
    key = request.task_key or id
    attempt = dispatch_attempt(
        parts.database, key, actor=request.actor, lease_seconds=LEASE_SECONDS
    ).ref
    try:
        if request.task_key is not None:
            settle_builds(parts.database, actor=request.actor, key=key)
        opened = _open(parts, request, id, attempt)
        ledger = Ledger(parts, opened, request.actor, directory / id, watch)
    except BaseException:
        # An opening that was interrupted after it was done must not hold its outputs either.
        give_up(parts.database, attempt, AttemptState.FAILED, actor=request.actor)
        raise
    return _Build(ledger, request, jobs or SparkJobs(parts)).to_the_end()


def _open(parts: Parts, request: BuildRequest, id: BuildId, attempt: AttemptRef) -> OpenedBuild:
    """Opens, planning again where something moved meanwhile; a waiter holds nothing."""
    deadline = time.monotonic() + request.wait_seconds
    plans = 0
    while True:
        plan = plan_build(parts.database, parts.contents, request.plan)
        opening = OpeningRequest(
            id=id,
            plan=plan,
            attempt=attempt,
            actor=request.actor,
            atomic=request.atomic,
            may_write_protected=request.on_word_of is None
            and all(d.job.spec.source.clean for d in plan.decisions),
            on_word_of=request.on_word_of,
        )
        try:
            return open_build(parts.database, opening)
        except PlanChanged:
            plans += 1
            if plans >= _PLANS and time.monotonic() > deadline:
                raise
        except OpenTransactionAlreadyExists:
            if time.monotonic() > deadline:
                raise
            time.sleep(_POLL_SECONDS)


class _Build:
    """A build that is open, until it is closed."""

    def __init__(self, ledger: Ledger, request: BuildRequest, jobs: Jobs) -> None:
        self._ledger = ledger
        self._request = request
        self._jobs = jobs
        self._database = ledger.parts.database

    def to_the_end(self) -> BuildOutcome:
        self._ledger.directory.mkdir(parents=True, exist_ok=True)
        try:
            if not self._request.atomic:
                tell_adopted(self._ledger)
            with beating(self._ledger):
                self._schedule().run()
                state = self._verdict()
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
            # Raises, and names the newer one.
            attempt = self._ledger.opened.attempt
            self._database.read(lambda c: check_newest(c, attempt))
        return outcome

    def _schedule(self) -> Schedule:
        return Schedule(
            ledger=self._ledger,
            jobs=self._jobs,
            retries=self._request.retries,
            atomic=self._request.atomic,
            abort_on_failure=self._request.abort_on_failure,
        )

    def _verdict(self) -> BuildState:
        bad = {JobState.FAILED, JobState.ABORTED}
        if not any(report.state in bad for report in self._ledger.reports):
            return BuildState.SUCCEEDED
        return BuildState.CANCELED if self._ledger.ended_by else BuildState.FAILED

    def _publish(self) -> BuildState:
        """The one publication of an atomic build, unless somebody has ended it meanwhile."""
        try:
            publish_staged(self._ledger)
        except AttemptSuperseded:
            self._ledger.look_outside()
            return BuildState.CANCELED
        tell_staged(self._ledger, Happened.COMPLETE)
        tell_adopted(self._ledger)
        return BuildState.SUCCEEDED

    def _close(self, state: BuildState) -> BuildOutcome:
        """Whatever is still open is aborted, branches made in vain go, the books are closed."""
        if state is not BuildState.SUCCEEDED:
            ended = AttemptState.CANCELED if state is BuildState.CANCELED else AttemptState.FAILED
            give_up(self._database, self._ledger.opened.attempt, ended, actor=self._ledger.actor)
            if self._request.atomic:
                tell_staged(self._ledger, Happened.ABORT)
            self._ledger.withdraw(atomic=self._request.atomic)
        opened = self._ledger.opened
        drop_unused_branches(self._database, opened.branches, actor=self._ledger.actor)
        close_build(self._database, opened.id, opened.attempt, state.value)
        if state is BuildState.SUCCEEDED:
            shutil.rmtree(self._ledger.directory, ignore_errors=True)
        return BuildOutcome(
            id=opened.id,
            branch=opened.plan.request.branch,
            fallback=opened.plan.request.fallback,
            state=state,
            jobs=self._ledger.reports,
            publications=tuple(self._ledger.publications),
        )
