"""What came of work on tables as a whole: the same values here and told by a server."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from headgate.catalog.database import Database
from headgate.files.trees import FileTrees
from headgate.model.changes import OperationKey
from headgate.model.ids import OperationId, PublicationNumber, TransactionId
from headgate.model.names import DatasetName, parse_dataset_name
from headgate.tables.versions import TableVersions

# How many rows of a table came, changed and went.


@dataclass(frozen=True, kw_only=True)
class Counts:
    inserted: int = 0
    updated: int = 0
    deleted: int = 0

    def __bool__(self) -> bool:
        return bool(self.inserted or self.updated or self.deleted)

    def to_json(self) -> dict[str, int]:
        return {"inserted": self.inserted, "updated": self.updated, "deleted": self.deleted}


# What mutations, loads, merges and schema changes work with, and what comes out of them.

TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class Parts:
    database: Database
    versions: TableVersions
    trees: FileTrees
    # AWS_* variables by name.
    options: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Request:
    """Who asks for a change of a branch, under which key, and how long it may wait."""

    branch: str
    actor: str
    operation: OperationKey | None = None
    timeout_seconds: float = TIMEOUT_SECONDS
    may_write_protected: bool = False
    # The views that the caller has seen; others are a conflict at once.
    if_heads: Mapping[DatasetName, TransactionId | None] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of it: the publication, or None where nothing changed, and the rows."""

    operation: OperationId
    publication: PublicationNumber | None
    counts: dict[str, Counts]
    replayed: bool = False
    # How often it lost the branch to others before it passed.
    losses: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "publication": self.publication,
            "counts": {name: counts.to_json() for name, counts in self.counts.items()},
        }


def recalled(document: Mapping[str, Any], *, replayed: bool) -> Outcome:
    """An outcome from the document that a server sent."""
    return Outcome(
        operation=OperationId(""),
        publication=document["publication"],
        counts={name: Counts(**counts) for name, counts in document["counts"].items()},
        replayed=replayed,
    )


@dataclass(frozen=True, kw_only=True)
class PlannedSchema:
    """What applying a schema file would do: the steps of each dataset, none where it fits."""

    branch: str
    steps: Mapping[str, Sequence[str]]

    def to_json(self) -> dict[str, Any]:
        return {"branch": self.branch, "datasets": _steps_json(self.steps)}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Self:
        return cls(branch=told["branch"], steps=_steps_from(told["datasets"]))


@dataclass(frozen=True, kw_only=True)
class AppliedSchema:
    """What applying a schema file did; no publication where the tables were so already."""

    branch: str
    publication: PublicationNumber | None
    steps: Mapping[str, Sequence[str]]

    def to_json(self) -> dict[str, Any]:
        return {
            "branch": self.branch,
            "publication": self.publication,
            "datasets": _steps_json(self.steps),
        }

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Self:
        return cls(
            branch=told["branch"],
            publication=told["publication"],
            steps=_steps_from(told["datasets"]),
        )


class OptimizeState(enum.StrEnum):
    OPTIMIZED = "optimized"
    UNCHANGED = "unchanged"
    # Somebody has the branch open.
    SKIPPED = "skipped"
    # Somebody else published meanwhile.
    LOST = "lost"


@dataclass(frozen=True, kw_only=True)
class Optimized:
    """What came of compacting a table."""

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
    def from_json(cls, told: Mapping[str, Any]) -> Self:
        return cls(
            dataset=parse_dataset_name(told["dataset"]),
            branch=told["branch"],
            state=OptimizeState(told["state"]),
            publication=told["publication"],
            files_before=told["files"]["before"],
            files_after=told["files"]["after"],
            snapshots_dropped=told["snapshots_dropped"],
        )


def _steps_json(steps: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    return [{"dataset": name, "steps": list(taken)} for name, taken in steps.items()]


def _steps_from(datasets: Sequence[Mapping[str, Any]]) -> dict[str, Sequence[str]]:
    return {told["dataset"]: tuple(told["steps"]) for told in datasets}
