"""Edits of a files dataset: staged in an OPEN transaction, or published as one of their own."""

import threading
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Self, TypeVar

from headgate import errors
from headgate.catalog import records
from headgate.catalog.database import (
    PLACE,
    TURN_SECONDS,
    Connection,
    Database,
    Suspended,
    Turns,
    Wait,
    backoff_seconds,
    kept_in_place,
)
from headgate.catalog.garbage_collection import find_condemned, spare_objects, sweep_lock
from headgate.catalog.publish import publish, publish_prepared
from headgate.catalog.tickets import Line
from headgate.catalog.transactions import stage_version
from headgate.files.objects import Digest
from headgate.files.tree import EMPTY, Change, Entry, infer_type
from headgate.files.tree_store import Edited, FileTrees
from headgate.model import nouns
from headgate.model.changes import AddTransaction, Caller, OperationKey, PublishRequest, Receipt
from headgate.model.failpoints import Failpoint, reach
from headgate.model.ids import BranchId, ContentId, mint_version
from headgate.model.names import DatasetName, nearest

T = TypeVar("T")

# How often an edit is prepared again on a branch that other writers move.
_TRIES = 20
_LOSSES_BEFORE_TICKET = 1
# Paths that are compared at most with one that a tree does not have.
_COMPARED = 1_000


@dataclass(frozen=True, kw_only=True)
class FileEdit:
    """Entries to put, whose contents are stored already, and paths to remove."""

    put: Sequence[Entry] = ()
    remove: Sequence[str] = ()

    @classmethod
    def of(cls, changes: Iterable[Change]) -> Self:
        """Return the edit that makes these changes."""
        found = list(changes)
        return cls(
            put=[change.after for change in found if change.after is not None],
            remove=[change.path for change in found if change.after is None],
        )

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
            f"dataset {dataset.name} is a {dataset.kind}, not a tree of files. "
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
            transaction = database.read(partial(records.load_transaction, id=transaction.id))
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
    """Publish the edit as one transaction; prepare it again where another writer was first.

    Writers of one branch take turns, so that none of them prepares again and again for nothing.
    """
    check_is_files(dataset)
    with kept_in_place(lambda: _Turn(database, (dataset.id, branch))) as turn:
        losses = 0
        while True:
            turn.wait()
            here, base, is_crowded = database.read(partial(_find_base, dataset, branch))
            if turn.line is None and (is_crowded or losses >= _LOSSES_BEFORE_TICKET):
                turn.queue(here.id)
                continue
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
                if turn.line is not None:
                    return turn.line.publish(request, publish_prepared)
                return publish(database, request)
            except (errors.ViewConflict, errors.ObjectNotFound, errors.VersionExpired) as error:
                losses += 1
                if losses == _TRIES:
                    raise
                if isinstance(error, errors.VersionExpired):
                    spare_condemned(database, trees, edit, apply)
                elif turn.line is None:
                    # The branch moved; or a part of the new tree was old, and swept just now.
                    time.sleep(backoff_seconds(losses))


def _find_base(
    dataset: nouns.Dataset, name: str, connection: Connection
) -> tuple[nouns.Branch, nouns.Transaction | None, bool]:
    """Return the branch, the transaction that it shows, and whether writers wait for it."""
    here = records.load_branch(connection, dataset, name)
    base = records.find_transaction(connection, here.view) if here.view else None
    return here, base, records.is_waited_for(connection, [here.id])


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


def nearest_path(path: str, entries: Iterable[Entry]) -> list[str]:
    """Return the path of the entry that a misspelled one is nearest to, among the first."""
    return nearest(path, (entry.path for entry in islice(entries, _COMPARED)))


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
            near = nearest_path(path, trees.walk(root, ""))
            raise errors.FileNotInView(dataset=str(dataset), path=path, where=place, near=near)
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


_TURNS = Turns()


class _Turn:
    """The turn of a writer: the first of its process, and then, in a crowd, by its ticket."""

    def __init__(self, database: Database, branch: Hashable) -> None:
        self._database = database
        self._deadline = time.monotonic() + TURN_SECONDS
        self._queue = _TURNS.of(branch)
        self._mine = threading.Event()
        self.line: Line | None = None
        self._queue.join(self._mine)

    def wait(self) -> None:
        """Wait for earlier writers; after the timeout, go on without the turn."""
        if not self._mine.is_set():
            if PLACE.get() is not None and time.monotonic() < self._deadline:
                raise Suspended(Wait(deadline=self._deadline, is_over=self._mine.is_set))
            self._mine.wait(max(0.0, self._deadline - time.monotonic()))
        if self.line is not None:
            self.line.wait()

    def queue(self, branch: BranchId) -> None:
        """Take a ticket, behind the writers of all processes."""
        self.line = Line(self._database, seconds=max(0.0, self._deadline - time.monotonic()))
        self.line.join([branch])

    def leave(self) -> None:
        self._queue.leave(self._mine)
        if self.line is not None:
            self.line.leave()
