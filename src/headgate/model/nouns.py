"""The nouns of the design, as frozen values, and the states that they go through."""

import enum
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from functools import cached_property
from typing import Any

from headgate.model import ids

Json = dict[str, Any]


def as_json(value: object) -> Json:
    """Return a data class as JSON: names of datasets as text, members of enums by value."""
    return {name: _plain(one) for name, one in vars(value).items()}


def _plain(value: Any) -> Any:
    match value:
        case DatasetName():
            return str(value)
        case enum.Enum():
            return value.value
        case Mapping():
            return {key: _plain(one) for key, one in value.items()}
        case list() | tuple():
            return [_plain(one) for one in value]
    return as_json(value) if is_dataclass(value) else value


# A part of a dataset's name that needs no backticks.
PLAIN_PART = re.compile(r"[A-Za-z0-9_-]+\Z")


# The values of these enums are part of the public interface.


class DatasetKind(enum.StrEnum):
    TABLE = "table"
    FILES = "files"
    VIEW = "view"


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
    """Kinds of publications, by which `headgate log --kind` filters."""

    COMMIT = "commit"
    ADOPT = "adopt"
    MERGE = "merge"
    RESET = "reset"
    REPLACE = "replace"
    CREATE = "create"
    DELETE = "delete"
    RESTORE = "restore"


class AttemptState(enum.StrEnum):
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SUPERSEDED = "superseded"
    CANCELED = "canceled"


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


@dataclass(frozen=True, order=True)
class DatasetName:
    """`namespace.name`; the namespace may have several parts."""

    namespace: tuple[str, ...]
    name: str

    def __str__(self) -> str:
        return self._text

    def __hash__(self) -> int:
        # The name alone, whose hash Python caches: a plan needs hundreds of thousands of hashes.
        return hash(self.name)

    @cached_property
    def _text(self) -> str:
        return join_parts((*self.namespace, self.name))


def join_parts(parts: Iterable[str]) -> str:
    """Return a name from its parts; those that are not plain words are in backticks."""
    return ".".join(part if PLAIN_PART.match(part) else f"`{part}`" for part in parts)


@dataclass(frozen=True, kw_only=True)
class Dataset:
    id: ids.DatasetId
    name: DatasetName
    kind: DatasetKind
    # False for a registered table: Headgate does not own its files and never deletes them.
    owned: bool
    created_at: ids.Instant


@dataclass(frozen=True, kw_only=True)
class Version:
    """Immutable content: an Iceberg metadata file, or a file-tree manifest."""

    id: ids.VersionId
    location: str
    content_id: ids.ContentId


@dataclass(frozen=True, kw_only=True)
class Branch:
    id: ids.BranchId
    dataset_id: ids.DatasetId
    dataset: DatasetName
    name: str
    parent_id: ids.BranchId | None
    parent: str | None
    head: ids.TransactionId | None
    view: ids.TransactionId | None
    # The fallback chain of the build that created this root because no fallback existed.
    remembered_chain: tuple[str, ...] = ()

    @property
    def is_open(self) -> bool:
        """True while the head is OPEN: only then do head and view differ."""
        return self.head != self.view


def branch_off(parent: Branch | None) -> dict[str, Any]:
    """Return the pointers of a new branch: its parent's view, never an OPEN head; or of a root."""
    if parent is None:
        return {"parent": None}
    expected = {"parent": parent.id, "expected_head": parent.head, "expected_view": parent.view}
    return {**expected, "head": parent.view, "view": parent.view}


@dataclass(frozen=True, kw_only=True)
class AttemptRef:
    """An attempt by its key and epoch, which the fence compares with the newest epoch."""

    key: str
    epoch: ids.Epoch


@dataclass(frozen=True, kw_only=True)
class Attempt:
    ref: AttemptRef
    state: AttemptState
    actor: str
    started_at: ids.Instant
    lease_until: ids.Instant
    lease_seconds: int


@dataclass(frozen=True, kw_only=True)
class Transaction:
    id: ids.TransactionId
    dataset_id: ids.DatasetId
    dataset: DatasetName
    branch_id: ids.BranchId
    branch: str
    parent: ids.TransactionId | None
    depth: int
    jump: ids.TransactionId | None
    type: TransactionType
    state: TransactionState
    # Working version while OPEN, the version shown once COMMITTED; None is a tombstone or empty.
    version: Version | None
    actor: str
    opened_at: ids.Instant
    closed_at: ids.Instant | None
    lease_until: ids.Instant | None
    lease_seconds: int | None
    attempt: AttemptRef | None
    unit: ids.UnitId | None
    publication: ids.PublicationNumber | None
    inputs_key: str | None = None
    build_key: str | None = None
    adoptable: bool = False
    # Cleanup has condemned its content: it can no longer be read or reset to.
    condemned: bool = False
    provenance: Mapping[str, Any] = field(default_factory=dict)
    # Of the first transaction after a rename: the one of the earlier name that it continues.
    renamed_from: ids.TransactionId | None = None


@dataclass(frozen=True, kw_only=True)
class MoveRecord:
    """One branch that a publication moved, from one view to another; None: no view or branch."""

    dataset: DatasetName
    branch_id: ids.BranchId
    branch: str
    from_transaction: ids.TransactionId | None
    to_transaction: ids.TransactionId | None


def net_moves(moves: Iterable[MoveRecord]) -> list[MoveRecord]:
    """Return one move for each branch: a publication can create a branch and then write to it."""
    net: dict[ids.BranchId, MoveRecord] = {}
    for move in moves:
        first = net.get(move.branch_id, move)
        net[move.branch_id] = replace(move, from_transaction=first.from_transaction)
    return list(net.values())


@dataclass(frozen=True, kw_only=True)
class Publication:
    number: ids.PublicationNumber
    at: ids.Instant
    actor: str
    kind: PublicationKind
    operation: ids.OperationId
    moves: tuple[MoveRecord, ...]


@dataclass(frozen=True, kw_only=True)
class Tag:
    dataset: DatasetName
    name: str
    transaction: ids.TransactionId


# Rows of lists: a dataset, or a branch name over all datasets, with sums over its branches.


@dataclass(frozen=True, kw_only=True)
class LastMove:
    """The newest publication that moved a branch of a dataset, or of a name."""

    publication: ids.PublicationNumber
    at: ids.Instant
    actor: str
    kind: str


@dataclass(frozen=True, kw_only=True)
class DatasetLine:
    """A dataset in a list; `blue` if the primary branch has a JobSpec that produces it."""

    dataset: Dataset
    branch_count: int
    # Empty if there are too many to list.
    branches: tuple[str, ...]
    last: LastMove | None
    blue: bool


@dataclass(frozen=True, kw_only=True)
class BranchNameLine:
    """A branch name over all datasets: its datasets, its parent and its differences from that."""

    name: str
    # The most frequent parent of its branches; None if most have no parent (root branches).
    parent: str | None
    # Other parents that some of its branches have.
    other_parents: tuple[str, ...]
    dataset_count: int
    # Datasets on which its content differs from its parent's.
    differing: int
    open: int
    last: LastMove | None
    # Patterns of the datasets on which the name is protected.
    protected: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class DifferingDataset:
    """A dataset on which the content of a branch differs from that of its parent."""

    dataset: DatasetName
    kind: str
    parent: str
    actor: str | None
    at: ids.Instant | None
    # Whether the branch changed it since the merge base; else only the parent did.
    is_changed: bool
