"""What may be asked of the one door: each change of a branch as a small value."""

from __future__ import annotations

import hashlib
import json
import random
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
    mint_branch,
)
from headgate.model.names import check_label
from headgate.model.nouns import AttemptRef, Branch, PublicationKind, TransactionType, Version


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


# A write of its own: one transaction on a branch that may have to be made first; pure.


def add_on_branch(
    name: str,
    dataset: DatasetId,
    *,
    branch: Branch | None,
    source: Branch | None,
    type: TransactionType,
    version: Version | None,
    objects: frozenset[str] = frozenset(),
    provenance: Provenance | None = None,
) -> list[Change]:
    """The changes that add a transaction to a branch, which is made off its source if missing."""
    steps: list[Change] = []
    if branch is None:
        made = _new_branch(name, dataset, source)
        steps.append(made)
        id, view = made.id, made.view
    else:
        id, view = branch.id, branch.view
        if view is None and version is not None:
            # The branch was passed over: all that it is given is new on it.
            type = TransactionType.SNAPSHOT
    steps.append(
        AddTransaction(
            branch=id,
            expected_head=view,
            expected_view=view,
            parent=view,
            type=type,
            version=version,
            objects=objects,
            provenance=provenance or Provenance(),
        )
    )
    return steps


def _new_branch(name: str, dataset: DatasetId, source: Branch | None) -> CreateBranch:
    return CreateBranch(
        id=mint_branch(),
        dataset=dataset,
        name=name,
        parent=source.id if source else None,
        expected_head=source.head if source else None,
        expected_view=source.view if source else None,
        # At the view: nobody who only writes shares a transaction that is OPEN on the parent.
        head=source.view if source else None,
        view=source.view if source else None,
    )


# What makes a repeated request the same request.

# Between the hash of what a request says and that of what it points at, if that was read.
_AND = "."


def operation_key(
    key: str | None,
    *,
    actor: str,
    kind: str,
    branch: str,
    request: Mapping[str, Any],
    contents: str | None = None,
) -> OperationKey | None:
    """The operation that a key names, with a hash of all that the request says; None without.

    `contents`: a digest of the files that it names, where they are there to be read.
    """
    if key is None:
        return None
    check_label(key, what="an idempotency key")
    said = request_hash(kind, request)
    return OperationKey(
        principal=actor,
        kind=kind,
        branch=branch,
        key=key,
        request_hash=f"{said}{_AND}{contents}" if contents else said,
    )


def is_same_request(one: str, other: str) -> bool:
    """Whether two hashes are of one request; contents count where both sides could read them."""
    (said, _, read), (said_there, _, read_there) = one.partition(_AND), other.partition(_AND)
    return said == said_there and (not read or not read_there or read == read_there)


def request_hash(kind: str, request: Mapping[str, Any]) -> str:
    """The same for the same request, however its parts were ordered."""
    canonical = json.dumps([kind, request], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


# How long to wait before doing something again that others were quicker at.

_FIRST_SECONDS = 0.005
_LONGEST_SECONDS = 0.5


def wait_seconds(losses: int) -> float:
    """A random wait, longer after each loss: those who lost together do not meet again."""
    longest: float = min(_LONGEST_SECONDS, _FIRST_SECONDS * 2**losses)
    return random.uniform(0.2, 1) * longest
