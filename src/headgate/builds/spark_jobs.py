"""Jobs done on this store's own Spark: the catalog's half and the engine's half in one process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headgate.builds.attempt import (
    InputOrder,
    JobOrder,
    JobResult,
    JobWork,
    OutputOrder,
    Parts,
    Progress,
    log_in,
    make_order,
    settle_outputs,
)
from headgate.builds.bundle import unpack_bundle
from headgate.builds.project import bundle_key
from headgate.errors import Invalid
from headgate.files.objects import Digest
from headgate.files.tree import ChangeKind, Entry
from headgate.files.trees import FileTrees
from headgate.model.ports import ObjectStore
from headgate.spark.job_processes import JobProcess
from headgate.spark.job_protocol import EventKind, JobDocument, Source, Target
from headgate.spark.session import catalog_conf
from headgate.transforms.runtime import ReadMode

if TYPE_CHECKING:
    from headgate.spark.workplace import Workplace


# The files of one attempt: trees on disk as the job asks for them, and what it wrote.

Fill = Callable[[Path], object]


class JobFiles:
    """Directories by input or output and read mode; one is filled when it is first asked for."""

    def __init__(self, trees: FileTrees, directory: Path) -> None:
        self._trees = trees
        self._directory = directory
        self._empty_until_asked: dict[str, Fill] = {}

    def of_input(self, name: str, given: InputOrder) -> dict[str, str] | None:
        """Where the job finds an input's files, by read mode; what it reads first is there."""
        if given.root is None:
            return None
        now = Digest(given.root)
        current = self._promise(f"inputs/{name}/current", partial(self._trees.download, now))
        if given.since_root is None:
            self.fill(current)
            return _by_mode(current, current, self._nothing(f"inputs/{name}/previous"))
        before = Digest(given.since_root)
        added = self._promise(f"inputs/{name}/added", partial(self._download_added, before, now))
        self.fill(added)
        previous = self._promise(f"inputs/{name}/previous", partial(self._trees.download, before))
        return _by_mode(current, added, previous)

    def of_output(self, name: str, target: OutputOrder) -> dict[str, str] | None:
        """Where the job puts an output's files, and where it finds those that were there."""
        if not target.is_files:
            return None
        own = self._nothing(f"outputs/{name}/written")
        if target.base_root is None:
            return _by_mode(own, own, self._nothing(f"outputs/{name}/previous"))
        fill = partial(self._trees.download, Digest(target.base_root))
        return _by_mode(own, own, self._promise(f"outputs/{name}/previous", fill))

    def fill(self, directory: str) -> None:
        """Downloads what a directory stands for; it appears when it is whole."""
        if directory not in self._empty_until_asked:
            raise Invalid(f"{directory} is no directory of this job.")
        target = Path(directory)
        if target.is_dir():
            return
        unfinished = target.with_name(f".{target.name}")
        unfinished.mkdir(parents=True)
        self._empty_until_asked[directory](unfinished)
        unfinished.rename(target)

    def store(self, name: str) -> list[Entry]:
        """Stores what the job wrote, for entries to name."""
        return self._trees.upload(self._directory / "outputs" / name / "written")

    def _promise(self, place: str, fill: Fill) -> str:
        directory = str(self._directory / place)
        self._empty_until_asked[directory] = fill
        return directory

    def _nothing(self, place: str) -> str:
        directory = self._directory / place
        directory.mkdir(parents=True, exist_ok=True)
        return str(directory)

    def _download_added(self, before: Digest, now: Digest, target: Path) -> None:
        changes = self._trees.difference(before, now)
        self._trees.download_entries(
            (c.after for c in changes if c.kind is ChangeKind.ADDED and c.after), target
        )


def _by_mode(current: str, added: str, previous: str) -> dict[str, str]:
    return {
        ReadMode.CURRENT.value: current,
        ReadMode.ADDED.value: added,
        ReadMode.PREVIOUS.value: previous,
    }


# The engine's half of an attempt: an order done by a process of its own, wherever that is.

# Slow to load: it brings the HTTP server.


@dataclass(frozen=True, kw_only=True)
class Means:
    """What jobs are done with: the store's bytes, however they are reached, and an engine."""

    objects: ObjectStore
    trees: FileTrees
    # Code stays here, unpacked, for all that use the same.
    bundles: Path
    workplace: Workplace

    def expect(self, count: int) -> None:
        """So many jobs are to come: the engine is started, and processes wait for them."""
        # Processes load what they need while the engine starts.
        self.workplace.keep_ready(count)
        self.workplace.engine()
        self.workplace.keep_ready(count)


class Doing:
    """One attempt in a process of its own, on the engine that all jobs share; it may be stopped."""

    def __init__(self, means: Means, directory: Path) -> None:
        self._means = means
        self._workplace = means.workplace
        self._directory = directory
        self._files = JobFiles(means.trees, directory)
        self._lock = threading.Lock()
        self._process: JobProcess | None = None
        self._stopped: str | None = None
        self._tags: tuple[str, ...] = ()

    def run(self, order: JobOrder, progress: Progress) -> JobResult:
        """Does it; what it wrote into files is stored by the end, and named in the result."""
        self._directory.mkdir(parents=True, exist_ok=True)
        # Its session has a tag too, which also marks what the user's threads run.
        self._tags = (f"headgate-{order.name}",)
        document = self._document(order)
        process = self._workplace.process()
        with self._lock:
            self._process = process
            stopped = self._stopped is not None
        try:
            if stopped:
                process.kill()
            process.begin(document)
            with self._deadline(order.allowed_run_seconds):
                result = self._listen(process, progress)
        finally:
            process.kill()
            process.close()
            # Whatever the process left running in the shared engine ends with it.
            self._workplace.cancel(self._tags)
            with self._lock:
                # There is nothing left to stop.
                self._process = None
        if result.aborted or not result.succeeded:
            return result
        trees = [n for n, target in order.outputs.items() if target.is_files]
        return replace(
            result, files={n: self._files.store(n) for n in trees if n in result.written}
        )

    def stop(self, reason: str) -> None:
        """Ends it from another thread, at whatever moment; it then reports this reason."""
        with self._lock:
            self._stopped = self._stopped or reason
            process = self._process
        if process is not None:
            process.kill()
            self._workplace.cancel(self._tags)

    @contextlib.contextmanager
    def _deadline(self, seconds: float | None) -> Iterator[None]:
        if seconds is None:
            yield
            return
        reason = f"it was stopped at its deadline: allowed_run_duration is {seconds:g} s"
        timer = threading.Timer(seconds, self.stop, [reason])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _document(self, order: JobOrder) -> JobDocument:
        return JobDocument(
            module=order.module,
            bundle=str(self._bundle(order.bundle)),
            inputs={name: self._source(name, given) for name, given in order.inputs.items()},
            outputs={
                name: self._target(name, target, order.branch)
                for name, target in order.outputs.items()
            },
            conf=catalog_conf(
                uri=self._workplace.url, warehouse=f"job:{order.id}", token=order.token
            ),
            tag=self._tags[0],
            directory=str(self._directory),
            log=str(log_in(self._directory)),
            branch=order.branch,
            fallback=order.fallback,
            incremental=order.incremental,
            extent=order.extent,
            parameters=order.parameters,
        )

    def _bundle(self, digest: str) -> Path:
        home = self._means.bundles
        if (home / digest).is_dir():
            return home / digest
        return unpack_bundle(self._means.objects.get(bundle_key(digest)), digest, home)

    def _source(self, name: str, given: InputOrder) -> Source:
        return Source(
            dataset=given.dataset,
            branch=given.branch,
            transaction=given.transaction,
            files=self._files.of_input(name, given),
            since_snapshot=given.since_snapshot,
        )

    def _target(self, name: str, target: OutputOrder, branch: str) -> Target:
        return Target(
            dataset=target.dataset,
            branch=branch,
            files=self._files.of_output(name, target),
            base_snapshot=target.base_snapshot,
        )

    def _listen(self, process: JobProcess, progress: Progress) -> JobResult:
        rows = 0
        ended: dict[str, Any] | None = None
        for event in process.events():
            if event["event"] == EventKind.STARTED:
                self._tags = tuple(event["tags"])
            if event["event"] == EventKind.NEEDS:
                self._files.fill(event["directory"])
                continue
            if event["event"] == EventKind.WRITTEN:
                rows += event.get("rows", 0)
            if event["event"] in {EventKind.DONE, EventKind.FAILED}:
                ended = event
            progress(event)
        code = process.wait()
        if self._stopped is not None:
            return JobResult(succeeded=False, error={"message": self._stopped})
        if ended is None:
            log = log_in(self._directory)
            why = f"the job's process ended with code {code}; its log is {log}"
            return JobResult(succeeded=False, error={"message": why})
        return _result(ended, rows)


def _result(ended: Mapping[str, Any], rows: int) -> JobResult:
    """What the last event of a job's process says."""
    failed = ended["event"] == EventKind.FAILED
    told = {"event", "spark_jobs", "checks"}
    return JobResult(
        succeeded=not failed,
        written=tuple(ended.get("written", ())),
        replaced=tuple(ended.get("replaced", ())),
        aborted=bool(ended.get("aborted")),
        rows=rows,
        spark_jobs=ended.get("spark_jobs") or 0,
        checks=tuple(ended.get("checks", ())),
        error={k: v for k, v in ended.items() if k not in told} if failed else None,
    )


class SparkJobs:
    """Jobs are done on Spark: one engine for all, and a process for each, made ready beforehand."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._means = Means(
            objects=parts.objects,
            trees=parts.contents.trees,
            bundles=parts.settings.cache / "bundles",
            workplace=parts.workplace,
        )

    def expect(self, count: int) -> None:
        self._means.expect(count)

    def start(self, work: JobWork) -> SparkAttempt:
        return SparkAttempt(self._parts, self._means, work)


class SparkAttempt:
    """Orders, does and stages one attempt."""

    def __init__(self, parts: Parts, means: Means, work: JobWork) -> None:
        self._parts = parts
        self._work = work
        self._doing = Doing(means, work.directory)

    def run(self, progress: Progress) -> JobResult:
        result = self._doing.run(make_order(self._parts, self._work), progress)
        if result.succeeded and not result.aborted:
            settle_outputs(self._parts, self._work, result)
        return result

    def stop(self, reason: str) -> None:
        self._doing.stop(reason)
