"""What may be asked of the one door: each change of a branch as a small value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headgate.model.ids import (
    BranchId,
    DatasetId,
    Epoch,
    Instant,
    IntentId,
    OperationId,
    PublicationNumber,
    TransactionId,
)
from headgate.model.nouns import (
    AttemptRef,
    PublicationKind,
    TransactionType,
    Version,
)


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Where a transaction came from; what freshness and adoption compare."""

    inputs_key: str | None = None
    build_key: str | None = None
    adoptable: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class CommitTransaction:
    """Close an OPEN transaction: every branch whose head it is shows its working version."""

    transaction: TransactionId
    # The working version that was checked; None only for a tombstone or an empty transaction.
    version: Version | None
    # Types nobody named are decided when the content is known.
    type: TransactionType | None = None
    provenance: Provenance | None = None


@dataclass(frozen=True, kw_only=True)
class AddTransaction:
    """Open and commit in one step: adopt, merge, single writes, tombstones, task publication."""

    branch: BranchId
    expected_head: TransactionId | None
    expected_view: TransactionId | None
    # The parent of the new transaction: the view, except where a publication is replaced.
    parent: TransactionId | None
    type: TransactionType
    version: Version | None
    # Objects of the version that it re-uses and its parent does not hold.
    objects: frozenset[str] = frozenset()
    provenance: Provenance = field(default_factory=Provenance)
    # Given where something else of the same publication names it; else minted at the door.
    id: TransactionId | None = None


@dataclass(frozen=True, kw_only=True)
class MoveBranch:
    """Point a branch at another COMMITTED transaction: reset, or back to a task's input."""

    branch: BranchId
    expected_head: TransactionId | None
    expected_view: TransactionId | None
    to: TransactionId | None


@dataclass(frozen=True, kw_only=True)
class CreateBranch:
    """A new branch pointing where its parent points, or at a transaction of the parent's past."""

    id: BranchId
    dataset: DatasetId
    name: str
    parent: BranchId | None
    # What the parent must still show; ignored for a root.
    expected_head: TransactionId | None = None
    expected_view: TransactionId | None = None
    head: TransactionId | None = None
    view: TransactionId | None = None
    remembered_chain: tuple[str, ...] = ()
    # The build or unit that needs it: it goes again where nothing is committed on it.
    made_for: str | None = None


@dataclass(frozen=True, kw_only=True)
class DeleteBranch:
    """Remove the pointer; children go to the grandparent, transactions stay."""

    branch: BranchId
    expected_head: TransactionId | None
    expected_view: TransactionId | None


Change = CommitTransaction | AddTransaction | MoveBranch | CreateBranch | DeleteBranch


@dataclass(frozen=True, kw_only=True)
class ReadView:
    """A branch that validation looked at without writing it: it must still show this."""

    branch: BranchId
    view: TransactionId | None


@dataclass(frozen=True, kw_only=True)
class OperationKey:
    """What makes a repeated request the same request."""

    principal: str
    kind: str
    branch: str
    key: str
    request_hash: str


@dataclass(frozen=True, kw_only=True)
class IntentRef:
    """An intent and the epoch at which its owner holds it."""

    id: IntentId
    epoch: Epoch


@dataclass(frozen=True, kw_only=True)
class PublishRequest:
    """One atomic change of one or more branches: all of it happens, or none."""

    actor: str
    kind: PublicationKind
    changes: tuple[Change, ...]
    # Whose work this is, where recovery publishes it in their place.
    on_behalf_of: str | None = None
    reads: tuple[ReadView, ...] = ()
    attempt: AttemptRef | None = None
    operation: OperationKey | None = None
    # A build of a clean commit, or an admin: allowed on protected branches.
    may_write_protected: bool = False
    # Phase C of an operation with an effect outside the catalog names its own intent.
    intent: IntentRef | None = None


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """What came of an operation: the answer that a repeated request gets again."""

    operation: OperationId
    # None where nothing changed, so nothing was published.
    publication: PublicationNumber | None
    at: Instant
    # The transaction that each moved branch now shows, by branch id.
    transactions: dict[str, str | None]
    replayed: bool = False
