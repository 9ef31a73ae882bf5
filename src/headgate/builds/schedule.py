"""The order of a build's jobs: each after what it needs, independent ones side by side."""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from headgate.builds.attempting import Jobs
from headgate.builds.ledger import Ledger
from headgate.builds.report import JobState
from headgate.builds.retrying import run_job

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
