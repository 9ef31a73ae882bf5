"""Requests and outcomes of the verbs on rows, equal for an embedded and a served store."""

import enum
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

from headgate.catalog.database import Database
from headgate.files.tree_store import FileTrees
from headgate.model.changes import Caller, OperationKey
from headgate.model.ids import OperationId, PublicationNumber, TransactionId
from headgate.model.names import DatasetName, parse_dataset_name
from headgate.tables.versions import TableVersions


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Rows of a table that were inserted, updated and deleted."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0

    def __bool__(self) -> bool:
        return bool(self.inserted or self.updated or self.deleted)

    def to_json(self) -> dict[str, int]:
        return asdict(self)


TIMEOUT_SECONDS = 60.0


class Interrupt:
    """Ends the work on a request from another thread, as for a client that disconnects."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._error: Exception | None = None
        self._acts: list[Callable[[Exception], None]] = []

    def set(self, error: Exception) -> None:
        """Let the work end with this error, if it has not ended yet."""
        with self._lock:
            self._error = self._error or error
            for act in self._acts:
                act(self._error)

    @property
    def is_set(self) -> bool:
        return self._error is not None

    def check(self) -> None:
        """Raise the error that the work is to end with, if any."""
        if self._error is not None:
            raise self._error

    @contextmanager
    def calling(self, act: Callable[[Exception], None]) -> Iterator[None]:
        """Call `act` with the error when the interrupt is set, within this block."""
        with self._lock:
            self._acts.append(act)
            if self._error is not None:
                act(self._error)
        try:
            yield
        finally:
            with self._lock:
                self._acts.remove(act)


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The services that the verbs on rows use."""

    database: Database
    versions: TableVersions
    trees: FileTrees
    # AWS_* variables by name.
    options: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Request:
    """One change of a branch: the caller, the operation key and the time that it may wait."""

    branch: str
    caller: Caller
    operation: OperationKey | None = None
    timeout_seconds: float = TIMEOUT_SECONDS
    # The views that the caller has seen; any other view is a conflict.
    if_heads: Mapping[DatasetName, TransactionId | None] = field(default_factory=dict)
    interrupt: Interrupt = field(default_factory=Interrupt)


@dataclass(frozen=True, kw_only=True)
class Creation:
    """The tables that a load may create: any that the branch lacks, with these keys."""

    keys: Mapping[DatasetName, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The publication, or None where nothing changed, and the counts of rows by dataset."""

    operation: OperationId
    publication: PublicationNumber | None
    counts: dict[str, Counts]
    # The columns of tables that a load created, with their types, by dataset.
    created: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    replayed: bool = False
    # Conflicts with other writers before the publication.
    losses: int = 0

    def to_json(self) -> dict[str, Any]:
        created = {name: dict(columns) for name, columns in self.created.items()}
        return {
            "publication": self.publication,
            "counts": {name: counts.to_json() for name, counts in self.counts.items()},
            **({"created": created} if created else {}),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any], *, replayed: bool) -> Self:
        return cls(
            operation=OperationId(""),
            publication=document["publication"],
            counts={name: Counts(**counts) for name, counts in document["counts"].items()},
            created=document.get("created") or {},
            replayed=replayed,
        )


@dataclass(frozen=True, kw_only=True)
class PlannedSchema:
    """The steps of each dataset that applying a schema file would take."""

    branch: str
    steps: Mapping[str, Sequence[str]]

    def to_json(self) -> dict[str, Any]:
        steps = [{"dataset": name, "steps": list(each)} for name, each in self.steps.items()]
        return {"branch": self.branch, "datasets": steps}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        steps = {one["dataset"]: tuple(one["steps"]) for one in document["datasets"]}
        return cls(branch=document["branch"], steps=steps)


@dataclass(frozen=True, kw_only=True)
class AppliedSchema(PlannedSchema):
    """The steps that applying a schema file took; no publication where there were none."""

    publication: PublicationNumber | None = None

    def to_json(self) -> dict[str, Any]:
        planned = super().to_json()
        return {"branch": self.branch, "publication": self.publication, **planned}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        return replace(super().from_json(document), publication=document["publication"])


class OptimizeState(enum.StrEnum):
    OPTIMIZED = "optimized"
    UNCHANGED = "unchanged"
    # Another transaction is open on the branch.
    SKIPPED = "skipped"
    # Another writer published first.
    LOST = "lost"


@dataclass(frozen=True, kw_only=True)
class Optimized:
    """Result of compacting a table."""

    dataset: DatasetName
    branch: str
    state: OptimizeState
    publication: PublicationNumber | None = None
    files_before: int = 0
    files_after: int = 0
    snapshots_dropped: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "dataset": str(self.dataset),
            "branch": self.branch,
            "state": self.state,
            "publication": self.publication,
            "files": {"before": self.files_before, "after": self.files_after},
            "snapshots_dropped": self.snapshots_dropped,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        return cls(
            dataset=parse_dataset_name(document["dataset"]),
            branch=document["branch"],
            state=OptimizeState(document["state"]),
            publication=document["publication"],
            files_before=document["files"]["before"],
            files_after=document["files"]["after"],
            snapshots_dropped=document["snapshots_dropped"],
        )
