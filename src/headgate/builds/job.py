"""One attempt of one job on Spark: what it may touch, its process, and what came of it."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from headgate.builds.attempting import JobResult, JobWork, Pinned, Progress, log_of
from headgate.builds.bundle import unpack_bundle
from headgate.builds.parts import Parts
from headgate.builds.publishing import bundle_key
from headgate.catalog.attempts import equip_attempt
from headgate.catalog.find import load_transaction
from headgate.catalog.stage import stage_version
from headgate.endpoint.authorizing import job_id
from headgate.files.writing import FileEdit, root_of, stage_edit
from headgate.model.freshness import effective_parameters
from headgate.model.nouns import DatasetKind, Transaction
from headgate.spark.conf import catalog_conf
from headgate.spark.document import EventKind, JobDocument, Source, Target
from headgate.spark.processes import JobProcess


class SparkJobs:
    """Jobs are done on Spark: one JVM for all, and a process for each, made ready beforehand."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def expect(self, count: int) -> None:
        workplace = self._parts.workplace
        # Processes load what they need while the JVM starts.
        workplace.keep_ready(count)
        workplace.jvm()
        workplace.keep_ready(count)

    def start(self, work: JobWork) -> SparkAttempt:
        return SparkAttempt(self._parts, work)


class SparkAttempt:
    """Runs one attempt in a process of its own, on the JVM that all jobs share."""

    def __init__(self, parts: Parts, work: JobWork) -> None:
        self._parts = parts
        self._workplace = parts.workplace
        self._work = work
        self._directory = work.directory
        self._lock = threading.Lock()
        self._process: JobProcess | None = None
        self._stopped: str | None = None
        name = work.attempt.key.replace("/", "-")
        self._tag = f"headgate-{name}-{work.attempt.epoch}"
        # Its session has a tag too, which also marks what the user's threads run.
        self._tags: tuple[str, ...] = (self._tag,)

    def run(self, progress: Progress) -> JobResult:
        self._directory.mkdir(parents=True, exist_ok=True)
        document = self._document(self._equip())
        process = self._workplace.process()
        with self._lock:
            self._process = process
            stopped = self._stopped is not None
        try:
            if stopped:
                process.kill()
            process.begin(document)
            with self._deadline():
                result = self._listen(process, progress)
        finally:
            process.kill()
            process.close()
            # Whatever the process left running in the shared JVM ends with it.
            self._workplace.cancel(self._tags)
        if result.succeeded and not result.aborted:
            self._settle_outputs(result)
        return result

    def stop(self, reason: str) -> None:
        with self._lock:
            self._stopped = self._stopped or reason
            process = self._process
        if process is not None:
            process.kill()
            self._workplace.cancel(self._tags)

    @contextlib.contextmanager
    def _deadline(self) -> Iterator[None]:
        seconds = self._work.decision.job.spec.declaration.allowed_run_seconds
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

    def _equip(self) -> str:
        token = secrets.token_urlsafe(32)
        equip_attempt(
            self._parts.database,
            self._work.attempt,
            token=token,
            scope={
                "branch": self._work.branch,
                "inputs": {
                    str(p.dataset): {"transaction": p.transaction, "branch": p.branch}
                    for p in self._work.inputs.values()
                },
                "outputs": {str(name): id for name, id in self._work.outputs.items()},
            },
        )
        return token

    def _document(self, token: str) -> JobDocument:
        work, spec = self._work, self._work.decision.job.spec
        return JobDocument(
            module=spec.declaration.module,
            bundle=str(self._bundle(spec.bundle)),
            inputs={name: self._source(name, pin) for name, pin in work.inputs.items()},
            outputs={
                output.name: Target(
                    dataset=str(output.dataset),
                    branch=work.branch,
                    files=self._output_directory(output.name)
                    if output.kind is DatasetKind.FILES
                    else None,
                )
                for output in spec.outputs
            },
            conf=catalog_conf(
                uri=self._workplace.url,
                warehouse=f"job:{job_id(work.attempt.key, work.attempt.epoch)}",
                token=token,
            ),
            tag=self._tag,
            directory=str(self._directory),
            log=str(log_of(work)),
            branch=work.branch,
            fallback=work.fallback,
            parameters=effective_parameters(spec, work.parameters),
        )

    def _bundle(self, digest: str) -> Path:
        """The unpacked code, which stays on this machine for all that use the same."""
        home = self._parts.settings.cache / "bundles"
        if (home / digest).is_dir():
            return home / digest
        return unpack_bundle(self._parts.objects.get(bundle_key(digest)), digest, home)

    def _source(self, name: str, pin: Pinned) -> Source:
        files = None
        if pin.kind is DatasetKind.FILES:
            target = self._directory / "inputs" / name
            target.mkdir(parents=True, exist_ok=True)
            read = self._parts.database.read(lambda c: load_transaction(c, pin.transaction))
            self._parts.contents.trees.download(root_of(read.version), target)
            files = str(target)
        return Source(
            dataset=str(pin.dataset),
            branch=pin.branch,
            transaction=pin.transaction,
            files=files,
        )

    def _output_directory(self, name: str) -> str:
        directory = self._directory / "outputs" / name
        directory.mkdir(parents=True, exist_ok=True)
        return str(directory)

    def _listen(self, process: JobProcess, progress: Progress) -> JobResult:
        rows = 0
        ended: dict[str, Any] | None = None
        for event in process.events():
            if event["event"] == EventKind.STARTED:
                self._tags = tuple(event["tags"])
            if event["event"] == EventKind.WRITTEN:
                rows += event.get("rows", 0)
            if event["event"] in {EventKind.DONE, EventKind.FAILED}:
                ended = event
            progress(event)
        code = process.wait()
        if self._stopped is not None:
            return JobResult(succeeded=False, error={"message": self._stopped})
        if ended is None:
            why = f"the job's process ended with code {code}; its log is {log_of(self._work)}"
            return JobResult(succeeded=False, error={"message": why})
        return _result(ended, rows)

    def _settle_outputs(self, result: JobResult) -> None:
        """Files that were written are staged; a table that was not keeps what it showed."""
        for output in self._work.decision.job.spec.outputs:
            id = self._work.outputs[output.dataset]
            transaction = self._parts.database.read(partial(load_transaction, id=id))
            written = output.name in result.written
            if output.kind is DatasetKind.FILES and written:
                self._store_files(transaction, output.name)
            elif output.kind is DatasetKind.TABLE and not written:
                self._keep_shown(transaction)

    def _store_files(self, transaction: Transaction, name: str) -> None:
        trees = self._parts.contents.trees
        stage_edit(
            self._parts.database,
            trees,
            transaction,
            FileEdit(put=trees.upload(self._directory / "outputs" / name)),
            attempt=self._work.attempt,
        )

    def _keep_shown(self, transaction: Transaction) -> None:
        parent = transaction.parent
        if parent is None or transaction.version is not None:
            return
        before = self._parts.database.read(partial(load_transaction, id=parent))
        if before.version is not None:
            stage_version(
                self._parts.database,
                transaction.id,
                before.version,
                expected=None,
                attempt=self._work.attempt,
            )


def _result(ended: Mapping[str, Any], rows: int) -> JobResult:
    """What the last event of a job's process says."""
    failed = ended["event"] == EventKind.FAILED
    told = {"event", "spark_jobs", "checks"}
    return JobResult(
        succeeded=not failed,
        written=tuple(ended.get("written", ())),
        aborted=bool(ended.get("aborted")),
        rows=rows,
        spark_jobs=ended.get("spark_jobs") or 0,
        checks=tuple(ended.get("checks", ())),
        error={k: v for k, v in ended.items() if k not in told} if failed else None,
    )
