"""The pulse of work that takes long: leases are renewed for as long as its process may go on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from headgate.catalog.attempts import check_newest
from headgate.catalog.database import Connection, Database
from headgate.catalog.publish import publish
from headgate.catalog.records import load_dataset, load_transactions
from headgate.catalog.transactions import stage_version
from headgate.errors import Conflict, HeadgateError, TransactionNotOpen, TransactionTypeViolated
from headgate.files.publication import natural_type, root_of, tree_version
from headgate.files.tree import EMPTY
from headgate.files.trees import FileTrees
from headgate.model.changes import (
    CommitTransaction,
    OperationKey,
    Provenance,
    PublishRequest,
    ReadView,
    Receipt,
)
from headgate.model.ids import TransactionId
from headgate.model.nouns import (
    AttemptRef,
    DatasetKind,
    PublicationKind,
    Transaction,
    TransactionState,
    TransactionType,
    Version,
)
from headgate.tables.classify import check_declared, effect_between
from headgate.tables.versions import TableVersions

# Committing OPEN transactions: content is checked against the type, then the door decides.


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What can be in a dataset: trees of files, and versions of tables."""

    trees: FileTrees
    tables: TableVersions


@dataclass(frozen=True, kw_only=True)
class CommitOptions:
    actor: str
    attempt: AttemptRef | None = None
    operation: OperationKey | None = None
    may_write_protected: bool = False
    provenance: Mapping[TransactionId, Provenance] | None = None
    # What validation looked at without writing it.
    reads: tuple[ReadView, ...] = ()
    # Those that get the type of what they turned out to do.
    natural: Collection[TransactionId] = ()


def commit_transactions(
    database: Database,
    contents: Contents,
    ids: Sequence[TransactionId],
    options: CommitOptions,
    *,
    together_with: Sequence[CommitTransaction] = (),
) -> Receipt:
    """Commits all of them in one publication, or none: each stays OPEN with what it holds.

    `together_with` are those whose content needs no check, such as adopted ones.
    """
    return publish(
        database,
        PublishRequest(
            actor=options.actor,
            kind=PublicationKind.COMMIT,
            changes=(*together_with, *checked_commits(database, contents, ids, options)),
            reads=options.reads,
            attempt=options.attempt,
            operation=options.operation,
            may_write_protected=options.may_write_protected,
        ),
    )


def checked_commits(
    database: Database, contents: Contents, ids: Sequence[TransactionId], options: CommitOptions
) -> list[CommitTransaction]:
    """Each with the working version that was looked at, and a type that its content keeps to."""
    found, bases, kinds = database.read(lambda c: _gather(c, ids, options.attempt))
    changes = []
    for id in ids:
        transaction = found[id]
        base = bases.get(transaction.parent) if transaction.parent else None
        before = base.version if base else None
        settled = _complete(database, transaction, kinds[transaction.id], options.attempt)
        named = transaction.unit is None and id not in options.natural
        type = _checked_type(contents, settled, before, kinds[transaction.id], named=named)
        known = (options.provenance or {}).get(id)
        changes.append(
            CommitTransaction(transaction=id, version=settled.version, type=type, provenance=known)
        )
    return changes


def _gather(
    connection: Connection, ids: Sequence[TransactionId], attempt: AttemptRef | None
) -> tuple[
    dict[TransactionId, Transaction],
    dict[TransactionId, Transaction],
    dict[TransactionId, DatasetKind],
]:
    if attempt is not None:
        # Said first: that its transactions are closed is only what follows from it.
        check_newest(connection, attempt)
    found = load_transactions(connection, ids)
    for id in ids:
        state = found[id].state if id in found else "unknown"
        if state is not TransactionState.OPEN:
            raise TransactionNotOpen(transaction=id, state=state)
    bases = load_transactions(connection, [t.parent for t in found.values() if t.parent])
    kinds = {id: load_dataset(connection, t.dataset).kind for id, t in found.items()}
    return found, bases, kinds


def complete_transactions(
    database: Database, ids: Sequence[TransactionId], attempt: AttemptRef | None
) -> None:
    """Gives each what it will show once it is committed, also where nothing was written."""
    found, _, kinds = database.read(lambda c: _gather(c, ids, attempt))
    for id, transaction in found.items():
        _complete(database, transaction, kinds[id], attempt)


def _complete(
    database: Database, transaction: Transaction, kind: DatasetKind, attempt: AttemptRef | None
) -> Transaction:
    """A files transaction always shows a tree: one that put nothing shows the empty one."""
    if transaction.version is not None or kind is not DatasetKind.FILES:
        return transaction
    return stage_version(
        database, transaction.id, tree_version(EMPTY), expected=None, attempt=attempt
    )


def _checked_type(
    contents: Contents,
    transaction: Transaction,
    before: Version | None,
    kind: DatasetKind,
    *,
    named: bool,
) -> TransactionType:
    """The transaction's type if its content keeps to it, or the natural one if nobody named it."""
    if kind is DatasetKind.FILES:
        return _files_type(contents.trees, transaction, before, named=named)
    if transaction.version is None:
        return transaction.type if named else TransactionType.DELETE
    effect = effect_between(
        contents.tables.read(before.location).metadata if before else None,
        contents.tables.read(transaction.version.location).metadata,
    )
    if not named:
        return effect.natural
    check_declared(transaction=transaction.id, declared=transaction.type, effect=effect)
    return transaction.type


def _files_type(
    trees: FileTrees, transaction: Transaction, before: Version | None, *, named: bool
) -> TransactionType:
    old, new = root_of(before), root_of(transaction.version)
    if not named:
        return natural_type(trees.difference(old, new))
    reason = trees.find_violation(transaction.type, old, new)
    if reason is not None:
        raise TransactionTypeViolated(
            transaction=transaction.id, type=transaction.type, reason=reason
        )
    return transaction.type


RENEW_SECONDS = 15.0
LEASE_SECONDS = 60


def _lose_nothing(error: HeadgateError) -> None:
    """For work that nobody else can have."""


class Pulse:
    """Beats for the length of a `with` block, in a thread of its own."""

    def __init__(
        self,
        beat: Callable[[], None],
        *,
        lost: Callable[[HeadgateError], None] = _lose_nothing,
        seconds: float = RENEW_SECONDS,
    ) -> None:
        self._beat = beat
        self._lost = lost
        self._seconds = seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="pulse", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _go_on(self) -> None:
        while not self._ended.wait(self._seconds):
            try:
                self._beat()
            except Conflict as error:
                # Somebody else has the work now: whatever is still done here is in vain.
                self._lost(error)
                return
            except HeadgateError:
                # Who does not answer for a while is asked again; leases outlast it.
                continue
