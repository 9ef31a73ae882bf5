"""Builds of this server: its workers run their jobs, or the clients that started them do."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from headgate import errors
from headgate.attempts import LEASE_SECONDS
from headgate.builds.client_jobs import ClientJobs
from headgate.builds.report import BuildOutcome, JobStatus, Watch
from headgate.catalog.database import PLACE, Suspended, Wait, kept_in_place
from headgate.model.ids import BuildId, mint_build
from headgate.store.documents import Json
from headgate.store.embedded import Store

# State of one build

# Number of the newest change of a build's jobs that a client has received.
Seen = int


@dataclass(frozen=True, kw_only=True)
class BuildRequestKey:
    """A build request with a key that its client chose; sent again, it starts no second build."""

    actor: str
    key: str
    # Of the whole request except the key.
    request_hash: str

    def repeats(self, earlier: BuildRequestKey | None) -> bool:
        """Return whether this repeats `earlier`; raise if only the key is the same."""
        if earlier is None or (earlier.actor, earlier.key) != (self.actor, self.key):
            return False
        if earlier.request_hash != self.request_hash:
            raise errors.IdempotencyKeyReused(key=self.key)
        return True


class ServerBuild:
    """A build of this server: the status of its jobs, and its outcome."""

    def __init__(
        self,
        client_jobs: ClientJobs | None = None,
        *,
        actor: str = "",
        branch: str = "",
        request_key: BuildRequestKey | None = None,
    ) -> None:
        self.client_jobs = client_jobs
        self.request_key = request_key
        # Of a client-run build: the actor that works on it, and the branch that it writes.
        self.actor = actor
        self.branch = branch
        self.future: Future[BuildOutcome] | None = None
        self._lock = threading.Lock()
        self._jobs: Sequence[JobStatus] = ()
        self._looks: list[tuple[Any, ...]] = []
        self._changed: list[Seen] = []
        self._changes = 0

    @property
    def is_running(self) -> bool:
        return self.future is None or not self.future.done()

    def watch(self, jobs: Sequence[JobStatus]) -> None:
        """Store the status of the jobs, and number the changes."""
        with self._lock:
            if not self._looks:
                self._looks, self._changed = [()] * len(jobs), [0] * len(jobs)
            self._jobs = jobs
            for at, job in enumerate(jobs):
                look = _look(job)
                if look != self._looks[at]:
                    self._changes += 1
                    self._looks[at], self._changed[at] = look, self._changes
        self.wake_client()

    def wake_client(self) -> None:
        """Wake the waiting request of the client, if the build is client-run."""
        if self.client_jobs is not None:
            self.client_jobs.notify()

    def live_jobs(self) -> list[Json]:
        return [job.to_live_json() for job in self._jobs]

    def find_answer(
        self, running: Collection[str], seen: Seen, *, expected: int, anyway: bool = False
    ) -> Json | None:
        """Return the response to the client; None if nothing is new, unless `anyway`."""
        assert self.client_jobs is not None
        outcome = self._outcome()
        orders = {order.id: order for order in self.client_jobs.orders()} if outcome is None else {}
        start = [order.to_json() for id, order in orders.items() if id not in running]
        stop = [id for id in running if id not in orders]
        with self._lock:
            changed = [(at, self._jobs[at]) for at, n in enumerate(self._changed) if n > seen]
            changes = self._changes
        is_news = start or stop or changed or outcome or expected != self.client_jobs.expected
        if not (is_news or anyway):
            return None
        return {
            "expected": self.client_jobs.expected if outcome is None else 0,
            "start": start,
            "stop": stop,
            "seen": changes,
            "jobs": [{"position": at, "job": job.to_live_json()} for at, job in changed],
            "outcome": outcome,
        }

    def _outcome(self) -> Json | None:
        """Return the outcome, None while the build runs; raise its error, for the client."""
        if self.future is None or self.is_running:
            return None
        error = self.future.exception()
        if error is None:
            return self.future.result().to_live_json()
        if isinstance(error, errors.HeadgateError):
            raise error
        raise errors.WorkFailed("the build ended by a defect of Headgate; the server's log has it.")


def _look(job: JobStatus) -> tuple[Any, ...]:
    """Return the fields that count as a change; elapsed time does not."""
    return (job.state, job.attempts, job.rows, job.spark_jobs, job.stages, job.error is None)


# All builds of this server

_log = logging.getLogger("headgate.server")

_POLL_SECONDS = 0.05
_POLL_AT_MOST_SECONDS = 1.0
# Ended builds whose outcomes stay available to clients that still watch.
_KEPT = 100

Build = Callable[[BuildId, "Watch"], "BuildOutcome"]
ClientRunBuild = Callable[[BuildId, "Watch", ClientJobs], "BuildOutcome"]


@dataclass(kw_only=True)
class _Opening:
    """A build that is started, and may wait for its outputs before it is recorded."""

    id: BuildId
    future: Future[BuildOutcome]
    _pause_seconds: float = _POLL_SECONDS

    def pause(self) -> float:
        """Return a time to wait before the next look, longer each time."""
        self._pause_seconds = min(self._pause_seconds * 1.2, _POLL_AT_MOST_SECONDS)
        return self._pause_seconds

    def leave(self) -> None:
        """Leave the build alone: it does not end with the request that started it."""


class ServerBuilds:
    """A few builds at a time on the server's own workers, and many client-run ones."""

    def __init__(
        self,
        store: Store,
        *,
        at_once: int = 4,
        kept_at_once: int = 64,
        silent_seconds: float = LEASE_SECONDS,
    ) -> None:
        self._store = store
        self._at_once = {False: at_once, True: kept_at_once}
        self._silent_seconds = silent_seconds
        # The pool starts a thread only when it needs one.
        most = at_once + kept_at_once
        self._pool = ThreadPoolExecutor(most, thread_name_prefix="headgate-build")
        self._known: dict[BuildId, ServerBuild] = {}
        self._lock = threading.Lock()
        self.stopping = threading.Event()
        # Open streams of progress, by actor.
        self.watched_by: Counter[str] = Counter()

    def start(self, build: Build, *, request_key: BuildRequestKey | None = None) -> BuildId:
        """Start a build on the server's workers; return once it is recorded, or raise its error."""
        if self._at_once[False] == 0:
            raise errors.NoBuildsHere
        id, kept = mint_build(), ServerBuild(request_key=request_key)
        return self._begin(id, kept, lambda: build(id, kept.watch))

    def start_client_run(
        self,
        build: ClientRunBuild,
        *,
        actor: str,
        branch: str,
        reported_by: str | None,
        request_key: BuildRequestKey | None = None,
    ) -> BuildId:
        """Start a client-run build, as `start` does; cancel it if its client's requests stop."""
        id = mint_build()
        jobs = ClientJobs(
            self._store.build_parts,
            abort_build=lambda: self._cancel_silent(id),
            reported_by=reported_by,
            silent_seconds=self._silent_seconds,
        )
        kept = ServerBuild(jobs, actor=actor, branch=branch, request_key=request_key)
        return self._begin(id, kept, lambda: build(id, kept.watch, jobs))

    def load_client_run(self, id: str) -> ServerBuild:
        """Return a client-run build of this server, running or ended."""
        kept = self._known.get(BuildId(id))
        if kept is None or kept.client_jobs is None:
            # Raises another error if the build does not exist at all.
            self._store.build_record(id)
            raise errors.BuildNotKept(build=id)
        return kept

    def is_running(self, id: str) -> bool:
        """Return whether the build runs here and its outcome is not known yet."""
        kept = self._known.get(BuildId(id))
        return kept is not None and kept.is_running

    def find_live(self, id: str) -> list[Json] | None:
        """Return the live status of a build's jobs, with Spark tasks; None if it is not here."""
        kept = self._known.get(BuildId(id))
        return kept.live_jobs() or None if kept is not None else None

    def find_outcome(self, id: str) -> Json | None:
        """Return the document of a build that ended here; None if there is none."""
        kept = self._known.get(BuildId(id))
        if kept is None or kept.future is None or kept.is_running or kept.future.exception():
            return None
        return kept.future.result().to_json()

    def stop(self) -> None:
        """Cancel the running builds, and end the streams that watch builds."""
        self.stopping.set()
        with self._lock:
            known = dict(self._known)
        for id, kept in known.items():
            if kept.is_running:
                self._cancel(id)
                if kept.client_jobs is not None:
                    kept.client_jobs.stop_waiting()

    def close(self) -> None:
        """Cancel the running builds and wait for their end, so that none is left half done."""
        self.stop()
        self._pool.shutdown(wait=True)

    def _begin(self, id: BuildId, kept: ServerBuild, work: Callable[[], BuildOutcome]) -> BuildId:
        """Start a build; return its id once it is recorded, or the id of the build it repeats."""
        with kept_in_place(lambda: self._submit(id, kept, work)) as opening:
            self._await_opening(opening)
            return opening.id

    def _submit(self, id: BuildId, kept: ServerBuild, work: Callable[[], BuildOutcome]) -> _Opening:
        is_client_run = kept.client_jobs is not None
        with self._lock:
            earlier = self._find_repeated(kept.request_key)
            if earlier is not None:
                return _Opening(id=earlier[0], future=earlier[1])
            self._make_room(is_client_run=is_client_run)
            self._known[id] = kept
            future = kept.future = self._pool.submit(work)
            future.add_done_callback(lambda done: _log_outcome(id, done))
            future.add_done_callback(lambda _: kept.wake_client())
        return _Opening(id=id, future=future)

    def _find_repeated(
        self, request_key: BuildRequestKey | None
    ) -> tuple[BuildId, Future[BuildOutcome]] | None:
        if request_key is None:
            return None
        for id, kept in self._known.items():
            if kept.future is not None and request_key.repeats(kept.request_key):
                if kept.client_jobs is not None:
                    # The client is alive: its wait for a lost response is not silence.
                    kept.client_jobs.receive((), ready=False)
                return id, kept.future
        return None

    def _make_room(self, *, is_client_run: bool) -> None:
        """Raise if the limit of running builds is reached; forget builds that ended long ago."""
        alike = [k for k in self._known.values() if (k.client_jobs is not None) == is_client_run]
        busy = sum(k.is_running for k in alike)
        if busy >= self._at_once[is_client_run]:
            raise errors.Unavailable(
                f"this server runs {busy} builds already, as many as it may. Try again when "
                "one has ended.",
                running=busy,
            )
        ended = [id for id, kept in self._known.items() if not kept.is_running]
        for id in ended[: max(0, len(ended) - _KEPT)]:
            del self._known[id]

    def _cancel_silent(self, id: BuildId) -> None:
        _log.warning("build %s: its client sends no requests any more", id)
        self._cancel(id)

    def _cancel(self, id: BuildId) -> None:
        try:
            self._store.cancel_build(id)
        except (errors.Conflict, errors.NotFound) as error:
            _log.info("build %s ended by itself: %s", id, error.message)

    def _await_opening(self, opening: _Opening) -> None:
        while not opening.future.done():
            if self._is_recorded(opening.id):
                return
            if PLACE.get() is not None:
                raise Suspended(Wait(deadline=time.monotonic() + opening.pause()))
            time.sleep(opening.pause())
        # Raises the error that prevented the start.
        opening.future.result()

    def _is_recorded(self, id: BuildId) -> bool:
        try:
            self._store.build_record(id)
        except errors.NotFound:
            return False
        return True


def _log_outcome(id: BuildId, done: Future[BuildOutcome]) -> None:
    error = done.exception()
    if error is None:
        _log.info("build %s %s", id, done.result().state.value)
    elif isinstance(error, errors.HeadgateError):
        _log.warning("build %s: %s", id, error.message)
    else:
        _log.error("build %s failed", id, exc_info=error)
