"""One attempt of one job as a build sees it: what it is given, how it ends, how it is stopped."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from headgate.model.freshness import Decision
from headgate.model.ids import TransactionId
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
    outputs: Mapping[DatasetName, TransactionId]
    branch: str
    fallback: tuple[str, ...]
    parameters: Mapping[str, Any]
    # Of this attempt alone: its log, and the files that it reads and writes.
    directory: Path


@dataclass(frozen=True, kw_only=True)
class JobResult:
    """How an attempt ended; `error` has the user's line and traceback where it failed."""

    succeeded: bool
    written: tuple[str, ...] = ()
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


def log_of(work: JobWork) -> Path:
    """What the user's code prints goes here."""
    return work.directory / "job.log"
