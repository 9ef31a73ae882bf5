"""Requests to publish: changes of branches as values, and the identity of a repeated request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from headgate.model import ids
from headgate.model.names import check_label
from headgate.model.nouns import AttemptRef, PublicationKind, TransactionType, Version

if TYPE_CHECKING:
    from headgate.model.access import ReadPolicy


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Identity and rights under which an operation acts."""

    actor: str
    # The attempt that the fence compares, if the operation belongs to one.
    attempt: AttemptRef | None = None
    # A build of a clean commit, or an admin: allowed on protected branches.
    may_write_protected: bool = False
    # Raises unless the actor may write this branch of this dataset. None: all of them.
    check_write: Callable[[str, object], None] | None = field(default=None, compare=False)
    # What the actor may read. None: everything.
    policy: ReadPolicy | None = None
    # Id of the token of a request to a server.
    token: str | None = field(default=None, compare=False)
    # When that token expires.
    until: datetime | None = field(default=None, compare=False)


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """The origin of a transaction, which freshness and adoption compare."""

    inputs_key: str | None = None
    build_key: str | None = None
    adoptable: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class CommitTransaction:
    """Commit an OPEN transaction: every branch whose head it is shows its working version."""

    transaction: ids.TransactionId
    # The working version that was checked; None only for a tombstone or an empty transaction.
    version: Version | None
    # A type that the writer did not name is decided when the content is known.
    type: TransactionType | None = None
    provenance: Provenance | None = None


@dataclass(frozen=True, kw_only=True)
class AddTransaction:
    """Open and commit in one step: adopt, merge, single writes, tombstones, task publication."""

    branch: ids.BranchId
    expected_head: ids.TransactionId | None
    expected_view: ids.TransactionId | None
    # The parent of the new transaction: the view, except where a publication is replaced.
    parent: ids.TransactionId | None
    type: TransactionType
    version: Version | None
    # Existing objects that the version uses and its parent does not.
    objects: frozenset[str] = frozenset()
    provenance: Provenance = field(default_factory=Provenance)
    # After a rename: the transaction of the earlier name that the new dataset continues.
    renamed_from: ids.TransactionId | None = None
    # Set if another part of the same publication refers to it; else minted by `publish`.
    id: ids.TransactionId | None = None


@dataclass(frozen=True, kw_only=True)
class MoveBranch:
    """Point a branch at another COMMITTED transaction: a reset, or a return to a task's input."""

    branch: ids.BranchId
    expected_head: ids.TransactionId | None
    expected_view: ids.TransactionId | None
    to: ids.TransactionId | None


@dataclass(frozen=True, kw_only=True)
class CreateBranch:
    """Create a branch at its parent's view, or at a COMMITTED transaction of the dataset."""

    id: ids.BranchId = field(default_factory=ids.mint_branch)
    dataset: ids.DatasetId
    name: str
    parent: ids.BranchId | None
    # The expected head and view of the parent; ignored for a root.
    expected_head: ids.TransactionId | None = None
    expected_view: ids.TransactionId | None = None
    head: ids.TransactionId | None = None
    view: ids.TransactionId | None = None
    remembered_chain: tuple[str, ...] = ()
    # The build or unit that needs it: the branch is deleted if nothing is committed on it.
    made_for: str | None = None
    # The publication that deleted the branch, which is then restored: with its id, parent and view,
    # and with the children that no user has moved since.
    deleted_in: ids.PublicationNumber | None = None


@dataclass(frozen=True, kw_only=True)
class DeleteBranch:
    """Delete a branch; its children get its parent, its transactions stay."""

    branch: ids.BranchId
    expected_head: ids.TransactionId | None
    expected_view: ids.TransactionId | None
    # False for a branch that no user made: no record of it is kept.
    restorable: bool = True


Change = CommitTransaction | AddTransaction | MoveBranch | CreateBranch | DeleteBranch


@dataclass(frozen=True, kw_only=True)
class ReadView:
    """A branch that validation read without writing it: its view must still be this one."""

    branch: ids.BranchId
    view: ids.TransactionId | None


@dataclass(frozen=True, kw_only=True)
class OperationKey:
    """The identity of a request, by which a repeated request is recognised."""

    principal: str
    kind: str
    branch: str
    key: str
    request_hash: str


@dataclass(frozen=True, kw_only=True)
class PublishRequest:
    """One atomic change of one or more branches: all of it happens, or none."""

    caller: Caller
    kind: PublicationKind
    changes: tuple[Change, ...]
    reads: tuple[ReadView, ...] = ()
    operation: OperationKey | None = None


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """The recorded outcome of an operation, which a repeated request gets again."""

    operation: ids.OperationId
    # None if nothing changed, so that nothing was published.
    publication: ids.PublicationNumber | None
    at: ids.Instant
    # The transaction that each moved branch now shows, by branch id.
    transactions: dict[str, str | None]
    replayed: bool = False


# Repeated requests.

# Separates the hash of a request from the digest of the files that it names.
_SEPARATOR = "."


def operation_key(
    key: str | None,
    *,
    actor: str,
    kind: str,
    branch: str,
    request: Mapping[str, Any],
    contents: str | None = None,
) -> OperationKey | None:
    """Return the operation of an idempotency key, with a hash of the request; None without a key.

    `contents` is a digest of the files that the request names, if they could be read.
    """
    if key is None:
        return None
    check_label(key, what="an idempotency key")
    hashed = request_hash(kind, request)
    return OperationKey(
        principal=actor,
        kind=kind,
        branch=branch,
        key=key,
        request_hash=f"{hashed}{_SEPARATOR}{contents}" if contents else hashed,
    )


def is_same_request(one: str, other: str) -> bool:
    """Return whether two hashes are of one request; contents count only if both have them."""
    request, _, contents = one.partition(_SEPARATOR)
    other_request, _, other_contents = other.partition(_SEPARATOR)
    return request == other_request and (
        not contents or not other_contents or contents == other_contents
    )


def request_hash(kind: str, request: Mapping[str, Any]) -> str:
    """Return a hash of a request that does not depend on the order of its keys."""
    return ids.digest([kind, request])
