"""One attempt of one job as a build sees it: what it is given, how it ends, how it is stopped."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from headgate.files.entries import Entry
from headgate.model.freshness import Decision
from headgate.model.ids import TransactionId
from headgate.model.incrementality import Extent, Span
from headgate.model.names import DatasetName
from headgate.model.nouns import AttemptRef, DatasetKind

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
