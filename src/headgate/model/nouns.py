"""The nouns of the design, as frozen values."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headgate.model.ids import (
    BranchId,
    ContentId,
    DatasetId,
    Epoch,
    Instant,
    OperationId,
    PublicationNumber,
    TransactionId,
    UnitId,
    VersionId,
)
from headgate.model.names import DatasetName


class DatasetKind(enum.StrEnum):
    TABLE = "table"
    FILES = "files"


class TransactionType(enum.StrEnum):
    SNAPSHOT = "SNAPSHOT"
    APPEND = "APPEND"
    UPDATE = "UPDATE"
    DELETE = "DELETE"


class TransactionState(enum.StrEnum):
    OPEN = "OPEN"
    COMMITTED = "COMMITTED"
    ABORTED = "ABORTED"


class PublicationKind(enum.StrEnum):
    """What a publication did, as `headgate log --kind` filters it."""

    COMMIT = "commit"
    ADOPT = "adopt"
    MERGE = "merge"
    RESET = "reset"
    REPLACE = "replace"
    CREATE = "create"
    DELETE = "delete"


class AttemptState(enum.StrEnum):
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SUPERSEDED = "superseded"
    CANCELED = "canceled"


@dataclass(frozen=True, kw_only=True)
class Dataset:
    id: DatasetId
    name: DatasetName
    kind: DatasetKind
    # False for a registered table: its files are somebody else's and are never deleted.
    owned: bool
    created_at: Instant


@dataclass(frozen=True, kw_only=True)
class Version:
    """Immutable content: an Iceberg metadata file, or a file-tree manifest."""

    id: VersionId
    location: str
    content_id: ContentId


@dataclass(frozen=True, kw_only=True)
class Branch:
    id: BranchId
    dataset_id: DatasetId
    dataset: DatasetName
    name: str
    parent_id: BranchId | None
    parent: str | None
    head: TransactionId | None
    view: TransactionId | None
    # The chain that a build wanted when it made this root for want of a fallback.
    remembered_chain: tuple[str, ...] = ()

    @property
    def is_open(self) -> bool:
        """Whether the head is OPEN: head and view differ only while a transaction is open."""
        return self.head != self.view


@dataclass(frozen=True, kw_only=True)
class AttemptRef:
    """Which attempt acts: the fence compares it with the newest epoch of its key."""

    key: str
    epoch: Epoch


@dataclass(frozen=True, kw_only=True)
class Attempt:
    ref: AttemptRef
    state: AttemptState
    actor: str
    started_at: Instant
    lease_until: Instant
    lease_seconds: int


@dataclass(frozen=True, kw_only=True)
class Transaction:
    id: TransactionId
    dataset_id: DatasetId
    dataset: DatasetName
    branch_id: BranchId
    branch: str
    parent: TransactionId | None
    depth: int
    jump: TransactionId | None
    type: TransactionType
    state: TransactionState
    # Working version while OPEN, the version shown once COMMITTED; None is a tombstone or empty.
    version: Version | None
    actor: str
    opened_at: Instant
    closed_at: Instant | None
    lease_until: Instant | None
    lease_seconds: int | None
    attempt: AttemptRef | None
    unit: UnitId | None
    publication: PublicationNumber | None
    inputs_key: str | None = None
    build_key: str | None = None
    adoptable: bool = False
    # Cleanup has condemned its content: it can no longer be read or returned to.
    condemned: bool = False
    provenance: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class MoveRecord:
    """One branch that a publication moved: from and to are views; None: no view, or no branch."""

    dataset: DatasetName
    branch_id: BranchId
    branch: str
    from_transaction: TransactionId | None
    to_transaction: TransactionId | None


@dataclass(frozen=True, kw_only=True)
class Publication:
    number: PublicationNumber
    at: Instant
    actor: str
    kind: PublicationKind
    operation: OperationId
    moves: tuple[MoveRecord, ...]


@dataclass(frozen=True, kw_only=True)
class Tag:
    dataset: DatasetName
    name: str
    transaction: TransactionId


# The states that builds and jobs go through; the words are part of the interface.


class JobState(enum.StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    ABORTED = "aborted"
    SKIPPED = "skipped"
    ADOPTED = "adopted"


class BuildState(enum.StrEnum):
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"
