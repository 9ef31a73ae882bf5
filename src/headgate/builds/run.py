"""Running a build: one plan, one opening, all jobs, one end."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from headgate.builds.answering import plan_build
from headgate.builds.atomic import publish_staged
from headgate.builds.attempting import Jobs
from headgate.builds.happening import Happened, tell_adopted, tell_staged
from headgate.builds.heartbeat import beating
from headgate.builds.job import SparkJobs
from headgate.builds.ledger import Ledger, Watch
from headgate.builds.opening import LEASE_SECONDS, OpenedBuild, OpeningRequest, open_build
from headgate.builds.outcome import BuildInterrupted as BuildInterrupted
from headgate.builds.outcome import BuildOutcome as BuildOutcome
from headgate.builds.parts import Parts
from headgate.builds.plan import PlanRequest
from headgate.builds.report import BuildState, JobState
from headgate.builds.schedule import Schedule
from headgate.catalog.attempts import check_newest, dispatch_attempt
from headgate.catalog.endings import give_up
from headgate.catalog.leftovers import close_build, drop_unused_branches, settle_builds
from headgate.errors import AttemptSuperseded, OpenTransactionAlreadyExists, PlanChanged
from headgate.model.ids import BuildId, mint_build
from headgate.model.nouns import AttemptRef, AttemptState

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
