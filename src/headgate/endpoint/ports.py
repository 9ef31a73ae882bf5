"""What the endpoint needs from the truth: who may act, what names mean, and one way to write."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from headgate.model.contexts import Context
from headgate.model.ids import ContentId, DatasetId, TransactionId
from headgate.model.names import DatasetName
from headgate.model.nouns import AttemptRef, TransactionType

Namespace = tuple[str, ...]


class Action(enum.StrEnum):
    """What a request wants to do in its context."""

    READ = "read"
    WRITE = "write"


@dataclass(frozen=True, kw_only=True)
class Principal:
    """Who acts: the name that history records, and the attempt that the fence compares."""

    actor: str
    attempt: AttemptRef | None = None
    # An admin: allowed on protected branches.
    may_write_protected: bool = False


# Raises `Denied` where the token is unknown, revoked or not enough for the action.
Authorize = Callable[[str | None, Context, Action], Principal]


@dataclass(frozen=True, kw_only=True)
class ServedTable:
    """A name, resolved in a context: the version that the context shows for it."""

    name: DatasetName
    dataset_id: DatasetId
    # Where in the context's chain it was found; for a unit or job, the branch that it writes to.
    branch: str
    # None where a unit or job has only a working version so far.
    transaction: TransactionId | None
    location: str
    content_id: ContentId


@dataclass(frozen=True, kw_only=True)
class TableChange:
    """One table's step to a new version that is already stored but not yet visible."""

    name: DatasetName
    dataset_id: DatasetId
    # What the context showed when the change was prepared; None: no table of that name.
    base: ServedTable | None
    location: str
    content_id: ContentId
    type: TransactionType
    # False for a registered table: its earlier files are somebody else's.
    owned: bool = True


@dataclass(frozen=True, kw_only=True)
class Idempotency:
    """A client's key for one request, with a digest of what it asked."""

    key: str
    request_hash: str


class TableCatalog(Protocol):
    """The truth as the endpoint sees it; every method may block and is called from a thread.

    Writes are atomic, are refused with an error of `headgate.errors`, and have happened once they
    return. One that may or may not have happened raises `OutcomeUnknown`. A write whose
    idempotency key is on record changes nothing and returns what it returned then.
    """

    def resolve(self, context: Context, name: DatasetName) -> ServedTable | None:
        """The version that a name means in a context, or None."""
        ...

    def find_dataset_id(self, name: DatasetName) -> DatasetId | None:
        """The dataset of that name on any branch, or None where there has never been one."""
        ...

    def list_tables(self, context: Context, namespace: Namespace) -> Sequence[str]:
        """Names of the tables that the context shows in a namespace."""
        ...

    def commit(
        self,
        principal: Principal,
        context: Context,
        changes: Sequence[TableChange],
        idempotency: Idempotency | None,
    ) -> Sequence[ServedTable]:
        """Makes all changes visible together, in the same order, or none.

        A base that the context no longer shows is `ViewConflict`.
        """
        ...

    def drop(
        self,
        principal: Principal,
        context: Context,
        table: ServedTable,
        idempotency: Idempotency | None,
    ) -> None:
        """Puts a tombstone on the context's branch."""
        ...

    def rename(
        self,
        principal: Principal,
        context: Context,
        table: ServedTable,
        to: DatasetName,
        idempotency: Idempotency | None,
    ) -> None:
        """A tombstone, and a new dataset with the same version, together."""
        ...

    def recall(
        self, principal: Principal, context: Context, idempotency: Idempotency
    ) -> Sequence[ServedTable] | None:
        """The tables that a write with this key made, or None where none has happened.

        Another request under the key is `IdempotencyKeyReused`.
        """
        ...

    def list_namespaces(self) -> Sequence[Namespace]:
        """All namespaces; they are the same in every context."""
        ...

    def find_namespace(self, namespace: Namespace) -> Mapping[str, str] | None:
        """A namespace's properties, or None."""
        ...

    def create_namespace(
        self,
        principal: Principal,
        namespace: Namespace,
        properties: Mapping[str, str],
        idempotency: Idempotency | None,
    ) -> None:
        """Makes a namespace, or raises `NamespaceExists`."""
        ...

    def update_namespace(
        self,
        principal: Principal,
        namespace: Namespace,
        removals: Sequence[str],
        updates: Mapping[str, str],
        idempotency: Idempotency | None,
    ) -> frozenset[str]:
        """Removes and sets properties, or raises `NamespaceNotFound`; which could be removed."""
        ...

    def drop_namespace(
        self, principal: Principal, namespace: Namespace, idempotency: Idempotency | None
    ) -> None:
        """Removes a namespace without datasets, or raises `NamespaceNotEmpty`."""
        ...
