"""A dataset and a branch by name, whether they exist yet or not."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeVar

from headgate.catalog import branches as branch_verbs
from headgate.catalog import datasets as dataset_verbs
from headgate.catalog.find import (
    find_dataset,
    list_branches,
    load_branch,
    load_dataset,
    load_transaction,
)
from headgate.catalog.log import list_history
from headgate.catalog.operations import do_once
from headgate.catalog.transactions import Opener, Opening, open_transactions
from headgate.errors import Invalid, NotInHistory, TransactionNotCommitted, VersionExpired
from headgate.files.entries import Entry
from headgate.files.progress import Progress
from headgate.files.writing import FileEdit, check_is_files, publish_edit, write_uploaded
from headgate.handles.files import read_file, view_files
from headgate.handles.parts import StoreParts
from headgate.handles.transactions import TransactionHandle
from headgate.model.changes import OperationKey, Receipt
from headgate.model.names import DatasetName
from headgate.model.nouns import (
    Branch,
    Dataset,
    DatasetKind,
    Transaction,
    TransactionState,
    TransactionType,
)

LEASE_SECONDS = 900

E = TypeVar("E", bound=enum.StrEnum)


@dataclass(frozen=True)
class DatasetHandle:
    """A dataset by name, whether it exists yet or not."""

    store: StoreParts
    name: DatasetName

    def load(self) -> Dataset:
        return self.store.database.read(lambda c: load_dataset(c, self.name))

    def exists(self) -> bool:
        return self.store.database.read(lambda c: find_dataset(c, self.name)) is not None

    def create(
        self,
        *,
        kind: str = "table",
        branch: str | None = None,
        operation: OperationKey | None = None,
    ) -> Self:
        """Makes the dataset with an empty root branch, the primary one unless named."""
        do_once(
            self.store.database,
            operation,
            lambda: dataset_verbs.create_dataset(
                self.store.database,
                self.name,
                kind=_member(DatasetKind, kind, what="kind of dataset"),
                branch=branch or self.store.settings.builds.branch,
                actor=self.store.settings.actor,
                operation=operation,
            ),
        )
        return self

    def branch(self, name: str) -> BranchHandle:
        return BranchHandle(self, name)

    def branches(self) -> list[Branch]:
        return self.store.database.read(lambda c: list_branches(c, load_dataset(c, self.name).id))


@dataclass(frozen=True)
class BranchHandle:
    """A branch of a dataset by name, whether it exists yet or not."""

    dataset: DatasetHandle
    name: str

    @property
    def store(self) -> StoreParts:
        return self.dataset.store

    def load(self) -> Branch:
        return self.store.database.read(
            lambda c: load_branch(c, load_dataset(c, self.dataset.name), self.name)
        )

    def create(
        self,
        *,
        parent: str | None = None,
        at: str | None = None,
        operation: OperationKey | None = None,
    ) -> Self:
        """A child of `parent`, optionally where that was at a transaction; else a root."""
        do_once(
            self.store.database,
            operation,
            lambda: branch_verbs.create_branch(
                self.store.database,
                self.dataset.load(),
                self.name,
                parent=parent,
                at=at,
                actor=self.store.settings.actor,
                operation=operation,
            ),
        )
        return self

    def delete(self, *, operation: OperationKey | None = None) -> Receipt:
        """Removes the pointer only; its children go to the grandparent."""
        return do_once(
            self.store.database,
            operation,
            lambda: branch_verbs.delete_branches(
                self.store.database,
                [self.load()],
                actor=self.store.settings.actor,
                operation=operation,
            ),
        )

    def reset(self, *, to: str, operation: OperationKey | None = None) -> Receipt:
        """Moves the branch to a transaction of its history, or back to one a reset took off."""
        return do_once(
            self.store.database,
            operation,
            lambda: branch_verbs.reset_branch(
                self.store.database,
                self.dataset.load(),
                self.name,
                to=to,
                actor=self.store.settings.actor,
                operation=operation,
            ),
        )

    def reparent(self, *, under: str | None) -> Branch:
        """Mends the ancestry record; None makes it a root."""
        return branch_verbs.reparent_branch(
            self.store.database,
            self.dataset.load(),
            self.name,
            under=under,
            actor=self.store.settings.actor,
        )

    def history(self, *, aborted: bool = False, limit: int | None = None) -> list[Transaction]:
        return self.store.database.read(
            lambda c: list_history(
                c,
                load_branch(c, load_dataset(c, self.dataset.name), self.name),
                aborted=aborted,
                limit=limit,
            )
        )

    def transaction(
        self, type: str = "UPDATE", *, lease_seconds: int = LEASE_SECONDS
    ) -> TransactionHandle:
        """Opens a transaction: a context manager that commits, or aborts on an exception."""
        branch = self.load()
        [opened] = open_transactions(
            self.store.database,
            [Opening(branch=branch.id, type=_member(TransactionType, type, what="type"))],
            Opener(actor=self.store.settings.actor, lease_seconds=lease_seconds),
        )
        return TransactionHandle(self.store, opened)

    def put(
        self,
        source: Path | str,
        path: str = "",
        *,
        operation: OperationKey | None = None,
        progress: Progress | None = None,
    ) -> Receipt:
        """Puts a file or a directory: one transaction and publication of its own."""
        check_is_files(self.dataset.load())
        return write_uploaded(
            lambda: self.store.trees.upload(Path(source), path, progress=progress),
            lambda edit: self.edit(edit, operation=operation),
        )

    def remove(self, *paths: str, operation: OperationKey | None = None) -> Receipt:
        """Removes files, or all that is below a directory: one publication."""
        return self.edit(FileEdit(remove=paths), operation=operation)

    def edit(self, edit: FileEdit, *, operation: OperationKey | None = None) -> Receipt:
        """One transaction and publication of its own, from contents that are stored already."""
        return do_once(
            self.store.database,
            operation,
            lambda: publish_edit(
                self.store.database,
                self.store.trees,
                self.dataset.load(),
                self.name,
                edit,
                actor=self.store.settings.actor,
                operation=operation,
            ),
        )

    def files(self, prefix: str = "", *, at: str | None = None) -> list[Entry]:
        check_is_files(self.dataset.load())
        return list(view_files(self.store, self.view(at=at), prefix))

    def read(self, path: str, *, at: str | None = None) -> bytes:
        check_is_files(self.dataset.load())
        return read_file(self.store, self.view(at=at), path)

    def view(self, *, at: str | None = None) -> Transaction | None:
        """What the branch shows, or a COMMITTED transaction of the dataset's past."""
        branch = self.load()
        id = at or branch.view
        if id is None:
            return None
        shown = self.store.database.read(lambda c: load_transaction(c, id))
        if shown.dataset_id != branch.dataset_id:
            raise NotInHistory(dataset=str(branch.dataset), branch=self.name, transaction=id)
        if shown.state is not TransactionState.COMMITTED:
            raise TransactionNotCommitted(transaction=id, state=shown.state)
        if shown.condemned:
            raise VersionExpired(what=f"transaction {id}")
        return shown


def _member(kinds: type[E], text: str, *, what: str) -> E:
    """The member of a closed set that a caller named, or an error that lists them."""
    if text not in set(kinds):
        known = ", ".join(kinds)
        raise Invalid(f"{text!r} is no {what}: it is one of {known}.", given=text)
    return kinds(text)
