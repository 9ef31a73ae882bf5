"""Work of attempts: committing OPEN transactions, and renewing leases while long work runs."""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

from headgate.catalog.database import Connection, Database
from headgate.catalog.publish import publish
from headgate.catalog.records import check_newest, load_dataset, load_transactions
from headgate.catalog.transactions import stage_version
from headgate.errors import Conflict, HeadgateError, TransactionNotOpen, TransactionTypeViolated
from headgate.files.edits import root_of, tree_version
from headgate.files.tree import EMPTY, infer_type
from headgate.files.tree_store import FileTrees
from headgate.model import nouns
from headgate.model.ancestry import make_chain
from headgate.model.changes import (
    Caller,
    CommitTransaction,
    OperationKey,
    Provenance,
    PublishRequest,
    ReadView,
    Receipt,
)
from headgate.model.contexts import BranchContext
from headgate.model.ids import TransactionId
from headgate.model.rules import ChangedTable, RowRules
from headgate.tables import views
from headgate.tables.snapshots import check_transaction_type, effect_between
from headgate.tables.versions import TableVersions

RENEW_SECONDS = 15.0
# Lease of a build, of a task and of each attempt; a heartbeat renews it.
LEASE_SECONDS = 60

# --- commits --------------------------------------------------------------------------------


class Contents(Protocol):
    """Readers of datasets' content."""

    @property
    def trees(self) -> FileTrees:
        """Trees of files."""

    @property
    def tables(self) -> TableVersions:
        """Versions of tables."""

    @property
    def rules(self) -> RowRules:
        """Validator of rows that engines wrote."""


@dataclass(frozen=True, kw_only=True)
class CommitOptions:
    caller: Caller
    operation: OperationKey | None = None
    provenance: Mapping[TransactionId, Provenance] | None = None
    # Views that validation read without writing them.
    reads: tuple[ReadView, ...] = ()
    # Transactions whose type is inferred from their content.
    inferred: Collection[TransactionId] = ()
    # Further branches of the chain on which references to other tables are looked up.
    fallback: tuple[str, ...] = ()
    # The caller has validated the rows.
    is_validated: bool = False


@dataclass(frozen=True, kw_only=True)
class CheckedCommits:
    """Commits, and the views that validation of their rows read without writing them."""

    changes: tuple[CommitTransaction, ...]
    reads: tuple[ReadView, ...] = ()


def commit_transactions(
    database: Database,
    contents: Contents,
    ids: Sequence[TransactionId],
    options: CommitOptions,
    *,
    together_with: Sequence[CommitTransaction] = (),
) -> Receipt:
    """Commit all transactions in one publication; on an error each stays OPEN.

    `together_with` are commits whose content needs no check, such as adopted ones.
    """
    checked = checked_commits(database, contents, ids, options)
    return publish(
        database,
        PublishRequest(
            caller=options.caller,
            kind=nouns.PublicationKind.COMMIT,
            changes=(*together_with, *checked.changes),
            reads=(*options.reads, *checked.reads),
            operation=options.operation,
        ),
    )


def checked_commits(
    database: Database, contents: Contents, ids: Sequence[TransactionId], options: CommitOptions
) -> CheckedCommits:
    """Return the commits, each with its working version and a type that its content allows.

    The rows of tables are validated, on the picture after all of the commits.
    """
    found, bases, kinds = database.read(lambda c: _gather(c, ids, options.caller.attempt))
    changes, changed = [], []
    for id in ids:
        transaction = found[id]
        base = bases.get(transaction.parent) if transaction.parent else None
        before = base.version if base else None
        settled = _complete(database, transaction, kinds[transaction.id], options.caller.attempt)
        named = transaction.unit is None and id not in options.inferred
        type = _checked_type(contents, settled, before, kinds[transaction.id], named=named)
        known = (options.provenance or {}).get(id)
        changes.append(
            CommitTransaction(transaction=id, version=settled.version, type=type, provenance=known)
        )
        if kinds[id] is nouns.DatasetKind.TABLE and settled.version is not None:
            old, new = before.location if before else None, settled.version.location
            changed.append(ChangedTable(name=transaction.dataset, before=old, after=new))
    if not changed or options.is_validated:
        return CheckedCommits(changes=tuple(changes))
    context = BranchContext(chain=make_chain(found[ids[0]].branch, options.fallback))
    verdict = contents.rules(context, changed, options.caller.policy)
    judged = [
        _with_facts(one, verdict.facts.get(found[one.transaction].dataset)) for one in changes
    ]
    return CheckedCommits(changes=tuple(judged), reads=verdict.reads)


def _with_facts(change: CommitTransaction, facts: Mapping[str, Any] | None) -> CommitTransaction:
    if facts is None:
        return change
    known = change.provenance or Provenance()
    return replace(change, provenance=replace(known, facts={**known.facts, **facts}))


def _gather(
    connection: Connection, ids: Sequence[TransactionId], attempt: nouns.AttemptRef | None
) -> tuple[
    dict[TransactionId, nouns.Transaction],
    dict[TransactionId, nouns.Transaction],
    dict[TransactionId, nouns.DatasetKind],
]:
    if attempt is not None:
        # Before the states: a superseded attempt's transactions are closed as a consequence.
        check_newest(connection, attempt)
    found = load_transactions(connection, ids)
    for id in ids:
        state = found[id].state if id in found else "unknown"
        if state is not nouns.TransactionState.OPEN:
            raise TransactionNotOpen(transaction=id, state=state)
    bases = load_transactions(connection, [t.parent for t in found.values() if t.parent])
    kinds = {id: load_dataset(connection, t.dataset).kind for id, t in found.items()}
    return found, bases, kinds


def complete_transactions(
    database: Database, ids: Sequence[TransactionId], attempt: nouns.AttemptRef | None
) -> None:
    """Stage the final content of each transaction, also where nothing was written."""
    found, _, kinds = database.read(lambda c: _gather(c, ids, attempt))
    for id, transaction in found.items():
        _complete(database, transaction, kinds[id], attempt)


def _complete(
    database: Database,
    transaction: nouns.Transaction,
    kind: nouns.DatasetKind,
    attempt: nouns.AttemptRef | None,
) -> nouns.Transaction:
    """Stage the empty tree in a files transaction that put nothing."""
    if transaction.version is not None or kind is not nouns.DatasetKind.FILES:
        return transaction
    return stage_version(
        database, transaction.id, tree_version(EMPTY), expected=None, attempt=attempt
    )


def _checked_type(
    contents: Contents,
    transaction: nouns.Transaction,
    before: nouns.Version | None,
    kind: nouns.DatasetKind,
    *,
    named: bool,
) -> nouns.TransactionType:
    """Return the named type if the content allows it, or the inferred one if none was named."""
    if kind is nouns.DatasetKind.FILES:
        return _files_type(contents.trees, transaction, before, named=named)
    if transaction.version is None:
        return transaction.type if named else nouns.TransactionType.DELETE
    between = views.effect_between if kind is nouns.DatasetKind.VIEW else effect_between
    effect = between(
        contents.tables.read(before.location).metadata if before else None,
        contents.tables.read(transaction.version.location).metadata,
    )
    if not named:
        return effect.inferred_type
    check_transaction_type(transaction=transaction.id, type=transaction.type, effect=effect)
    return transaction.type


def _files_type(
    trees: FileTrees, transaction: nouns.Transaction, before: nouns.Version | None, *, named: bool
) -> nouns.TransactionType:
    old, new = root_of(before), root_of(transaction.version)
    if not named:
        return infer_type(trees.difference(old, new))
    reason = trees.find_violation(transaction.type, old, new)
    if reason is not None:
        raise TransactionTypeViolated(
            transaction=transaction.id, type=transaction.type, reason=reason
        )
    return transaction.type


# --- leases ---------------------------------------------------------------------------------


class Heartbeat:
    """Calls `beat` at intervals in a thread of its own, for the length of a `with` block.

    A `Conflict` ends it and is passed to `lost`: another attempt owns the work.
    """

    def __init__(
        self,
        beat: Callable[[], None],
        *,
        lost: Callable[[HeadgateError], None] = lambda error: None,
        seconds: float = RENEW_SECONDS,
    ) -> None:
        self._beat = beat
        self._lost = lost
        self._seconds = seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self._seconds):
            try:
                self._beat()
            except Conflict as error:
                self._lost(error)
                return
            except HeadgateError:
                # The next beat tries again; leases outlast a short outage.
                continue
