"""What came of work on tables as a whole: the same values here and told by a server."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from headgate.model.ids import PublicationNumber
from headgate.model.names import DatasetName, parse_dataset_name


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
