"""Builds and JobSpecs of a served store.

The module starts builds, sends JobSpecs with their code, and executes client-run builds: this
process does the jobs, the server plans, fences and publishes.
"""

import contextlib
import queue
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from headgate.attempts import LEASE_SECONDS
from headgate.builds.attempt import JobResult, failed, job_position, log_in, read_log
from headgate.builds.plan import BuildOptions, PlanOptions, check_limits
from headgate.builds.project import Discovery, PublishReport
from headgate.builds.report import BuildInterrupted, BuildOutcome, RemoteJob, Watch
from headgate.builds.spark_jobs import JobResources, JobRunner
from headgate.client.contents import RemoteObjects
from headgate.client.http import HttpClient, segment
from headgate.errors import HeadgateError, OpenTransactionAlreadyExists, PlanChanged, Unavailable
from headgate.files.tree import EMPTY
from headgate.files.tree_store import FileTrees
from headgate.model.ids import JobSpecId
from headgate.model.jobspecs import JobSpec, PublishedJobSpec
from headgate.model.names import check_options, split_names
from headgate.model.nouns import BuildState, as_json
from headgate.settings import Settings
from headgate.spark.engines import SharedJvm
from headgate.spark.job_protocol import JobOrder
from headgate.store.documents import Json, to_instant

# Longest wait of one request for branches that other writers hold; a longer wait takes several.
_START_WAIT_SECONDS = 20.0
# Added to that wait for the reply. The sum is shorter than the time a build waits for its client.
_START_ANSWER_SECONDS = 30.0


def request_body(targets: Sequence[str], asked: PlanOptions) -> Json:
    """Return the options of a plan or build as JSON; the server fills in those left out."""
    check_options(asked, BuildOptions, needed=("branch",))
    given: Json = {name: value for name, value in asked.items() if value is not None}
    if "fallback" in given:
        given["fallback"] = list(split_names(given["fallback"]))
    return {**given, "targets": list(split_names(targets))}


def start_build(
    http: HttpClient, targets: Sequence[str], asked: BuildOptions, *, where: str
) -> Json:
    """Start a build, done by the server's workers or by the caller; return its record once open."""
    body = request_body(targets, asked)
    check_limits(asked)
    deadline = time.monotonic() + asked.get("wait_seconds", 0)
    while True:
        rest = min(max(0.0, deadline - time.monotonic()), _START_WAIT_SECONDS)
        # The client makes the key, so that a request repeated after a lost reply starts no second
        # build: one without a client would hold its branches until the server notices.
        key = secrets.token_urlsafe(32)
        sent = {**body, "wait_seconds": rest, "where": where, "request_key": key}
        patience = rest + _START_ANSWER_SECONDS
        try:
            return http.call(
                "POST", "/builds", body=sent, repeatable=True, timeout_seconds=patience
            )
        except (OpenTransactionAlreadyExists, PlanChanged):
            if time.monotonic() >= deadline:
                raise


def send_discovery(http: HttpClient, found: Discovery) -> PublishReport:
    """Send the code by its digest, then the JobSpecs that name it."""
    with tempfile.TemporaryDirectory(prefix="headgate-publish-") as directory:
        bundle = Path(directory) / "bundle.zip"
        bundle.write_bytes(found.bundle.data)
        http.send_file(f"/bundles/{found.bundle.digest}", bundle)
    specs = [
        {
            "declaration": spec.declaration.to_json(),
            "logic_hash": spec.logic_hash,
            "code_hash": spec.code_hash,
        }
        for spec in found.jobspecs
    ]
    done = http.post(
        "/jobspecs",
        source=found.source.to_json(),
        bundle=found.bundle.digest,
        jobspecs=specs,
        declared_before=None if found.declared_before is None else list(found.declared_before),
        former=list(found.former),
    )
    sent = {tuple(_outputs(spec)): spec for spec in found.jobspecs}
    return PublishReport(
        source=found.source,
        published=tuple(_published(one, sent[tuple(one["outputs"])]) for one in done["published"]),
        removed=tuple(done["removed"]),
        suspicions=found.suspicions,
        unreachable=found.unreachable,
    )


def _published(noun: Json, spec: JobSpec) -> PublishedJobSpec:
    """Return the JobSpec that was sent, with the fields that the server recorded for it."""
    return PublishedJobSpec(
        id=JobSpecId(noun["jobspec"]),
        branch=noun["branch"],
        repository=noun["repository"],
        commit=noun["commit"],
        clean=noun["clean"],
        removed=False,
        actor=noun["actor"],
        published_at=to_instant(noun["published_at"]),
        body={"outputs": _outputs(spec), "jobspec": spec.to_json()},
    )


def _outputs(spec: JobSpec) -> list[str]:
    return [str(output.dataset) for output in spec.outputs]


_MOST_AT_ONCE = 200
_AGAIN_SECONDS = 0.5
# Length in characters to which a job's error message is cut.
_SHORT = 2000
# Events of a job's process that are sent to the server, each with the fields that are sent.
_SENT_FIELDS = {"progress": ("stages_done", "stages", "tasks_done", "tasks"), "written": ("rows",)}


class EventSender:
    """Numbers the events of each attempt, and repeats them until the server has received them."""

    def __init__(self, send: Callable[[list[Json]], object]) -> None:
        self._send = send
        self._numbers: dict[str, int] = {}
        self._lock = threading.Lock()
        self._waiting: queue.SimpleQueue[Json | None] = queue.SimpleQueue()
        self._closed = threading.Event()
        # Attempts whose end the server has received.
        self.ended: set[str] = set()
        self._thread = threading.Thread(
            target=self._send_queued, name="headgate-events", daemon=True
        )
        self._thread.start()

    def send(self, attempt: str, event: Mapping[str, Any]) -> None:
        """Queue an event of a job's process, if it is one that the server records."""
        kind = str(event["event"])
        if kind in _SENT_FIELDS:
            self._queue(attempt, kind, {name: event.get(name) or 0 for name in _SENT_FIELDS[kind]})

    def end(
        self, attempt: str, result: JobResult, files: Mapping[str, str], *, log: str | None
    ) -> None:
        """Queue the end of an attempt, its last event."""
        # Of files only the roots are sent, not the entries.
        facts = as_json(replace(result, files={}))
        self._queue(attempt, "ended", {**facts, "files": dict(files), "log": log})

    def close(self) -> None:
        """Stop sending; queued events are dropped."""
        self._closed.set()
        self._waiting.put(None)
        self._thread.join()

    def _queue(self, attempt: str, kind: str, facts: Mapping[str, Any]) -> None:
        with self._lock:
            number = self._numbers[attempt] = self._numbers.get(attempt, 0) + 1
            self._waiting.put({"attempt": attempt, "number": number, "event": kind, **facts})

    def _send_queued(self) -> None:
        while (first := self._waiting.get()) is not None and not self._closed.is_set():
            events = [first]
            while len(events) < _MOST_AT_ONCE and not self._waiting.empty():
                more = self._waiting.get()
                if more is None:
                    self._closed.set()
                    break
                events.append(more)
            self._send_until_received(events)

    def _send_until_received(self, events: list[Json]) -> None:
        """Send events until received; replace rejected ones, so that no number is missing."""
        refused = self._send_all(events)
        if refused is not None:
            for one in events:
                if self._send_all([one]) is not None:
                    # If this is rejected too, the client has lost the build: its poll fails too.
                    self._send_all([_without_content(one, refused)])
        self.ended |= {one["attempt"] for one in events if one["event"] == "ended"}

    def _send_all(self, events: list[Json]) -> HeadgateError | None:
        while not self._closed.is_set():
            try:
                self._send(events)
                return None
            except Unavailable:
                self._closed.wait(_AGAIN_SECONDS)
            except HeadgateError as refused:
                return refused
        return None


def _without_content(event: Json, refused: HeadgateError) -> Json:
    """Return a minimal event for the same attempt and number, without the rejected content."""
    place = {"attempt": event["attempt"], "number": event["number"]}
    if event["event"] != "ended":
        return {**place, "event": "written", "rows": 0}
    reported = str((event["error"] or {}).get("message", "that it succeeded"))[:_SHORT]
    why = f"the server rejected the report of the job: {refused.message} It reported: {reported}"
    return {**place, "event": "ended", "succeeded": False, "error": {"message": why}}


_WAIT_SECONDS = 10
# Added to the requested wait, so that a network that drops requests does not look like a wait.
_ANSWER_SECONDS = 20
# Short, because the user who interrupts a build waits for the process to exit.
_LEAVING_SECONDS = 10
_LOG_TAIL_BYTES = 64 * 1024
_NOT_WANTED = "it is not wanted any more"


def client_resources(
    settings: Settings, http: HttpClient, directory: Path, jvm: SharedJvm | None
) -> JobResources:
    """Return the server's bytes and tables, and an engine of this process's own."""
    from headgate.spark.workplace import client_workplace  # noqa: PLC0415  (slow: Spark)

    objects = RemoteObjects(http)
    return JobResources(
        objects=objects,
        trees=FileTrees(objects),
        bundles=settings.cache / "bundles",
        workplace=client_workplace(settings, f"{http.url}/iceberg", directory, jvm),
    )


class ClientBuild:
    """Polls the server for jobs, does them and sends their events, until the build has ended."""

    def __init__(
        self,
        http: HttpClient,
        resources: Callable[[], JobResources],
        id: str,
        directory: Path,
        watch: Watch,
    ) -> None:
        self._http = http
        self._resources = resources
        self._id = id
        self._where = f"/builds/{segment(id)}/work"
        self._directory = directory
        self._watch = watch
        self._sender = EventSender(self._post)
        self._jobs: dict[int, RemoteJob] = {}
        self._seen = self._expected = 0
        # Runners by attempt in progress; and all attempts begun, so that none is begun twice.
        self._doing: dict[str, JobRunner] = {}
        self._begun: set[str] = set()
        # Attempts that the server has stopped; it expects no events of them.
        self._dropped: set[str] = set()
        self._threads: list[threading.Thread] = []
        # By position of the job: the log of its last attempt, on this machine.
        self._logs: dict[int, str] = {}
        # True once the start of the engine has ended; and the error if it failed.
        self._ready = False
        self._hindered: Exception | None = None

    def run(self) -> BuildOutcome:
        """Return the outcome; Ctrl-C cancels the build and aborts its OPEN transactions."""
        try:
            try:
                outcome = self._work()
            except KeyboardInterrupt as interrupt:
                raise BuildInterrupted(self._canceled()) from interrupt
            except BaseException:
                # Its jobs have no client any more: release its branches now, not in a minute.
                self._cancel()
                raise
        finally:
            self._stop_all(_NOT_WANTED)
            self._sender.close()
            for thread in self._threads:
                thread.join()
        if outcome.state is BuildState.SUCCEEDED:
            shutil.rmtree(self._directory, ignore_errors=True)
        elif self._hindered is not None:
            raise self._hindered
        return outcome

    # --- exchanges with the server ----------------------------------------------------------

    def _work(self) -> BuildOutcome:
        while True:
            answer = self._ask(_WAIT_SECONDS)
            self._show(answer)
            for attempt in answer["stop"]:
                self._stop(attempt)
            if answer["outcome"] is not None:
                return self._outcome(answer["outcome"])
            if answer["expected"] not in {0, self._expected}:
                # The resources are made on this thread, so that there is only one set; the engine
                # starts on the other.
                self._in_background(self._prepare, self._resources(), answer["expected"])
            self._expected = answer["expected"]
            for sent in answer["start"]:
                self._begin(JobOrder.from_json(sent))

    def _ask(self, wait_seconds: float, *, patience_seconds: float = LEASE_SECONDS) -> Json:
        """Poll once; repeat while the server is unavailable, as long as it waits for the client."""
        answered_at = time.monotonic()
        while True:
            try:
                return self._post([], wait_seconds=wait_seconds)
            except Unavailable:
                if time.monotonic() - answered_at > patience_seconds:
                    raise
                time.sleep(_AGAIN_SECONDS)

    def _post(self, events: list[Json], *, wait_seconds: float = 0) -> Json:
        body: Json = {
            "running": sorted(self._begun - self._sender.ended - self._dropped),
            "seen": self._seen,
            "expected": self._expected,
            "said": events,
            "ready": self._ready,
            "wait_seconds": wait_seconds,
        }
        # Events are numbered, and the rest of the request changes nothing: it is repeatable.
        patience = wait_seconds + _ANSWER_SECONDS
        return self._http.call(
            "POST", self._where, body=body, repeatable=True, timeout_seconds=patience
        )

    def _show(self, answer: Json) -> None:
        self._seen = answer["seen"]
        if not answer["jobs"]:
            return
        for sent in answer["jobs"]:
            self._jobs[sent["position"]] = self._job(sent["position"], sent["job"])
        self._watch([self._jobs[position] for position in sorted(self._jobs)])

    def _outcome(self, sent: Json) -> BuildOutcome:
        jobs = [self._job(at, job).to_live_json() for at, job in enumerate(sent["jobs"])]
        outcome = BuildOutcome.from_live_json({**sent, "jobs": jobs})
        if jobs:
            self._watch(outcome.jobs)
        return outcome

    def _job(self, position: int, sent: Mapping[str, Any]) -> RemoteJob:
        """Return a job that the server reported, with the path of its log on this machine."""
        here = self._logs.get(position)
        return RemoteJob({**sent, "log": here} if here and sent.get("log") else sent)

    def _cancel(self) -> None:
        # The build may have ended by itself; the next poll returns its outcome.
        with contextlib.suppress(HeadgateError):
            where = f"/builds/{segment(self._id)}/cancel"
            self._http.request("POST", where, repeatable=True, timeout_seconds=_ANSWER_SECONDS)

    def _canceled(self) -> BuildOutcome:
        """Cancel the build at the server and return its outcome."""
        # Otherwise the server would receive stopped jobs as failed ones, and try them again.
        self._sender.close()
        self._cancel()
        # No job waits for an engine any more.
        self._ready = True
        self._stop_all("the build was interrupted")
        while True:
            answer = self._ask(_WAIT_SECONDS, patience_seconds=_LEAVING_SECONDS)
            if answer["outcome"] is not None:
                return self._outcome(answer["outcome"])

    # --- jobs on this machine ---------------------------------------------------------------

    def _prepare(self, resources: JobResources, count: int) -> None:
        try:
            resources.expect(count)
        except Exception as error:
            self._hindered = error
            self._cancel()
        if not self._ready:
            self._ready = True
            # Sent at once, beside the poll that waits; if it is lost, the next poll reports it too.
            with contextlib.suppress(HeadgateError):
                self._post([])

    def _begin(self, order: JobOrder) -> None:
        if order.id in self._begun:
            return
        self._begun.add(order.id)
        directory = self._directory / order.name
        self._logs[job_position(order.key)] = str(log_in(directory))
        doing = self._doing[order.id] = JobRunner(self._resources(), directory)
        self._in_background(self._do, order, doing, directory)

    def _do(self, order: JobOrder, doing: JobRunner, directory: Path) -> None:
        try:
            result = doing.run(order, lambda event: self._sender.send(order.id, event))
            # One digest for each output of files, however many there are.
            trees = self._resources().trees
            files = {name: trees.edit(EMPTY, put=put).root for name, put in result.files.items()}
        except HeadgateError as error:
            result, files = failed(error), {}
        except Exception as error:
            message = f"the job could not be done here: {error!r}"
            result, files = JobResult(succeeded=False, error={"message": message}), {}
        self._doing.pop(order.id, None)
        self._sender.end(order.id, result, files, log=_tail(log_in(directory)))

    def _stop(self, attempt: str) -> None:
        self._dropped.add(attempt)
        doing = self._doing.pop(attempt, None)
        if doing is not None:
            # In the background, so that this thread keeps polling: an engine is slow to cancel.
            self._in_background(doing.stop, _NOT_WANTED)

    def _stop_all(self, reason: str) -> None:
        for doing in list(self._doing.values()):
            doing.stop(reason)
        self._doing.clear()

    def _in_background(self, work: Callable[..., None], *given: Any) -> None:
        thread = threading.Thread(target=work, args=given, name="headgate-job", daemon=True)
        self._threads.append(thread)
        thread.start()


def _tail(log: Path) -> str | None:
    """Return the end of a job's log, which the server shows."""
    text, is_cut = read_log(log.parent, str(log), most_bytes=_LOG_TAIL_BYTES) or ("", False)
    return f"(the beginning is cut off)\n{text}" if is_cut else text or None
