"""Client-run jobs: the server makes orders, the client that started the build runs them.

Orders are state, not messages: a client that missed a response gets them with the next one. The
client's messages are numbered for each attempt, so that a repeated one is received once.
See ADR 0052.
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

from headgate.attempts import LEASE_SECONDS
from headgate.builds.attempt import (
    JobResult,
    JobWork,
    Parts,
    Progress,
    log_in,
    make_order,
    stage_outputs,
)
from headgate.catalog.records import load_transaction
from headgate.errors import ContentSwept, Invalid
from headgate.files.objects import Digest, in_parallel
from headgate.files.tree import Entry
from headgate.model.checks import blocking, check_result_from_json
from headgate.model.names import check_file_path
from headgate.model.nouns import DatasetKind
from headgate.spark.job_protocol import JobOrder
from headgate.storage.local import make_private_directory

_POLL_SECONDS = 1.0

Wake = Callable[[], None]


@dataclass(frozen=True, kw_only=True)
class JobMessage:
    """A client's message about an attempt: an event of its process, or its result."""

    attempt: str
    number: int
    event: Mapping[str, Any]
    # Of the last message; `roots` are the uploaded trees, by output of files.
    result: JobResult | None = None
    roots: Mapping[str, str] | None = None
    log: str | None = None


class ClientJobs:
    """Jobs that a client runs, for as long as its requests arrive."""

    def __init__(
        self,
        parts: Parts,
        *,
        abort_build: Callable[[], None],
        reported_by: str | None = None,
        silent_seconds: float = LEASE_SECONDS,
    ) -> None:
        self.parts = parts
        # The actor whose claim it is that the published code ran, where its role is not enough.
        self.reported_by = reported_by
        self.silent_seconds = silent_seconds
        self.expected = 0
        self._abort_build = abort_build
        self._lock = threading.Lock()
        self._received_at = time.monotonic()
        # Set once the client's engine has started.
        self._ready = threading.Event()
        self._attempts: dict[str, ClientAttempt] = {}
        self._orders: dict[str, JobOrder] = {}
        self._subscribers: list[Wake] = []

    # --- for the build ----------------------------------------------------------------------

    def expect(self, count: int) -> None:
        """Wait for the client's engine, so that the clock of the first job starts after it."""
        self.expected = count
        self.notify()
        while not self._ready.wait(_POLL_SECONDS):
            if not self.check_client():
                return

    def stop_waiting(self) -> None:
        """End the wait for the client's engine: the build has ended."""
        self._ready.set()

    def start(self, work: JobWork) -> ClientAttempt:
        return ClientAttempt(self, work)

    # --- for the client's requests ----------------------------------------------------------

    def receive(self, messages: Sequence[JobMessage], *, ready: bool = True) -> None:
        """Pass messages to their attempts; ignore those of attempts that have ended."""
        if ready:
            self._ready.set()
        with self._lock:
            self._received_at = time.monotonic()
            found = [(self._attempts.get(message.attempt), message) for message in messages]
        for attempt, message in found:
            if attempt is not None:
                attempt.receive(message)

    def orders(self) -> tuple[JobOrder, ...]:
        """Return the orders of all attempts that have not ended."""
        with self._lock:
            return tuple(self._orders.values())

    @contextmanager
    def subscribed(self, wake: Wake) -> Iterator[None]:
        """Call `wake` after each change, for the length of the block."""
        with self._lock:
            self._subscribers.append(wake)
        try:
            yield
        finally:
            with self._lock:
                self._subscribers.remove(wake)

    def notify(self) -> None:
        with self._lock:
            subscribers = list(self._subscribers)
        for wake in subscribers:
            wake()

    # --- for attempts -----------------------------------------------------------------------

    @contextmanager
    def ordered(self, order: JobOrder, attempt: ClientAttempt) -> Iterator[None]:
        """Order an attempt from the client, and receive its messages, within the block."""
        with self._lock:
            self._attempts[order.id], self._orders[order.id] = attempt, order
        self.notify()
        try:
            yield
        finally:
            with self._lock:
                del self._attempts[order.id], self._orders[order.id]
            self.notify()

    def check_client(self) -> bool:
        """Return True if the client's requests arrive; else abort the build."""
        with self._lock:
            silent = time.monotonic() - self._received_at
        if silent > self.silent_seconds:
            self._abort_build()
            return False
        return True


class ClientAttempt:
    """One client-run attempt; ends with the client's result, or when the server stops it."""

    def __init__(self, jobs: ClientJobs, work: JobWork) -> None:
        self._jobs = jobs
        self._parts = jobs.parts
        self._work = work
        self._lock = threading.Lock()
        # Number of the last message.
        self._received = 0
        # Messages, or the reason to stop.
        self._inbox: queue.SimpleQueue[JobMessage | str] = queue.SimpleQueue()

    def run(self, progress: Progress) -> JobResult:
        with self._jobs.ordered(make_order(self._parts, self._work), self):
            result = self._await_result(progress)
        if result.succeeded and not result.aborted:
            self._check_outputs(result)
            stage_outputs(self._parts, self._work, result)
        return result

    def stop(self, reason: str) -> None:
        self._inbox.put(reason)

    def receive(self, message: JobMessage) -> None:
        """Queue a message; ignore one that came before, whose response the client lost."""
        with self._lock:
            expected = self._received + 1
            if message.number > expected:
                raise Invalid(
                    f"message {message.number} of {message.attempt} arrived before message "
                    f"{expected}. Send the messages of an attempt in order, numbered from 1."
                )
            if message.number == expected:
                self._received = message.number
                self._inbox.put(message)

    def _await_result(self, progress: Progress) -> JobResult:
        while True:
            try:
                message = self._inbox.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                self._jobs.check_client()
                continue
            if isinstance(message, str):
                return JobResult(succeeded=False, error={"message": message})
            if message.result is not None:
                return self._result(message.result, message)
            progress(message.event)

    def _result(self, result: JobResult, message: JobMessage) -> JobResult:
        if message.log:
            log = log_in(self._work.directory)
            make_private_directory(log.parent)
            log.write_text(message.log)
        roots = message.roots or {}
        return replace(result, files={name: self._files(root) for name, root in roots.items()})

    def _files(self, root: str) -> list[Entry]:
        """Return the entries of an uploaded tree; raise if a content of it is missing."""
        trees = self._parts.contents.trees

        def check(entry: Entry) -> Entry:
            check_file_path(entry.path)
            if not entry.is_directory and trees.objects.find_size(entry.digest) != entry.size:
                raise ContentSwept(path=entry.path)
            return entry

        return list(in_parallel(check, trees.walk(Digest(root))))

    def _check_outputs(self, result: JobResult) -> None:
        """Raise if the client's result contradicts its checks or what it uploaded."""
        if blocking(check_result_from_json(check) for check in result.checks):
            raise Invalid("the client reported success for a job with failed checks.")
        known = {output.name for output in self._work.decision.job.spec.outputs}
        unknown = {*result.written, *result.replaced, *result.files} - known
        if unknown:
            names = ", ".join(sorted(unknown))
            raise Invalid(f"the client reported outputs that the job does not have: {names}.")
        for output in self._work.decision.job.spec.outputs:
            if output.name not in result.written:
                continue
            id = self._work.outputs[output.dataset]
            arrived = output.name in result.files
            if output.kind is DatasetKind.TABLE:
                held = self._parts.database.read(partial(load_transaction, id=id))
                arrived = held.version is not None
            if not arrived:
                raise Invalid(
                    f"the client reported that it wrote {output.dataset}, but sent no content."
                )
