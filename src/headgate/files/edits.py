"""Edits of a files dataset: staged in an OPEN transaction, or published as one of their own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from headgate import errors
from headgate.catalog.database import Database, backoff_seconds
from headgate.catalog.garbage_collection import find_condemned, spare_objects, sweep_lock
from headgate.catalog.publish import publish
from headgate.catalog.records import find_transaction, load_branch, load_transaction
from headgate.catalog.transactions import stage_version
from headgate.files.objects import Digest
from headgate.files.tree import EMPTY, Entry, infer_type
from headgate.files.tree_store import Edited, FileTrees
from headgate.model import nouns
from headgate.model.changes import AddTransaction, Caller, OperationKey, PublishRequest, Receipt
from headgate.model.failpoints import Failpoint, reach
from headgate.model.ids import ContentId, mint_version
from headgate.model.names import DatasetName

T = TypeVar("T")

# How often an edit is prepared again on a branch that other writers move.
_TRIES = 20


@dataclass(frozen=True, kw_only=True)
class FileEdit:
    """Entries to put, whose contents are stored already, and paths to remove."""

    put: Sequence[Entry] = ()
    remove: Sequence[str] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the edit as part of a request, whose hash identifies a repeated request."""
        return {
            "put": [[e.path, e.mode, e.size, e.digest] for e in self.put],
            "remove": list(self.remove),
        }


def tree_version(root: Digest) -> nouns.Version:
    """Return a tree as a version; its digest is both location and content id."""
    return nouns.Version(id=mint_version(), location=root, content_id=ContentId(root))


def root_of(version: nouns.Version | None) -> Digest:
    return Digest(version.location) if version else EMPTY


def check_is_files(dataset: nouns.Dataset) -> None:
    if dataset.kind is not nouns.DatasetKind.FILES:
        raise errors.Invalid(
            f"dataset {dataset.name} is a table, not a tree of files. "
            "Write it through Spark or another Iceberg engine.",
            dataset=str(dataset.name),
        )


def write_uploaded(upload: Callable[[], Sequence[Entry]], write: Callable[[FileEdit], T]) -> T:
    """Upload and write; repeat once if cleanup swept some of the contents in between."""
    try:
        return write(FileEdit(put=upload()))
    except errors.ContentSwept:
        return write(FileEdit(put=upload()))


def stage_edit(
    database: Database,
    trees: FileTrees,
    transaction: nouns.Transaction,
    edit: FileEdit,
    *,
    attempt: nouns.AttemptRef | None = None,
    caller: Caller | None = None,
) -> nouns.Transaction:
    """Change the working tree of an OPEN transaction; retry where another writer staged first."""
    for losses in range(_TRIES):
        if transaction.state is not nouns.TransactionState.OPEN:
            raise errors.TransactionNotOpen(transaction=transaction.id, state=transaction.state)
        before = root_of(transaction.version)
        apply = partial(_apply, trees, before, edit, transaction.dataset, transaction)
        edited = apply()
        try:
            return stage_version(
                database,
                transaction.id,
                tree_version(edited.root),
                expected=transaction.version.id if transaction.version else None,
                attempt=attempt,
                objects=edited.locations,
                caller=caller,
            )
        except errors.ViewConflict:
            time.sleep(backoff_seconds(losses))
            transaction = database.read(partial(load_transaction, id=transaction.id))
        except errors.VersionExpired:
            spare_condemned(database, trees, edit, apply)
    raise errors.Invalid(
        f"transaction {transaction.id} is being changed by too many writers at once: "
        f"{_TRIES} tries were overtaken. Try again when fewer write to it."
    )


def publish_edit(
    database: Database,
    trees: FileTrees,
    dataset: nouns.Dataset,
    branch: str,
    edit: FileEdit,
    *,
    caller: Caller,
    operation: OperationKey | None = None,
) -> Receipt:
    """Publish the edit as one transaction; prepare it again where another writer was first."""
    check_is_files(dataset)
    with _TURNS.take((dataset.id, branch), timeout_seconds=_TURN_SECONDS):
        for losses in range(_TRIES):
            here = database.read(partial(load_branch, dataset=dataset, name=branch))
            base = database.read(partial(find_transaction, id=here.view)) if here.view else None
            before = root_of(base.version if base else None)
            apply = partial(_apply, trees, before, edit, dataset.name, base)
            try:
                change = _addition(trees, here, before, apply())
                request = PublishRequest(
                    caller=caller,
                    kind=nouns.PublicationKind.COMMIT,
                    changes=(change,) if change else (),
                    operation=operation,
                )
                return publish(database, request)
            except (errors.ViewConflict, errors.ObjectNotFound):
                # The branch moved; or a part of the new tree was old, and swept just now.
                if losses == _TRIES - 1:
                    raise
                time.sleep(backoff_seconds(losses))
            except errors.VersionExpired:
                if losses == _TRIES - 1:
                    raise
                spare_condemned(database, trees, edit, apply)
    raise AssertionError("unreachable")


def _addition(
    trees: FileTrees, here: nouns.Branch, before: Digest, edited: Edited
) -> AddTransaction | None:
    """Return the edited tree as the branch's next transaction; None if nothing changed."""
    if edited.root == before:
        return None
    return AddTransaction(
        branch=here.id,
        # An OPEN transaction on the branch is a conflict, unless its lease has expired.
        expected_head=here.view,
        expected_view=here.view,
        parent=here.view,
        type=infer_type(trees.difference(before, edited.root)),
        version=tree_version(edited.root),
        objects=edited.locations,
    )


def _apply(
    trees: FileTrees,
    root: Digest,
    edit: FileEdit,
    dataset: DatasetName,
    where: nouns.Transaction | None,
) -> Edited:
    removed: list[str] = []
    for path in edit.remove:
        below = [entry.path for entry in trees.walk(root, path)]
        if not below:
            place = where.id if where else "an empty branch"
            raise errors.FileNotInView(dataset=str(dataset), path=path, where=place)
        removed += below
    edited = trees.edit(root, put=edit.put, remove=removed)
    reach(Failpoint.FILES_TREE_STORED)
    return edited


def spare_condemned(
    database: Database, trees: FileTrees, edit: FileEdit, apply: Callable[[], Edited]
) -> None:
    """Check that condemned objects which the edit needs are still stored, then spare them.

    In this order, and while no sweep runs: another writer may rely on an object as soon as it is
    spared.
    """
    with sweep_lock(database):
        locations = apply().locations
        condemned = database.read(partial(find_condemned, locations=locations))
        for entry in edit.put:
            if not entry.is_directory and trees.objects.location(entry.digest) in condemned:
                _check_stored(trees, entry)
        spare_objects(database, condemned)


def _check_stored(trees: FileTrees, entry: Entry) -> None:
    try:
        next(trees.stream(entry), None)
    except errors.ObjectNotFound as error:
        raise errors.ContentSwept(path=entry.path) from error


# --- turns of writers -----------------------------------------------------------------------


class Turns:
    """Lets the writers of a branch in this process go one after another.

    It only saves losers their work: conflicts are decided by `publish`.
    """

    def __init__(self) -> None:
        # Weak, so that a lock goes with its last writer; reentrant, so that none waits for itself.
        self._locks: WeakValueDictionary[Hashable, threading.RLock] = WeakValueDictionary()
        self._guard = threading.Lock()

    @contextmanager
    def take(self, branch: Hashable, *, timeout_seconds: float) -> Iterator[None]:
        """Wait for the other writers of this branch; after the timeout, go on without the turn."""
        with self._guard:
            lock = self._locks.setdefault(branch, threading.RLock())
        is_mine = lock.acquire(timeout=timeout_seconds)
        try:
            yield
        finally:
            if is_mine:
                lock.release()


_TURN_SECONDS = 10.0
_TURNS = Turns()
