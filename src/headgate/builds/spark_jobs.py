"""Jobs on Spark: an order runs in a process of its own, on an engine that all jobs share.

`SparkJobs` runs the jobs of this store's builds. A client uses `JobRunner` alone, for orders that
a server made.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headgate.builds import attempt
from headgate.builds.bundle import unpack_bundle
from headgate.builds.project import bundle_key
from headgate.errors import Invalid
from headgate.files.objects import Digest
from headgate.files.transfer import download
from headgate.files.tree import ChangeKind, Entry
from headgate.files.tree_store import FileTrees
from headgate.model.object_store import ObjectStore
from headgate.spark.engines import Engine
from headgate.spark.job_processes import JobProcess
from headgate.spark.job_protocol import EventKind, InputOrder, JobDocument, JobOrder, OutputOrder
from headgate.spark.session import catalog_conf
from headgate.storage.local import make_private_directory
from headgate.transforms.runtime import ReadMode

if TYPE_CHECKING:
    # Slow to load: it brings the HTTP server.
    from headgate.spark.workplace import Workplace

Fill = Callable[[Path], object]


class SparkJobs:
    """Jobs of this store's builds: one engine for all, and a prepared process for each."""

    def __init__(self, parts: attempt.Parts) -> None:
        self._parts = parts
        self._resources = JobResources(
            objects=parts.objects,
            trees=parts.contents.trees,
            bundles=parts.settings.cache / "bundles",
            workplace=parts.workplace,
        )

    def expect(self, count: int) -> None:
        self._resources.expect(count)

    def start(self, work: attempt.JobWork) -> SparkAttempt:
        return SparkAttempt(self._parts, self._resources, work)


class SparkAttempt:
    """One attempt: makes its order, runs it, and stages its outputs."""

    def __init__(
        self, parts: attempt.Parts, resources: JobResources, work: attempt.JobWork
    ) -> None:
        self._parts = parts
        self._work = work
        self._runner = JobRunner(resources, work.directory)

    def run(self, progress: attempt.Progress) -> attempt.JobResult:
        result = self._runner.run(attempt.make_order(self._parts, self._work), progress)
        if result.succeeded and not result.aborted:
            attempt.stage_outputs(self._parts, self._work, result)
        return result

    def stop(self, reason: str) -> None:
        self._runner.stop(reason)


@dataclass(frozen=True, kw_only=True)
class JobResources:
    """The store's objects, local or over HTTP, and an engine."""

    objects: ObjectStore
    trees: FileTrees
    # Directory of unpacked bundles, which jobs share.
    bundles: Path
    workplace: Workplace

    def expect(self, count: int) -> None:
        """Start the engine, and processes for this many jobs."""
        # Once before the engine, so that processes load while it starts.
        self.workplace.keep_ready(count)
        self.workplace.engine()
        self.workplace.keep_ready(count)


class JobRunner:
    """Runs one order in a process of its own, and can stop it."""

    def __init__(self, resources: JobResources, directory: Path) -> None:
        self._resources = resources
        self._workplace = resources.workplace
        self._directory = directory
        self._files = JobFiles(resources.trees, directory)
        self._lock = threading.Lock()
        self._process: JobProcess | None = None
        self._stopped: str | None = None
        self._tags: tuple[str, ...] = ()

    def run(self, order: JobOrder, progress: attempt.Progress) -> attempt.JobResult:
        """Run the order and upload the files that it wrote; the result has their entries."""
        make_private_directory(self._directory)
        # The session adds a tag of its own, which covers the threads of the user's code.
        self._tags = (f"headgate-{order.name}",)
        document = self._document(order)
        process, engine = self._workplace.process()
        with self._lock:
            self._process = process
            stopped = self._stopped is not None
        try:
            if stopped:
                process.kill()
            process.begin(document)
            with self._deadline(order.allowed_run_seconds):
                result = self._await_result(process, engine, progress)
        finally:
            process.kill()
            process.close()
            # Spark jobs that the process left in the shared engine end with it.
            self._workplace.cancel(self._tags)
            with self._lock:
                self._process = None
        if result.aborted or not result.succeeded:
            return result
        trees = [n for n, target in order.outputs.items() if target.is_files]
        return replace(
            result, files={n: self._files.store(n) for n in trees if n in result.written}
        )

    def stop(self, reason: str) -> None:
        """Stop it, from any thread and at any time; its result then has this reason."""
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
        reason = f"the job was stopped at its deadline: allowed_run_duration is {seconds:g} s"
        timer = threading.Timer(seconds, self.stop, [reason])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _document(self, order: JobOrder) -> JobDocument:
        files = {name: self._files.of_input(name, given) for name, given in order.inputs.items()}
        files |= {name: self._files.of_output(name, to) for name, to in order.outputs.items()}
        return JobDocument(
            order=order,
            bundle=str(self._bundle(order.bundle)),
            files={name: directories for name, directories in files.items() if directories},
            conf=catalog_conf(
                uri=self._workplace.url, warehouse=f"job:{order.id}", token=order.token
            ),
            tag=self._tags[0],
            directory=str(self._directory),
            log=str(attempt.log_in(self._directory)),
        )

    def _bundle(self, digest: str) -> Path:
        home = self._resources.bundles
        if (home / digest).is_dir():
            return home / digest
        return unpack_bundle(self._resources.objects.get(bundle_key(digest)), digest, home)

    def _await_result(
        self, process: JobProcess, engine: Engine, progress: attempt.Progress
    ) -> attempt.JobResult:
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
            return attempt.JobResult(succeeded=False, error={"message": self._stopped})
        if (ended is None or ended["event"] == EventKind.FAILED) and (
            stopped := engine.find_end(ended["error"] if ended is not None else None)
        ):
            return attempt.failed(stopped)
        if ended is None:
            log = attempt.log_in(self._directory)
            message = f"the job's process ended with code {code}; its log is {log}"
            return attempt.JobResult(succeeded=False, error={"message": message})
        return _result(ended, rows)


def _result(ended: Mapping[str, Any], rows: int) -> attempt.JobResult:
    """Return the result that the last event of a job's process has."""
    failed = ended["event"] == EventKind.FAILED
    other = {"event", "spark_jobs", "checks"}
    return attempt.JobResult(
        succeeded=not failed,
        written=tuple(ended.get("written", ())),
        replaced=tuple(ended.get("replaced", ())),
        aborted=bool(ended.get("aborted")),
        rows=rows,
        # A Connect server reports tasks every two seconds, and so not those of short executions.
        spark_jobs=max(ended.get("spark_jobs") or 0, int(rows > 0)),
        checks=tuple(ended.get("checks", ())),
        error={k: v for k, v in ended.items() if k not in other} if failed else None,
    )


class JobFiles:
    """Files of one attempt: a directory by input or output and read mode, filled on first use."""

    def __init__(self, trees: FileTrees, directory: Path) -> None:
        self._trees = trees
        self._directory = directory
        self._fills: dict[str, Fill] = {}

    def of_input(self, name: str, given: InputOrder) -> dict[str, str] | None:
        """Return the directories of an input by read mode; the default one is filled."""
        if given.root is None:
            return None
        now = Digest(given.root)
        current = self._add_lazy(f"inputs/{name}/current", partial(self._trees.download, now))
        if given.since_root is None:
            self.fill(current)
            return _by_mode(current, current, self._add_empty(f"inputs/{name}/previous"))
        before = Digest(given.since_root)
        added = self._add_lazy(f"inputs/{name}/added", partial(self._download_added, before, now))
        self.fill(added)
        previous = self._add_lazy(f"inputs/{name}/previous", partial(self._trees.download, before))
        return _by_mode(current, added, previous)

    def of_output(self, name: str, target: OutputOrder) -> dict[str, str] | None:
        """Return the directories of an output: for new files, and for the earlier ones."""
        if not target.is_files:
            return None
        own = self._add_empty(f"outputs/{name}/written")
        if target.base_root is None:
            return _by_mode(own, own, self._add_empty(f"outputs/{name}/previous"))
        fill = partial(self._trees.download, Digest(target.base_root))
        return _by_mode(own, own, self._add_lazy(f"outputs/{name}/previous", fill))

    def fill(self, directory: str) -> None:
        """Download the content of a directory, which appears when it is complete."""
        if directory not in self._fills:
            raise Invalid(f"{directory} is not a directory of this job.")
        target = Path(directory)
        if target.is_dir():
            return
        unfinished = target.with_name(f".{target.name}")
        unfinished.mkdir(parents=True)
        self._fills[directory](unfinished)
        unfinished.rename(target)

    def store(self, name: str) -> list[Entry]:
        """Upload what the job wrote, and return its entries."""
        return self._trees.upload(self._directory / "outputs" / name / "written")

    def _add_lazy(self, place: str, fill: Fill) -> str:
        directory = str(self._directory / place)
        self._fills[directory] = fill
        return directory

    def _add_empty(self, place: str) -> str:
        directory = self._directory / place
        directory.mkdir(parents=True, exist_ok=True)
        return str(directory)

    def _download_added(self, before: Digest, now: Digest, target: Path) -> None:
        changes = self._trees.difference(before, now)
        added = (c.after for c in changes if c.kind is ChangeKind.ADDED and c.after)
        download(self._trees.objects, added, target)


def _by_mode(current: str, added: str, previous: str) -> dict[str, str]:
    return {
        ReadMode.CURRENT.value: current,
        ReadMode.ADDED.value: added,
        ReadMode.PREVIOUS.value: previous,
    }
