"""One attempt of one job: what it may touch, its process, and what came of it."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from headgate.builds.bundle import unpack_bundle
from headgate.builds.parts import Parts
from headgate.builds.publishing import bundle_key
from headgate.catalog.attempts import equip_attempt
from headgate.catalog.find import load_transaction
from headgate.endpoint.authorizing import job_id
from headgate.files.writing import FileEdit, root_of, stage_edit
from headgate.model.freshness import Decision, effective_parameters
from headgate.model.ids import TransactionId
from headgate.model.names import DatasetName
from headgate.model.nouns import AttemptRef, DatasetKind
from headgate.spark.conf import catalog_conf
from headgate.spark.document import EventKind, JobDocument, Source, Target
from headgate.spark.processes import JobProcess
from headgate.spark.workplace import Workplace

Progress = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, kw_only=True)
class Pinned:
    """An input, pinned to the transaction that this run reads."""

    dataset: DatasetName
    branch: str
    transaction: TransactionId
    kind: DatasetKind


@dataclass(frozen=True, kw_only=True)
class JobWork:
    """Everything one attempt needs to know."""

    decision: Decision
    attempt: AttemptRef
    inputs: Mapping[str, Pinned]
    outputs: Mapping[DatasetName, TransactionId]
    branch: str
    fallback: tuple[str, ...]
    parameters: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class JobResult:
    """How an attempt ended; `error` has the user's line and traceback where it failed."""

    succeeded: bool
    written: tuple[str, ...] = ()
    aborted: bool = False
    rows: int = 0
    spark_jobs: int = 0
    error: Mapping[str, Any] | None = None


class JobAttempt:
    """Runs one attempt in a process of its own; may be cancelled from another thread."""

    def __init__(self, parts: Parts, workplace: Workplace, work: JobWork) -> None:
        self._parts = parts
        self._workplace = workplace
        self._work = work
        self._process: JobProcess | None = None
        self._stopped: str | None = None
        name = work.attempt.key.replace("/", "-")
        self._directory = workplace.directory / f"{name}-{work.attempt.epoch}"
        self._tag = f"headgate-{name}-{work.attempt.epoch}"

    @property
    def log_path(self) -> Path:
        return self._directory / "job.log"

    def run(self, progress: Progress) -> JobResult:
        self._directory.mkdir(parents=True, exist_ok=True)
        declaration = self._work.decision.job.spec.declaration
        document = self._document(self._equip())
        process = JobProcess.start(
            document,
            self.log_path,
            environ=self._parts.settings.environ,
            cwd=self._directory,
        )
        self._process = process
        timer = None
        if declaration.allowed_run_seconds is not None:
            seconds = declaration.allowed_run_seconds
            timer = threading.Timer(seconds, self.stop, [f"it ran for more than {seconds:g} s"])
            timer.start()
        try:
            result = self._listen(process, progress)
        finally:
            if timer is not None:
                timer.cancel()
            process.kill()
            process.close()
            # Whatever the process left running in the shared JVM ends with it.
            self._workplace.cancel([self._tag])
        return self._store_files(result) if result.succeeded and not result.aborted else result

    def stop(self, reason: str) -> None:
        """Ends the process and its Spark jobs; the attempt then reports this reason."""
        self._stopped = reason
        if self._process is not None:
            self._process.kill()
        self._workplace.cancel([self._tag])

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
        bundle = unpack_bundle(
            self._parts.objects.get(bundle_key(spec.bundle)),
            spec.bundle,
            self._parts.settings.cache / "bundles",
        )
        address = self._workplace.jvm().address
        return JobDocument(
            module=spec.declaration.module,
            bundle=str(bundle),
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
            gateway_port=address.port,
            gateway_secret=address.secret,
            branch=work.branch,
            fallback=work.fallback,
            parameters=effective_parameters(spec, work.parameters),
        )

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
            if event["event"] == EventKind.WRITTEN:
                rows += event.get("rows", 0)
            if event["event"] in {EventKind.DONE, EventKind.FAILED}:
                ended = event
            progress(event)
        code = process.wait()
        if self._stopped is not None:
            return JobResult(succeeded=False, error={"message": self._stopped})
        if ended is None:
            why = f"the job's process ended with code {code}; its log is {self.log_path}"
            return JobResult(succeeded=False, error={"message": why})
        if ended["event"] == EventKind.FAILED:
            facts = {k: v for k, v in ended.items() if k not in {"event", "spark_jobs"}}
            return JobResult(
                succeeded=False, error=facts, spark_jobs=ended.get("spark_jobs", 0), rows=rows
            )
        return JobResult(
            succeeded=True,
            written=tuple(ended.get("written", ())),
            aborted=bool(ended.get("aborted")),
            rows=rows,
            spark_jobs=ended.get("spark_jobs", 0),
        )

    def _store_files(self, result: JobResult) -> JobResult:
        """What a job put into an output directory becomes that transaction's working tree."""
        trees = self._parts.contents.trees
        for output in self._work.decision.job.spec.outputs:
            if output.kind is not DatasetKind.FILES or output.name not in result.written:
                continue
            entries = trees.upload(self._directory / "outputs" / output.name)
            id = self._work.outputs[output.dataset]
            transaction = self._parts.database.read(partial(load_transaction, id=id))
            stage_edit(
                self._parts.database,
                trees,
                transaction,
                FileEdit(put=entries),
                attempt=self._work.attempt,
            )
        return result
