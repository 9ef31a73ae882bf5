"""Files into a dataset: staged in an OPEN transaction, or a transaction of their own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from headgate.catalog.database import Database
from headgate.catalog.garbage_collection import find_condemned, spare_objects, sweeping_alone
from headgate.catalog.publish import publish
from headgate.catalog.records import find_transaction, load_branch, load_transaction
from headgate.catalog.transactions import stage_version
from headgate.errors import (
    ContentSwept,
    FileNotInView,
    Invalid,
    ObjectNotFound,
    TransactionNotOpen,
    VersionExpired,
    ViewConflict,
)
from headgate.files.objects import Digest
from headgate.files.tree import EMPTY, Change, ChangeKind, Edited, Entry
from headgate.files.trees import FileTrees
from headgate.model.changes import (
    AddTransaction,
    OperationKey,
    PublishRequest,
    Receipt,
    wait_seconds,
)
from headgate.model.failpoints import Failpoint, reach
from headgate.model.ids import ContentId, mint_version
from headgate.model.names import DatasetName
from headgate.model.nouns import (
    AttemptRef,
    Branch,
    Dataset,
    DatasetKind,
    PublicationKind,
    Transaction,
    TransactionState,
    TransactionType,
    Version,
)

# Writers of one branch in one process: one after the other, rather than one against the other.


class Turns:
    """A turn for each branch; it spares losers their work, and decides nothing: the door does."""

    def __init__(self) -> None:
        # Forgotten with the last writer who waits for it; a writer need not wait for itself.
        self._locks: WeakValueDictionary[Hashable, threading.RLock] = WeakValueDictionary()
        self._guard = threading.Lock()

    @contextmanager
    def taken(self, branch: Hashable, *, patience_seconds: float) -> Iterator[None]:
        """Waits for the others who write this branch; after a while, goes on all the same."""
        with self._guard:
            lock = self._locks.setdefault(branch, threading.RLock())
        mine = lock.acquire(timeout=patience_seconds)
        try:
            yield
        finally:
            if mine:
                lock.release()


T = TypeVar("T")

# How often a write of its own is prepared again on a branch that others move.
_TRIES = 20
# Of a server's many threads that publish on one branch, one prepares while the others wait.
_TURN_SECONDS = 10.0
_TURNS = Turns()


@dataclass(frozen=True, kw_only=True)
class FileEdit:
    """What to change: entries to put, whose content is stored already, and paths to remove."""

    put: Sequence[Entry] = ()
    remove: Sequence[str] = ()

    def to_json(self) -> dict[str, Any]:
        """The edit as part of a request, whose hash tells a repetition from another request."""
        return {
            "put": [[e.path, e.mode, e.size, e.digest] for e in self.put],
            "remove": list(self.remove),
        }


def tree_version(root: Digest) -> Version:
    """A tree as a version: its digest says what it holds."""
    return Version(id=mint_version(), location=root, content_id=ContentId(root))


def root_of(version: Version | None) -> Digest:
    return Digest(version.location) if version else EMPTY


def write_uploaded(upload: Callable[[], Sequence[Entry]], write: Callable[[FileEdit], T]) -> T:
    """Uploads and writes; once more where cleanup swept some of it in between."""
    try:
        return write(FileEdit(put=upload()))
    except ContentSwept:
        return write(FileEdit(put=upload()))


def stage_edit(
    database: Database,
    trees: FileTrees,
    transaction: Transaction,
    edit: FileEdit,
    *,
    attempt: AttemptRef | None = None,
) -> Transaction:
    """Changes the working tree of an OPEN transaction; several writers of it take turns."""
    for losses in range(_TRIES):
        if transaction.state is not TransactionState.OPEN:
            raise TransactionNotOpen(transaction=transaction.id, state=transaction.state)
        apply = partial(
            _apply, trees, root_of(transaction.version), edit, transaction.dataset, transaction
        )
        edited = apply()
        try:
            return stage_version(
                database,
                transaction.id,
                tree_version(edited.root),
                expected=transaction.version.id if transaction.version else None,
                attempt=attempt,
                objects=locations_in(trees, edited),
            )
        except ViewConflict:
            time.sleep(wait_seconds(losses))
            transaction = database.read(partial(load_transaction, id=transaction.id))
        except VersionExpired:
            take_back(database, trees, edit, apply)
    raise Invalid(f"transaction {transaction.id} is being changed by too many writers at once.")


def publish_edit(
    database: Database,
    trees: FileTrees,
    dataset: Dataset,
    branch: str,
    edit: FileEdit,
    *,
    actor: str,
    operation: OperationKey | None = None,
    may_write_protected: bool = False,
) -> Receipt:
    """One transaction and publication of its own; prepared again where others were first."""
    check_is_files(dataset)
    with _TURNS.taken((dataset.id, branch), patience_seconds=_TURN_SECONDS):
        for losses in range(_TRIES):
            here = database.read(partial(load_branch, dataset=dataset, name=branch))
            base = database.read(partial(find_transaction, id=here.view)) if here.view else None
            before = root_of(base.version if base else None)
            apply = partial(_apply, trees, before, edit, dataset.name, base)
            try:
                change = _addition(trees, here, before, apply())
                request = PublishRequest(
                    actor=actor,
                    kind=PublicationKind.COMMIT,
                    changes=(change,) if change else (),
                    operation=operation,
                    may_write_protected=may_write_protected,
                )
                return publish(database, request)
            except (ViewConflict, ObjectNotFound):
                # Somebody moved the branch; or a part of the new tree was old and swept just now.
                if losses == _TRIES - 1:
                    raise
                time.sleep(wait_seconds(losses))
            except VersionExpired:
                if losses == _TRIES - 1:
                    raise
                take_back(database, trees, edit, apply)
    raise AssertionError("unreachable")


def _addition(
    trees: FileTrees, here: Branch, before: Digest, edited: Edited
) -> AddTransaction | None:
    """The edited tree as the branch's next transaction; None where it is the one it shows."""
    if edited.root == before:
        return None
    return AddTransaction(
        branch=here.id,
        # An OPEN transaction refuses this at the door, unless its holder's lease is over.
        expected_head=here.view,
        expected_view=here.view,
        parent=here.view,
        type=natural_type(trees.difference(before, edited.root)),
        version=tree_version(edited.root),
        objects=frozenset(locations_in(trees, edited)),
    )


def check_is_files(dataset: Dataset) -> None:
    if dataset.kind is not DatasetKind.FILES:
        raise Invalid(
            f"dataset {dataset.name} is a table, not a tree of files. "
            "Write it through Spark or another Iceberg engine.",
            dataset=str(dataset.name),
        )


def _apply(
    trees: FileTrees,
    root: Digest,
    edit: FileEdit,
    dataset: DatasetName,
    where: Transaction | None,
) -> Edited:
    for path in edit.remove:
        if next(trees.walk(root, path), None) is None:
            raise FileNotInView(
                dataset=str(dataset),
                path=path,
                where=where.id if where else "an empty branch",
            )
    removed = [entry.path for path in edit.remove for entry in trees.walk(root, path)]
    edited = trees.edit(root, put=edit.put, remove=removed)
    reach(Failpoint.FILES_TREE_STORED)
    return edited


def take_back(
    database: Database, trees: FileTrees, edit: FileEdit, apply: Callable[[], Edited]
) -> None:
    """What cleanup has condemned is needed again: its bytes are made sure of, then it is spared.

    In this order, and while nobody sweeps: another writer may rely on it as soon as it is spared.
    """
    with sweeping_alone(database):
        locations = locations_in(trees, apply())
        condemned = database.read(partial(find_condemned, locations=locations))
        for entry in edit.put:
            if not entry.is_directory and trees.location(entry.digest) in condemned:
                _check_stored(trees, entry)
        spare_objects(database, condemned)


def _check_stored(trees: FileTrees, entry: Entry) -> None:
    try:
        next(trees.stream(entry), None)
    except ObjectNotFound as error:
        raise ContentSwept(path=entry.path) from error


def locations_in(trees: FileTrees, edited: Edited) -> Iterable[str]:
    return [trees.location(digest) for digest in edited.digests]


def natural_type(changes: Iterable[Change]) -> TransactionType:
    """The type that a change has when nobody named one."""
    kinds = {change.kind for change in changes}
    if kinds == {ChangeKind.ADDED}:
        return TransactionType.APPEND
    if kinds == {ChangeKind.REMOVED}:
        return TransactionType.DELETE
    # An UPDATE may not remove: what both adds and removes says all that is to be seen.
    return TransactionType.SNAPSHOT if ChangeKind.REMOVED in kinds else TransactionType.UPDATE
