"""Jobs that are done elsewhere, by the client that started the build: ordered here, heard of here.

What is ordered and what is stopped is a matter of state, so a client that missed an answer gets it
with the next one; what it says is numbered for each attempt, so a repetition is heard once.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from headgate.builds.attempt import (
    JobOrder,
    JobResult,
    JobWork,
    Parts,
    Progress,
    log_in,
    make_order,
    settle_outputs,
)
from headgate.builds.open import LEASE_SECONDS
from headgate.catalog.records import load_transaction
from headgate.errors import ContentSwept, Invalid
from headgate.files.objects import Digest, in_parallel
from headgate.files.tree import Entry
from headgate.model.checks import check_result_from_json, stopping
from headgate.model.names import check_file_path
from headgate.model.nouns import DatasetKind

_LOOK_SECONDS = 1.0

Wake = Callable[[], None]


@dataclass(frozen=True, kw_only=True)
class Said:
    """One thing that a client said of an attempt: an event of its process, or how it ended."""

    attempt: str
    number: int
    event: Mapping[str, Any]
    # Of the last one; files are named by the roots of the trees that were sent.
    result: JobResult | None = None
    roots: Mapping[str, str] | None = None
    log: str | None = None


class HandedJobs:
    """Where jobs are done: at a client, as long as it is heard of."""

    def __init__(
        self,
        parts: Parts,
        *,
        give_up: Callable[[], None],
        on_word_of: str | None = None,
        silent_seconds: float = LEASE_SECONDS,
    ) -> None:
        self.parts = parts
        # Whose word it is that the code was what computed this, where that is worth saying.
        self.on_word_of = on_word_of
        self.silent_seconds = silent_seconds
        self.expected = 0
        self._give_up = give_up
        self._lock = threading.Lock()
        self._heard_at = time.monotonic()
        # Set once it can begin what it is given.
        self._ready = threading.Event()
        self._handed: dict[str, HandedAttempt] = {}
        self._orders: dict[str, JobOrder] = {}
        self._listeners: list[Wake] = []

    # --- what a build sees ------------------------------------------------------------------

    def expect(self, count: int) -> None:
        """Returns once the client's engine is there: the clock of the first job runs from then."""
        self.expected = count
        self.ring()
        while not self._ready.wait(_LOOK_SECONDS):
            if not self.look_after_client():
                return

    def wait_no_longer(self) -> None:
        """The build has been ended: whether the client ever comes to be ready is of no matter."""
        self._ready.set()

    def start(self, work: JobWork) -> HandedAttempt:
        return HandedAttempt(self, work)

    # --- what the client's exchange sees ----------------------------------------------------

    def hear(self, said: Sequence[Said], *, ready: bool = True) -> None:
        """Takes in what came; of an attempt that is not wanted any more, nothing."""
        if ready:
            self._ready.set()
        with self._lock:
            self._heard_at = time.monotonic()
            found = [(self._handed.get(one.attempt), one) for one in said]
        for attempt, one in found:
            if attempt is not None:
                attempt.hear(one)

    def orders(self) -> tuple[JobOrder, ...]:
        """The attempts that are to be under way now."""
        with self._lock:
            return tuple(self._orders.values())

    @contextmanager
    def listening(self, wake: Wake) -> Iterator[None]:
        """Within the block `wake` is called whenever there may be something new to say."""
        with self._lock:
            self._listeners.append(wake)
        try:
            yield
        finally:
            with self._lock:
                self._listeners.remove(wake)

    def ring(self) -> None:
        with self._lock:
            listeners = list(self._listeners)
        for wake in listeners:
            wake()

    # --- what attempts see ------------------------------------------------------------------

    @contextmanager
    def handing(self, order: JobOrder, attempt: HandedAttempt) -> Iterator[None]:
        """Within the block the client is to do this, and what it says of it is heard."""
        with self._lock:
            self._handed[order.id], self._orders[order.id] = attempt, order
        self.ring()
        try:
            yield
        finally:
            with self._lock:
                del self._handed[order.id], self._orders[order.id]
            self.ring()

    def look_after_client(self) -> bool:
        """Whether the client is there; where it was not heard of for too long, gives up."""
        with self._lock:
            silent = time.monotonic() - self._heard_at
        if silent > self.silent_seconds:
            self._give_up()
            return False
        return True


class HandedAttempt:
    """One attempt that a client does; its end comes from there, or from whoever stops it here."""

    def __init__(self, jobs: HandedJobs, work: JobWork) -> None:
        self._jobs = jobs
        self._parts = jobs.parts
        self._work = work
        self._lock = threading.Lock()
        self._heard = 0
        # What was said, and the reason for which it is to stop.
        self._inbox: queue.SimpleQueue[Said | str] = queue.SimpleQueue()

    def run(self, progress: Progress) -> JobResult:
        with self._jobs.handing(make_order(self._parts, self._work), self):
            result = self._listen(progress)
        if result.succeeded and not result.aborted:
            self._check_staged(result)
            settle_outputs(self._parts, self._work, result)
        return result

    def stop(self, reason: str) -> None:
        self._inbox.put(reason)

    def hear(self, said: Said) -> None:
        """Once; what comes again was said on a connection whose reply was lost."""
        with self._lock:
            if said.number > self._heard + 1:
                raise Invalid(
                    f"{said.attempt} said number {said.number} where {self._heard + 1} was to come."
                )
            if said.number == self._heard + 1:
                self._heard = said.number
                self._inbox.put(said)

    def _listen(self, progress: Progress) -> JobResult:
        while True:
            try:
                said = self._inbox.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                self._jobs.look_after_client()
                continue
            if isinstance(said, str):
                return JobResult(succeeded=False, error={"message": said})
            if said.result is not None:
                return self._result(said.result, said)
            progress(said.event)

    def _result(self, result: JobResult, said: Said) -> JobResult:
        if said.log:
            log = log_in(self._work.directory)
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text(said.log)
        roots = said.roots or {}
        return replace(result, files={name: self._files(root) for name, root in roots.items()})

    def _files(self, root: str) -> list[Entry]:
        """What a client says is in a tree that it sent, if all of that is here."""
        trees = self._parts.contents.trees

        def check(entry: Entry) -> Entry:
            check_file_path(entry.path)
            if not entry.is_directory and trees.find_size(entry.digest) != entry.size:
                raise ContentSwept(path=entry.path)
            return entry

        return list(in_parallel(check, trees.walk(Digest(root))))

    def _check_staged(self, result: JobResult) -> None:
        """A client's word that it wrote something is not enough."""
        if stopping(check_result_from_json(check) for check in result.checks):
            raise Invalid("the client said that a job succeeded whose checks were not met.")
        known = {output.name for output in self._work.decision.job.spec.outputs}
        if not known.issuperset((*result.written, *result.replaced, *result.files)):
            raise Invalid("the client said that it wrote what is no output of this job.")
        for output in self._work.decision.job.spec.outputs:
            if output.name not in result.written:
                continue
            id = self._work.outputs[output.dataset]
            came = output.name in result.files
            if output.kind is DatasetKind.TABLE:
                held = self._parts.database.read(partial(load_transaction, id=id))
                came = held.version is not None
            if not came:
                raise Invalid(f"the client said that it wrote {output.dataset}, but nothing came.")
