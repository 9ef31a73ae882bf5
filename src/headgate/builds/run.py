"""Running a build: jobs in dependency order, independent ones side by side."""

from __future__ import annotations

import shutil
import threading
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from headgate.builds.ledger import Ledger, Watch
from headgate.builds.opening import LEASE_SECONDS, OpenedBuild, open_build
from headgate.builds.parts import Parts
from headgate.builds.plan import Plan, PlanRequest, make_plan
from headgate.builds.report import BuildState, JobReport, JobState, to_json
from headgate.builds.retrying import run_job
from headgate.catalog.attempts import dispatch_attempt, end_attempt
from headgate.catalog.branches import delete_branches
from headgate.catalog.find import branch_of
from headgate.errors import OpenTransactionAlreadyExists, PlanChanged
from headgate.model.ids import BuildId, PublicationNumber, mint_build
from headgate.model.nouns import AttemptRef, AttemptState
from headgate.spark.workplace import Workplace

_HEARTBEAT_SECONDS = 15
_PARALLEL_JOBS = 4
# How often a plan that changed under the opening is made again without being asked to wait.
_PLANS = 3


@dataclass(frozen=True, kw_only=True)
class BuildRequest:
    plan: PlanRequest
    actor: str
    retries: int = 0
    abort_on_failure: bool = False
    wait_seconds: float = 0
    task_key: str | None = None


@dataclass(frozen=True, kw_only=True)
class BuildOutcome:
    id: BuildId
    plan: Plan
    state: BuildState
    jobs: list[JobReport]
    publications: tuple[PublicationNumber, ...]

    def to_json(self) -> dict[str, Any]:
        return to_json(
            self.plan,
            self.jobs,
            build=self.id,
            state=self.state,
            publications=self.publications,
        )


def run_build(
    parts: Parts, request: BuildRequest, directory: Path, *, watch: Watch = lambda jobs: None
) -> BuildOutcome:
    """Plans, opens and runs; whatever fails is aborted, whatever committed stays."""
    id = mint_build()
    attempt = dispatch_attempt(
        parts.database,
        request.task_key or id,
        actor=request.actor,
        lease_seconds=LEASE_SECONDS,
    ).ref
    try:
        opened = _open(parts, request, id, attempt)
    except BaseException:
        end_attempt(parts.database, attempt, AttemptState.FAILED)
        raise
    work = directory / id
    work.mkdir(parents=True, exist_ok=True)
    ledger = Ledger(parts, opened, request.actor, watch)
    state = _Run(ledger, request, work).to_the_end()
    if state is BuildState.SUCCEEDED:
        shutil.rmtree(work, ignore_errors=True)
    return BuildOutcome(
        id=id,
        plan=opened.plan,
        state=state,
        jobs=ledger.reports,
        publications=tuple(ledger.publications),
    )


def _open(parts: Parts, request: BuildRequest, id: BuildId, attempt: AttemptRef) -> OpenedBuild:
    """Opens, planning again where something moved meanwhile; a waiter holds nothing."""
    deadline = time.monotonic() + request.wait_seconds
    plans = 0
    while True:
        plan = parts.database.read(partial(make_plan, request=request.plan))
        clean = all(d.job.spec.source.clean for d in plan.decisions)
        try:
            return open_build(
                parts.database,
                plan,
                id=id,
                attempt=attempt,
                actor=request.actor,
                may_write_protected=clean,
            )
        except PlanChanged:
            plans += 1
            if plans >= _PLANS and time.monotonic() > deadline:
                raise
        except OpenTransactionAlreadyExists:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


class _Run:
    def __init__(self, ledger: Ledger, request: BuildRequest, directory: Path) -> None:
        self._ledger = ledger
        self._request = request
        self._plan = ledger.opened.plan
        parts = ledger.parts
        self._workplace = Workplace(
            parts.settings, parts.database, parts.contents.tables, directory
        )
        self._ended = threading.Event()

    def to_the_end(self) -> BuildState:
        self._ledger.begin()
        threading.Thread(target=self._keep_alive, daemon=True).start()
        state = BuildState.CANCELED
        try:
            self._run_jobs()
            state = self._verdict()
        finally:
            if state is BuildState.CANCELED:
                self._ledger.abort_unfinished()
            self._ended.set()
            self._workplace.close()
            self._drop_unused_branches()
            self._ledger.close(state)
        return state

    def _run_jobs(self) -> None:
        reports = self._ledger.reports
        waiting = {p for p, report in enumerate(reports) if report.state is JobState.WAITING}
        if not waiting:
            return
        # Before the first job's clock runs.
        self._workplace.jvm()
        with ThreadPoolExecutor(max_workers=_PARALLEL_JOBS) as pool:
            futures: dict[Future[None], int] = {}
            while waiting or futures:
                for position in sorted(p for p in waiting if self._ready(p)):
                    waiting.discard(position)
                    futures[pool.submit(self._run_job, position)] = position
                done, _ = wait(futures, return_when=FIRST_COMPLETED)
                for future in done:
                    position = futures.pop(future)
                    future.result()
                    if reports[position].state is JobState.FAILED:
                        self._give_up_after(position, waiting)

    def _run_job(self, position: int) -> None:
        run_job(self._ledger, self._workplace, position, retries=self._request.retries)

    def _ready(self, position: int) -> bool:
        done = {JobState.SUCCEEDED, JobState.SKIPPED, JobState.ADOPTED}
        needs = self._plan.decisions[position].job.needs
        return all(self._ledger.reports[need].state in done for need in needs)

    def _give_up_after(self, failed: int, waiting: set[int]) -> None:
        """A failure takes its dependants with it, and everything where that was asked for."""
        lost = {failed}
        for position, decision in enumerate(self._plan.decisions):
            if lost & set(decision.job.needs):
                lost.add(position)
        if self._request.abort_on_failure:
            self._ledger.stop_running("another job of this build failed")
            lost |= waiting
        for position in sorted(lost & waiting):
            waiting.discard(position)
            self._ledger.abort(position, JobState.ABORTED)

    def _keep_alive(self) -> None:
        while not self._ended.wait(_HEARTBEAT_SECONDS):
            self._ledger.beat()

    def _verdict(self) -> BuildState:
        bad = {JobState.FAILED, JobState.ABORTED}
        failed = any(report.state in bad for report in self._ledger.reports)
        return BuildState.FAILED if failed else BuildState.SUCCEEDED

    def _drop_unused_branches(self) -> None:
        """A branch that this build made and nothing was committed on hides nothing of others."""
        database = self._ledger.parts.database
        for id in self._ledger.opened.created:
            branch = database.read(partial(branch_of, id=id))
            if branch is None or branch.head != branch.view:
                continue
            place = self._plan.places.get(branch.dataset)
            forked_at = place.parent.view if place and place.parent else None
            if branch.view == forked_at:
                delete_branches(
                    database, [branch], actor=self._ledger.actor, may_write_protected=True
                )
