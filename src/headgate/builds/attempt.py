"""The catalog's half of an attempt: what is ordered, and what is staged of what was done."""

from __future__ import annotations

import enum
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from headgate.attempts import Contents
from headgate.catalog.attempts import equip_attempt
from headgate.catalog.database import Database
from headgate.catalog.records import load_transaction
from headgate.catalog.transactions import stage_version
from headgate.errors import VersionExpired
from headgate.files.objects import Digest
from headgate.files.publication import FileEdit, root_of, stage_edit
from headgate.files.tree import Entry
from headgate.model.freshness import Decision, effective_parameters
from headgate.model.ids import BuildId, TransactionId
from headgate.model.incrementality import Extent, Span
from headgate.model.jobspecs import OutputSpec
from headgate.model.names import DatasetName
from headgate.model.nouns import AttemptRef, DatasetKind, Transaction
from headgate.model.ports import ObjectStore
from headgate.settings import Settings
from headgate.tables.classify import tip_of

if TYPE_CHECKING:
    from headgate.builds.ledger import Ledger
    from headgate.spark.workplace import Workplace


# One attempt of one job as a build sees it: what it is given, how it ends, how it is stopped.

Progress = Callable[[Mapping[str, Any]], None]


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
    # Of an incremental job: by table that it reads, the Iceberg snapshot.
    snapshots: Mapping[str, int]
    outputs: Mapping[DatasetName, TransactionId]
    branch: str
    fallback: tuple[str, ...]
    parameters: Mapping[str, Any]
    # Of this attempt alone: its log, and the files that it reads and writes.
    directory: Path

    @property
    def is_incremental(self) -> bool:
        extent = self.decision.incremental
        return extent is not None and extent.extent is Extent.INCREMENTAL

    @property
    def added(self) -> Mapping[str, Span]:
        """By input: what of it is new, where the job is to read only that."""
        extent = self.decision.incremental
        return {span.name: span for span in extent.reads} if extent is not None else {}


@dataclass(frozen=True, kw_only=True)
class JobResult:
    """How an attempt ended; `error` has the user's line and traceback where it failed."""

    succeeded: bool
    written: tuple[str, ...] = ()
    # Of the written ones: those whose files stand in place of all that were there.
    replaced: tuple[str, ...] = ()
    # By output of files that was written: what is in it, whose contents are stored.
    files: Mapping[str, Sequence[Entry]] = field(default_factory=dict)
    aborted: bool = False
    rows: int = 0
    spark_jobs: int = 0
    # What its checks found, in the form that is kept with a transaction.
    checks: tuple[Mapping[str, Any], ...] = ()
    error: Mapping[str, Any] | None = None


class Attempt(Protocol):
    """Whatever does a job's work: it stages all outputs before it says that it succeeded."""

    def run(self, progress: Progress) -> JobResult: ...

    def stop(self, reason: str) -> None:
        """Ends it from another thread, at whatever moment; it then reports this reason."""
        ...


class Jobs(Protocol):
    """Where jobs are done."""

    def expect(self, count: int) -> None:
        """So many jobs are still to come: what they need may be made ready."""
        ...

    def start(self, work: JobWork) -> Attempt: ...


def log_in(directory: Path) -> Path:
    """What the user's code prints goes here, in the directory of its attempt."""
    return directory / "job.log"


# What happened to a job, for those who listen: told only after the catalog has it.

# Only its type: a ledger tells with what is defined here.


class Happened(enum.StrEnum):
    """The four words that OpenLineage has for it too."""

    START = "START"
    COMPLETE = "COMPLETE"
    FAIL = "FAIL"
    ABORT = "ABORT"


@dataclass(frozen=True, kw_only=True)
class JobHappening:
    """One step of one attempt of a job; of an adopted job, which has no attempt, of the job."""

    what: Happened
    at: datetime
    actor: str
    build: BuildId
    build_attempt: AttemptRef
    branch: str
    fallback: tuple[str, ...]
    position: int
    decision: Decision
    attempt: AttemptRef | None
    # As in the JSON of a build: dataset, branch, transaction.
    inputs: tuple[Mapping[str, Any], ...]
    # Transactions by dataset: committed ones where it is complete, else those that were open.
    outputs: Mapping[str, str]
    rows: int = 0
    spark_jobs: int = 0
    error: Mapping[str, Any] | None = None


Listen = Callable[[JobHappening], None]


def nobody(_: JobHappening) -> None:
    """Where nobody listens."""


def tell(ledger: Ledger, position: int, what: Happened, attempt: AttemptRef | None) -> None:
    """Tells whoever listens; the listener sees to it that it neither fails nor waits."""
    report, opened = ledger.reports[position], ledger.opened
    outputs = report.transactions or {
        str(name): id for name, id in opened.transactions.get(position, {}).items()
    }
    published = what is not Happened.COMPLETE or bool(report.transactions)
    ledger.parts.listen(
        JobHappening(
            what=what,
            at=datetime.now(UTC),
            actor=ledger.actor,
            build=opened.id,
            build_attempt=opened.attempt,
            branch=opened.plan.request.branch,
            fallback=opened.plan.request.fallback,
            position=position,
            decision=report.decision,
            attempt=attempt,
            inputs=tuple(dict(given) for given in report.inputs),
            outputs=outputs if published else {},
            rows=report.rows,
            spark_jobs=report.spark_jobs,
            error=dict(report.error) if report.error else None,
        )
    )


def tell_adopted(ledger: Ledger) -> None:
    """What was adopted has happened by the time a build is open, or at the end of an atomic one."""
    for position, report in enumerate(ledger.reports):
        if report.decision.candidate is not None:
            tell(ledger, position, Happened.START, None)
            tell(ledger, position, Happened.COMPLETE, None)


def tell_staged(ledger: Ledger, what: Happened) -> None:
    """The jobs of an atomic build, whose one publication was made, or never will be."""
    for position, report in enumerate(ledger.reports):
        if report.transactions and report.decision.candidate is None:
            tell(ledger, position, what, ledger.attempt(position))


# What a build works with, handed in by the store.

# Slow to load: it brings the HTTP server.


@dataclass(frozen=True, kw_only=True)
class Parts:
    settings: Settings
    database: Database
    objects: ObjectStore
    contents: Contents
    workplace: Workplace
    listen: Listen = nobody


# One attempt as it is ordered: all that whoever does it has to know, wherever that is.


@dataclass(frozen=True, kw_only=True)
class InputOrder:
    """An input, pinned; of files, the root of its tree and of the one that was read last."""

    dataset: str
    branch: str
    transaction: str
    # The Iceberg snapshot that was read last, where only what is newer is to be read.
    since_snapshot: int | None = None
    root: str | None = None
    since_root: str | None = None


@dataclass(frozen=True, kw_only=True)
class OutputOrder:
    """An output, and what it held before: an Iceberg snapshot, or the root of a tree."""

    dataset: str
    is_files: bool
    base_snapshot: int | None = None
    base_root: str | None = None


@dataclass(frozen=True, kw_only=True)
class JobOrder:
    """Names everything by id and digest; the token opens this attempt's own context alone."""

    key: str
    epoch: int
    token: str
    module: str
    # Digest of the code.
    bundle: str
    inputs: Mapping[str, InputOrder]
    outputs: Mapping[str, OutputOrder]
    branch: str
    fallback: tuple[str, ...] = ()
    incremental: bool = False
    # How much it reads and why, for the log.
    extent: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    allowed_run_seconds: float | None = None

    @property
    def id(self) -> str:
        """The attempt's name, as in the context `job:<id>`."""
        return f"{self.key}:{self.epoch}"

    @property
    def name(self) -> str:
        """The same as a file may be called, and a Spark job tagged."""
        return f"{self.key.replace('/', '-')}-{self.epoch}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, sent: Mapping[str, Any]) -> Self:
        told = dict(sent)
        told["inputs"] = {name: InputOrder(**given) for name, given in sent["inputs"].items()}
        told["outputs"] = {name: OutputOrder(**given) for name, given in sent["outputs"].items()}
        told["fallback"] = tuple(sent["fallback"])
        return cls(**told)


def make_order(parts: Parts, work: JobWork) -> JobOrder:
    """Gives the attempt a token for what it may touch, and says what is to be done."""
    return _Ordering(parts, work).order()


def settle_outputs(parts: Parts, work: JobWork, result: JobResult) -> None:
    """Files that were written are staged; a table that was not keeps what it showed."""
    for output in work.decision.job.spec.outputs:
        transaction = _load(parts, work.outputs[output.dataset])
        written = output.name in result.written
        if output.kind is DatasetKind.FILES and written:
            _stage_files(parts, work, transaction, output.name, result)
        elif output.kind is DatasetKind.TABLE and not written:
            _keep_shown(parts, work, transaction)


class _Ordering:
    def __init__(self, parts: Parts, work: JobWork) -> None:
        self._parts = parts
        self._work = work

    def order(self) -> JobOrder:
        work, spec = self._work, self._work.decision.job.spec
        extent = work.decision.incremental
        return JobOrder(
            key=work.attempt.key,
            epoch=work.attempt.epoch,
            token=self._equip(),
            module=spec.declaration.module,
            bundle=spec.bundle,
            inputs={name: self._input(name, pin) for name, pin in work.inputs.items()},
            outputs={output.name: self._output(output) for output in spec.outputs},
            branch=work.branch,
            fallback=work.fallback,
            incremental=work.is_incremental,
            extent=str(extent) if extent is not None else None,
            parameters=effective_parameters(spec, work.parameters),
            allowed_run_seconds=spec.declaration.allowed_run_seconds,
        )

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

    def _input(self, name: str, pin: Pinned) -> InputOrder:
        span = self._work.added.get(name)
        since = span.since.transaction if span is not None and span.since is not None else None
        is_files = pin.kind is DatasetKind.FILES
        return InputOrder(
            dataset=str(pin.dataset),
            branch=pin.branch,
            transaction=pin.transaction,
            since_snapshot=span.since_snapshot if span is not None else None,
            root=self._root(pin.transaction) if is_files else None,
            since_root=self._root(since) if is_files and since is not None else None,
        )

    def _output(self, output: OutputSpec) -> OutputOrder:
        held = _load(self._parts, self._work.outputs[output.dataset]).version
        is_files = output.kind is DatasetKind.FILES
        snapshot = None
        if not is_files and held is not None and self._work.is_incremental:
            snapshot = tip_of(self._parts.contents.tables.read(held.location).metadata)
        return OutputOrder(
            dataset=str(output.dataset),
            is_files=is_files,
            base_snapshot=snapshot,
            base_root=root_of(held) if is_files and held is not None else None,
        )

    def _root(self, id: TransactionId) -> Digest:
        found = _load(self._parts, id)
        if found.condemned:
            raise VersionExpired(what=f"transaction {id} of {found.dataset}")
        return root_of(found.version)


def _stage_files(
    parts: Parts, work: JobWork, transaction: Transaction, name: str, result: JobResult
) -> None:
    """On top of what the output held, or in place of all of it."""
    trees = parts.contents.trees
    put = result.files[name]
    kept = {entry.path for entry in put}
    before = trees.walk(root_of(transaction.version))
    gone = [e.path for e in before if e.path not in kept] if name in result.replaced else []
    edit = FileEdit(put=put, remove=gone)
    stage_edit(parts.database, trees, transaction, edit, attempt=work.attempt)


def _keep_shown(parts: Parts, work: JobWork, transaction: Transaction) -> None:
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
