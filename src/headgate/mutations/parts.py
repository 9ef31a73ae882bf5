"""What mutations, loads, merges and schema changes work with, and what comes out of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headgate.catalog.database import Database
from headgate.files.trees import FileTrees
from headgate.model.changes import OperationKey
from headgate.model.ids import OperationId, PublicationNumber, TransactionId
from headgate.model.names import DatasetName
from headgate.mutations.counts import Counts
from headgate.tables.versions import TableVersions

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
