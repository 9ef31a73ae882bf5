"""Attempts of jobs: the work of an attempt, its result, its order and the staging of its outputs.

An order names everything by id and digest, so that an attempt can run in this process's Spark or
at a client. Job events are defined here too; the ledger emits them.
"""

from __future__ import annotations

import enum
import secrets
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from headgate.attempts import Contents
from headgate.builds.plan import PlanRequest
from headgate.catalog.attempts import set_attempt_scope
from headgate.catalog.database import Database
from headgate.catalog.records import load_transaction
from headgate.catalog.transactions import stage_version
from headgate.errors import HeadgateError, VersionExpired
from headgate.files.edits import FileEdit, root_of, stage_edit
from headgate.files.objects import Digest
from headgate.files.tree import Entry
from headgate.model.freshness import Decision, effective_parameters
from headgate.model.ids import BuildId, TransactionId
from headgate.model.incrementality import Extent, Span
from headgate.model.jobspecs import OutputSpec
from headgate.model.names import DatasetName
from headgate.model.nouns import AttemptRef, DatasetKind, Transaction
from headgate.model.object_store import ObjectStore
from headgate.settings import Settings
from headgate.spark.job_protocol import InputOrder, JobOrder, OutputOrder
from headgate.tables.snapshots import current_snapshot_id

if TYPE_CHECKING:
    # Slow to load: it brings the HTTP server.
    from headgate.spark.workplace import Workplace

# --- work and result ------------------------------------------------------------------------

# Builds whose logs are kept; older ones are deleted after a week.
_KEPT_BUILDS = 200
_KEPT_SECONDS = 7 * 24 * 3600

Progress = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True, kw_only=True)
class Pinned:
    """An input, pinned to one transaction."""

    dataset: DatasetName
    branch: str
    transaction: TransactionId
    kind: DatasetKind


@dataclass(frozen=True, kw_only=True)
class JobWork:
    """Everything that one attempt needs."""

    decision: Decision
    attempt: AttemptRef
    inputs: Mapping[str, Pinned]
    # Of an incremental job: the Iceberg snapshot of each table that it reads.
    snapshots: Mapping[str, int]
    outputs: Mapping[DatasetName, TransactionId]
    request: PlanRequest
    # Of this attempt alone; has its log, and the files that it reads and writes.
    directory: Path

    @property
    def is_incremental(self) -> bool:
        extent = self.decision.incremental
        return extent is not None and extent.extent is Extent.INCREMENTAL

    @property
    def added(self) -> Mapping[str, Span]:
        """Return the new part of each input, where the job reads only that."""
        extent = self.decision.incremental
        return {span.name: span for span in extent.reads} if extent is not None else {}


@dataclass(frozen=True, kw_only=True)
class JobResult:
    """Result of an attempt; `error` has the line and traceback of the user's code."""

    succeeded: bool
    written: tuple[str, ...] = ()
    # Outputs of files whose earlier content is replaced.
    replaced: tuple[str, ...] = ()
    # Entries of each written output of files; their contents are stored already.
    files: Mapping[str, Sequence[Entry]] = field(default_factory=dict)
    aborted: bool = False
    rows: int = 0
    spark_jobs: int = 0
    # Results of its checks, in the form stored with a transaction.
    checks: tuple[Mapping[str, Any], ...] = ()
    error: Mapping[str, Any] | None = None


def failed(error: HeadgateError) -> JobResult:
    """Return the result of an attempt that an error of Headgate or of the machine ended."""
    return JobResult(succeeded=False, error={"message": error.message, "code": error.code})


class Attempt(Protocol):
    """One attempt of a job; stages all outputs before it returns a success."""

    def run(self, progress: Progress) -> JobResult: ...

    def stop(self, reason: str) -> None:
        """Stop it, from any thread and at any time; its result then has this reason."""


class Jobs(Protocol):
    """Engine or client that runs the jobs of a build."""

    def expect(self, count: int) -> None:
        """Prepare for this many further jobs."""

    def start(self, work: JobWork) -> Attempt: ...


def log_in(directory: Path) -> Path:
    """Return the log file of an attempt's directory: what the user's code prints."""
    return directory / "job.log"


def read_log(home: Path, log: str | None, *, most_bytes: int) -> tuple[str, bool] | None:
    """Return the end of a job's log, and whether its beginning is cut off.

    None if the log is on another machine, or deleted.
    """
    if log is None:
        return None
    path = Path(log).resolve()
    # The build recorded this path: reject any that is outside the build's own directory.
    if not path.is_relative_to(home.resolve()) or not path.is_file():
        return None
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - most_bytes))
        text = file.read().decode(errors="replace")
    is_cut = size > most_bytes
    return text.partition("\n")[2] if is_cut else text, is_cut


def keep_only_logs(directory: Path) -> None:
    """Delete the files of a finished build except its logs, and the logs of old builds."""
    for attempt in directory.iterdir() if directory.is_dir() else ():
        for path in attempt.iterdir() if attempt.is_dir() else ():
            if path != log_in(attempt):
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    # Ids of builds begin with their time.
    for old in sorted(directory.parent.iterdir(), reverse=True)[_KEPT_BUILDS:]:
        if time.time() - old.stat().st_mtime > _KEPT_SECONDS:
            shutil.rmtree(old, ignore_errors=True)


def job_key(build: BuildId, position: int) -> str:
    """Return the task key of a build's job."""
    return f"{build}/{position}"


def job_position(key: str) -> int:
    """Return the position of a job in its build, from its task key."""
    return int(key.rpartition("/")[2])


# --- events ---------------------------------------------------------------------------------


class JobEventType(enum.StrEnum):
    """Event types of OpenLineage."""

    START = "START"
    COMPLETE = "COMPLETE"
    FAIL = "FAIL"
    ABORT = "ABORT"


@dataclass(frozen=True, kw_only=True)
class JobEvent:
    """Start or end of an attempt or, without an attempt, of an adopted job."""

    type: JobEventType
    at: datetime
    actor: str
    build: BuildId
    branch: str
    fallback: tuple[str, ...]
    position: int
    decision: Decision
    attempt: AttemptRef | None
    # Dataset, branch and transaction, as in the JSON of a build.
    inputs: tuple[Mapping[str, Any], ...]
    # Transactions by dataset: committed ones in COMPLETE, else those that were open.
    outputs: Mapping[str, str]
    rows: int = 0
    spark_jobs: int = 0
    error: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Services of the store that a build uses."""

    settings: Settings
    database: Database
    objects: ObjectStore
    contents: Contents
    workplace: Workplace
    # Receives job events after the catalog transaction commits; must neither block nor raise.
    listener: Callable[[JobEvent], None] | None = None


# --- orders ---------------------------------------------------------------------------------


def make_order(parts: Parts, work: JobWork) -> JobOrder:
    """Return the order of an attempt, with a token for the datasets that it reads and writes."""
    spec, extent = work.decision.job.spec, work.decision.incremental
    return JobOrder(
        key=work.attempt.key,
        epoch=work.attempt.epoch,
        token=_issue_token(parts, work),
        module=spec.declaration.module,
        bundle=spec.bundle,
        inputs={n: _input(parts, pin, work.added.get(n)) for n, pin in work.inputs.items()},
        outputs={output.name: _output(parts, work, output) for output in spec.outputs},
        branch=work.request.branch,
        fallback=work.request.fallback,
        incremental=work.is_incremental,
        extent=str(extent) if extent is not None else None,
        parameters=effective_parameters(spec, work.request.parameters),
        allowed_run_seconds=spec.declaration.allowed_run_seconds,
    )


def stage_outputs(parts: Parts, work: JobWork, result: JobResult) -> None:
    """Stage the files that were written; a table that was not written keeps its content."""
    for output in work.decision.job.spec.outputs:
        transaction = _load(parts, work.outputs[output.dataset])
        written = output.name in result.written
        if output.kind is DatasetKind.FILES and written:
            _stage_files(parts, work, transaction, output.name, result)
        elif output.kind is DatasetKind.TABLE and not written:
            _keep_content(parts, work, transaction)


def _issue_token(parts: Parts, work: JobWork) -> str:
    token = secrets.token_urlsafe(32)
    set_attempt_scope(
        parts.database,
        work.attempt,
        token=token,
        scope={
            "branch": work.request.branch,
            "inputs": {
                str(p.dataset): {"transaction": p.transaction, "branch": p.branch}
                for p in work.inputs.values()
            },
            "outputs": {str(name): id for name, id in work.outputs.items()},
        },
    )
    return token


def _input(parts: Parts, pin: Pinned, span: Span | None) -> InputOrder:
    since = span.since.transaction if span is not None and span.since is not None else None
    is_files = pin.kind is DatasetKind.FILES
    return InputOrder(
        dataset=str(pin.dataset),
        branch=pin.branch,
        transaction=pin.transaction,
        since_snapshot=span.since_snapshot if span is not None else None,
        root=_root(parts, pin.transaction) if is_files else None,
        since_root=_root(parts, since) if is_files and since is not None else None,
    )


def _output(parts: Parts, work: JobWork, output: OutputSpec) -> OutputOrder:
    held = _load(parts, work.outputs[output.dataset]).version
    is_files = output.kind is DatasetKind.FILES
    snapshot = None
    if not is_files and held is not None and work.is_incremental:
        snapshot = current_snapshot_id(parts.contents.tables.read(held.location).metadata)
    return OutputOrder(
        dataset=str(output.dataset),
        is_files=is_files,
        base_snapshot=snapshot,
        base_root=root_of(held) if is_files and held is not None else None,
    )


def _root(parts: Parts, id: TransactionId) -> Digest:
    found = _load(parts, id)
    if found.condemned:
        raise VersionExpired(what=f"transaction {id} of {found.dataset}")
    return root_of(found.version)


def _stage_files(
    parts: Parts, work: JobWork, transaction: Transaction, name: str, result: JobResult
) -> None:
    """Add to the files of the output, or replace all of them."""
    trees = parts.contents.trees
    put = result.files[name]
    kept = {entry.path for entry in put}
    before = trees.walk(root_of(transaction.version))
    gone = [e.path for e in before if e.path not in kept] if name in result.replaced else []
    edit = FileEdit(put=put, remove=gone)
    stage_edit(parts.database, trees, transaction, edit, attempt=work.attempt)


def _keep_content(parts: Parts, work: JobWork, transaction: Transaction) -> None:
    parent = transaction.parent
    if parent is None or transaction.version is not None:
        return
    before = _load(parts, parent)
    if before.version is not None:
        stage_version(
            parts.database, transaction.id, before.version, expected=None, attempt=work.attempt
        )


def _load(parts: Parts, id: TransactionId) -> Transaction:
    return parts.database.read(partial(load_transaction, id=id))
