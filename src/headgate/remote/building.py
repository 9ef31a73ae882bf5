"""A build that a server keeps and this process works for: its jobs are done here."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headgate.builds.attempting import JobResult, log_in
from headgate.builds.doing import Doing, Means
from headgate.builds.ledger import Watch
from headgate.builds.opening import LEASE_SECONDS, job_position
from headgate.builds.orders import JobOrder
from headgate.builds.outcome import BuildInterrupted, BuildOutcome, ToldJob
from headgate.errors import HeadgateError, Unavailable
from headgate.files.entries import EMPTY
from headgate.files.trees import FileTrees
from headgate.handles.nouns import Json
from headgate.model.job_states import BuildState
from headgate.remote.line import Line, segment
from headgate.remote.objects import RemoteObjects
from headgate.remote.talking import Talk
from headgate.settings import Settings
from headgate.spark.client import client_workplace
from headgate.spark.jvm import SharedJvm

_WAIT_SECONDS = 10
_AGAIN_SECONDS = 0.5
# Beyond the wait that was asked for: a network that swallows what is sent must not look like one.
_ANSWER_SECONDS = 20
# Whoever interrupts a build wants to go.
_LEAVING_SECONDS = 10
_LOG_TAIL_BYTES = 64 * 1024
_NOT_WANTED = "it is not wanted any more"


def client_means(
    settings: Settings, line: Line, directory: Path, *, on_s3: bool, jvm: SharedJvm | None
) -> Means:
    """The server's bytes and tables, and an engine of this process's own."""
    objects = RemoteObjects(line)
    return Means(
        objects=objects,
        trees=FileTrees(objects),
        bundles=settings.cache / "bundles",
        workplace=client_workplace(
            settings, f"{line.url}/iceberg", directory, on_s3=on_s3, jvm=jvm
        ),
    )


class ClientBuild:
    """Asks what to do, does it, and says how it goes, until the build has ended."""

    def __init__(
        self,
        line: Line,
        means: Callable[[], Means],
        id: str,
        directory: Path,
        watch: Watch,
    ) -> None:
        self._line = line
        self._means = means
        self._id = id
        self._where = f"/builds/{segment(id)}/work"
        self._directory = directory
        self._watch = watch
        self._talk = Talk(self._post)
        self._jobs: dict[int, ToldJob] = {}
        self._seen = self._expected = 0
        # By attempt: what is under way here, and what has been, so that nothing is begun twice.
        self._doing: dict[str, Doing] = {}
        self._begun: set[str] = set()
        # Attempts that the server does not want any more; nothing has to be heard of them.
        self._dropped: set[str] = set()
        self._threads: list[threading.Thread] = []
        # By job: the log of its last attempt, which is on this machine.
        self._logs: dict[int, str] = {}
        # Whether an engine is there, and what keeps this process from having one.
        self._ready = False
        self._hindered: Exception | None = None

    def to_the_end(self) -> BuildOutcome:
        """What came of it; Ctrl-C cancels it, and what it had not committed is aborted."""
        try:
            try:
                outcome = self._work()
            except KeyboardInterrupt as interrupt:
                raise BuildInterrupted(self._canceled()) from interrupt
            except BaseException:
                # Nobody does its jobs from here on: what it holds is free now, not in a minute.
                self._cancel()
                raise
        finally:
            self._stop_all(_NOT_WANTED)
            self._talk.close()
            for thread in self._threads:
                thread.join()
        if outcome.state is BuildState.SUCCEEDED:
            shutil.rmtree(self._directory, ignore_errors=True)
        elif self._hindered is not None:
            raise self._hindered
        return outcome

    # --- what the server says ---------------------------------------------------------------

    def _work(self) -> BuildOutcome:
        while True:
            answer = self._ask(_WAIT_SECONDS)
            self._show(answer)
            for attempt in answer["stop"]:
                self._stop(attempt)
            if answer["outcome"] is not None:
                return self._outcome(answer["outcome"])
            if answer["expected"] not in {0, self._expected}:
                # Made on this thread, so that there is one; it starts its engine on the other.
                self._in_background(self._prepare, self._means(), answer["expected"])
            self._expected = answer["expected"]
            for sent in answer["start"]:
                self._begin(JobOrder.from_json(sent))

    def _ask(self, wait_seconds: float, *, patience_seconds: float = LEASE_SECONDS) -> Json:
        """One exchange, again and again while the server is away, as long as it waits for us."""
        heard_at = time.monotonic()
        while True:
            try:
                return self._post([], wait_seconds=wait_seconds)
            except Unavailable:
                if time.monotonic() - heard_at > patience_seconds:
                    raise
                time.sleep(_AGAIN_SECONDS)

    def _post(self, said: list[Json], *, wait_seconds: float = 0) -> Json:
        body: Json = {
            "running": sorted(self._begun - self._talk.ended - self._dropped),
            "seen": self._seen,
            "expected": self._expected,
            "said": said,
            "ready": self._ready,
            "wait_seconds": wait_seconds,
        }
        # What is said is numbered, and the rest only asks: it may be sent again.
        answer: Json = self._line.ask(
            "POST",
            self._where,
            body=body,
            again=True,
            patience_seconds=wait_seconds + _ANSWER_SECONDS,
        ).document
        return answer

    def _show(self, answer: Json) -> None:
        self._seen = answer["seen"]
        if not answer["jobs"]:
            return
        for told in answer["jobs"]:
            self._jobs[told["position"]] = self._job(told["position"], told["job"])
        self._watch([self._jobs[position] for position in sorted(self._jobs)])

    def _outcome(self, told: Json) -> BuildOutcome:
        jobs = [self._job(at, job).to_live_json() for at, job in enumerate(told["jobs"])]
        outcome = BuildOutcome.from_live_json({**told, "jobs": jobs})
        if jobs:
            self._watch(outcome.jobs)
        return outcome

    def _job(self, position: int, told: Mapping[str, Any]) -> ToldJob:
        """The job as it was told of; its log is where it was written."""
        here = self._logs.get(position)
        return ToldJob({**told, "log": here} if here and told.get("log") else told)

    def _cancel(self) -> None:
        # It may have ended by itself, which the exchange tells.
        with contextlib.suppress(HeadgateError):
            where = f"/builds/{segment(self._id)}/cancel"
            self._line.ask("POST", where, again=True, patience_seconds=_ANSWER_SECONDS)

    def _canceled(self) -> BuildOutcome:
        """Cancels it there and hears how it ended."""
        # Else jobs that are stopped here would be heard of as failed, and tried again.
        self._talk.close()
        self._cancel()
        # No job is going to wait for an engine any more.
        self._ready = True
        self._stop_all("the build was interrupted")
        while True:
            answer = self._ask(_WAIT_SECONDS, patience_seconds=_LEAVING_SECONDS)
            if answer["outcome"] is not None:
                return self._outcome(answer["outcome"])

    # --- what is done here ------------------------------------------------------------------

    def _prepare(self, means: Means, count: int) -> None:
        try:
            means.expect(count)
        except Exception as error:
            self._hindered = error
            self._cancel()
        if not self._ready:
            self._ready = True
            # At once, beside the question that waits; if it is lost, the next one says it too.
            with contextlib.suppress(HeadgateError):
                self._post([])

    def _begin(self, order: JobOrder) -> None:
        if order.id in self._begun:
            return
        self._begun.add(order.id)
        directory = self._directory / order.name
        self._logs[job_position(order.key)] = str(log_in(directory))
        doing = self._doing[order.id] = Doing(self._means(), directory)
        self._in_background(self._do, order, doing, directory)

    def _do(self, order: JobOrder, doing: Doing, directory: Path) -> None:
        try:
            result = doing.run(order, lambda event: self._talk.tell(order.id, event))
            files = {name: self._tree(put) for name, put in result.files.items()}
        except HeadgateError as error:
            result, files = _failed(error.message, error.code), {}
        except Exception as error:
            result, files = _failed(f"the job could not be done here: {error!r}"), {}
        self._doing.pop(order.id, None)
        self._talk.end(order.id, result, files, log=_tail(log_in(directory)))

    def _tree(self, put: Any) -> str:
        """One name for all that an output holds, however much that is."""
        return self._means().trees.edit(EMPTY, put=put).root

    def _stop(self, attempt: str) -> None:
        self._dropped.add(attempt)
        doing = self._doing.pop(attempt, None)
        if doing is not None:
            # Off this thread, which goes on asking: an engine takes its time to cancel.
            self._in_background(doing.stop, _NOT_WANTED)

    def _stop_all(self, reason: str) -> None:
        for doing in list(self._doing.values()):
            doing.stop(reason)
        self._doing.clear()

    def _in_background(self, work: Callable[..., None], *given: Any) -> None:
        thread = threading.Thread(target=work, args=given, name="headgate-job", daemon=True)
        self._threads.append(thread)
        thread.start()


def _failed(message: str, code: str | None = None) -> JobResult:
    error = {"message": message} | ({"code": code} if code is not None else {})
    return JobResult(succeeded=False, error=error)


def _tail(log: Path) -> str | None:
    """The end of what a job printed, for those who look at the server."""
    if not log.is_file():
        return None
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LOG_TAIL_BYTES))
        return file.read().decode(errors="replace") or None
