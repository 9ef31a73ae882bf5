"""A build of this server as those see it who watch it, and the client that does its jobs."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headgate.errors import HeadgateError, IdempotencyKeyReused, WorkFailed
from headgate.handles.nouns import Json

if TYPE_CHECKING:
    from headgate.builds.handed import HandedJobs
    from headgate.builds.outcome import BuildOutcome, ShownJob

# How many of the changes in its jobs somebody has seen: each has a number.
Seen = int


@dataclass(frozen=True, kw_only=True)
class AskedOnce:
    """A request for a build by the name that its client gave it: sent again, it is the same one."""

    actor: str
    key: str
    # Of all that was asked for.
    request_hash: str

    def is_again(self, earlier: AskedOnce | None) -> bool:
        """Whether this is that request; under the same key there is no other."""
        if earlier is None or (earlier.actor, earlier.key) != (self.actor, self.key):
            return False
        if earlier.request_hash != self.request_hash:
            raise IdempotencyKeyReused(key=self.key)
        return True


class KeptBuild:
    """How its jobs are doing, and what came of it."""

    def __init__(
        self,
        handed: HandedJobs | None = None,
        *,
        actor: str = "",
        branch: str = "",
        asked: AskedOnce | None = None,
    ) -> None:
        self.handed = handed
        self.asked = asked
        # Whose it is to work on, and the branch that this writes, where it is handed out.
        self.actor = actor
        self.branch = branch
        self.future: Future[BuildOutcome] | None = None
        self._lock = threading.Lock()
        self._jobs: Sequence[ShownJob] = ()
        self._looks: list[tuple[Any, ...]] = []
        self._changed: list[Seen] = []
        self._changes = 0

    @property
    def is_running(self) -> bool:
        return self.future is None or not self.future.done()

    def watch(self, jobs: Sequence[ShownJob]) -> None:
        """Takes in how the jobs are doing now; those that look different count as changed."""
        with self._lock:
            if not self._looks:
                self._looks, self._changed = [()] * len(jobs), [0] * len(jobs)
            self._jobs = jobs
            for at, job in enumerate(jobs):
                look = _look(job)
                if look != self._looks[at]:
                    self._changes += 1
                    self._looks[at], self._changed[at] = look, self._changes
        self.ring()

    def ring(self) -> None:
        """Wakes the client's exchange, where there is one."""
        if self.handed is not None:
            self.handed.ring()

    def live_jobs(self) -> list[Json]:
        return [job.to_live_json() for job in self._jobs]

    def find_answer(
        self, running: Collection[str], seen: Seen, *, expected: int, anyway: bool = False
    ) -> Json | None:
        """What the client is to hear now; None if that is nothing new, unless `anyway`."""
        assert self.handed is not None
        outcome = self._outcome()
        orders = {order.id: order for order in self.handed.orders()} if outcome is None else {}
        start = [order.to_json() for id, order in orders.items() if id not in running]
        stop = [id for id in running if id not in orders]
        with self._lock:
            changed = [(at, self._jobs[at]) for at, n in enumerate(self._changed) if n > seen]
            changes = self._changes
        told = start or stop or changed or outcome or expected != self.handed.expected
        if not (told or anyway):
            return None
        return {
            "expected": self.handed.expected if outcome is None else 0,
            "start": start,
            "stop": stop,
            "seen": changes,
            "jobs": [{"position": at, "job": job.to_live_json()} for at, job in changed],
            "outcome": outcome,
        }

    def _outcome(self) -> Json | None:
        """How it ended, if it has; an error of its own is the client's to hear."""
        if self.future is None or not self.future.done():
            return None
        error = self.future.exception()
        if error is None:
            return self.future.result().to_live_json()
        if isinstance(error, HeadgateError):
            raise error
        raise WorkFailed("the build ended by a defect of Headgate; the server's log has it.")


def _look(job: ShownJob) -> tuple[Any, ...]:
    """What a watcher would notice, the passing of time aside."""
    return (job.state, job.attempts, job.rows, job.spark_jobs, job.stages, job.error is None)
