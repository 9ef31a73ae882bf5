"""A dataset and a branch by name, whether they exist yet or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

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
from headgate.catalog.showing import find_shown
from headgate.catalog.transactions import Opener, Opening, open_transactions
from headgate.endpoint.ports import Idempotency
from headgate.errors import (
    Invalid,
    NotFound,
    NotInHistory,
    TransactionNotCommitted,
    VersionExpired,
)
from headgate.files.entries import Entry
from headgate.files.progress import Progress
from headgate.files.upload import LocalFile
from headgate.files.writing import FileEdit, check_is_files, publish_edit, write_uploaded
from headgate.handles.beginning import begin
from headgate.handles.content import show_dataset
from headgate.handles.files import ShownFiles, view_files
from headgate.handles.nouns import Json
from headgate.handles.parts import StoreParts
from headgate.handles.registering import register_table
from headgate.handles.transactions import TransactionHandle, UnitHandle, load_opened
from headgate.model.changes import OperationKey, Receipt
from headgate.model.contexts import UnitContext
from headgate.model.durations import check_lease_seconds
from headgate.model.names import DatasetName
from headgate.model.nouns import (
    Branch,
    Dataset,
    DatasetKind,
    Tag,
    Transaction,
    TransactionState,
    TransactionType,
)
from headgate.model.options import check_limit, member

LEASE_SECONDS = 900


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
        kind: str = "table",
        *,
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
                kind=member(DatasetKind, kind, what="kind of dataset"),
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

    def show(self, context: str | None = None, *, rows: int = 0) -> Json:
        """The dataset and what it holds in a context, the primary branch unless named.

        The document of `headgate dataset show`.
        """
        return show_dataset(self.store, self.name, context=context, rows=rows)

    def register(
        self, location: str, *, branch: str, idempotency: Idempotency | None = None
    ) -> None:
        """Shows an existing Iceberg table as this dataset, without copying it."""
        register_table(self.store, self.name, location, branch=branch, idempotency=idempotency)

    def tag(self, name: str, *, at: str) -> Tag:
        """Pins a COMMITTED transaction; cleanup keeps it."""
        actor = self.store.settings.actor
        return dataset_verbs.create_tag(self.store.database, self.load(), name, at=at, actor=actor)

    def untag(self, name: str) -> None:
        dataset_verbs.delete_tag(self.store.database, self.load(), name)

    def upload(
        self, files: Sequence[LocalFile], *, progress: Progress | None = None
    ) -> list[Entry]:
        """Stores the contents of local files: entries for an edit of this dataset."""
        check_is_files(self.load())
        return self.store.trees.upload_files(files, progress=progress)

    def shown(
        self, *, branch: str | None = None, txn: str | None = None, at: str | None = None
    ) -> ShownFiles:
        """The files on a branch, the primary one unless named; at a transaction; or in one."""
        found = self.load()
        check_is_files(found)
        if txn is None:
            chosen = self.branch(branch or self.store.settings.builds.branch)
            return ShownFiles(store=self.store, dataset=self.name, transaction=chosen.view(at=at))
        if branch is not None or at is not None:
            raise Invalid("a transaction says it all: leave out the branch and the moment.")
        # Looking at it opens nothing, but is a use of it.
        load_opened(self.store, txn).renew()
        shown = self.store.database.read(lambda c: find_shown(c, UnitContext(id=txn), found))
        return ShownFiles(store=self.store, dataset=self.name, transaction=shown)

    def writing(
        self, *, branch: str | None = None, txn: str | None = None
    ) -> BranchHandle | TransactionHandle:
        """Where files are written: a branch that exists, or a transaction or unit that is open."""
        check_is_files(self.load())
        if branch is not None and txn is None:
            target = self.branch(branch)
            target.load()
            return target
        if txn is None or branch is not None:
            raise Invalid("say where: name either a branch or a transaction.")
        opened = load_opened(self.store, txn)
        if isinstance(opened, UnitHandle):
            return opened.dataset(str(self.name))
        if opened.transaction.dataset != self.name:
            raise NotInHistory(dataset=str(self.name), branch=opened.branch, transaction=txn)
        return opened


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

    def exists(self) -> bool:
        try:
            self.load()
        except NotFound:
            return False
        return True

    def create(
        self,
        parent: str | None = None,
        *,
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
                may_write_protected=self.store.may_write_protected,
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
                may_write_protected=self.store.may_write_protected,
                operation=operation,
            ),
        )

    def reset(self, to: str, *, operation: OperationKey | None = None) -> Receipt:
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
                may_write_protected=self.store.may_write_protected,
                operation=operation,
            ),
        )

    def reparent(self, under: str | None) -> Branch:
        """Mends the ancestry record; None makes it a root."""
        return branch_verbs.reparent_branch(
            self.store.database,
            self.dataset.load(),
            self.name,
            under=under,
            actor=self.store.settings.actor,
        )

    def history(self, *, aborted: bool = False, limit: int | None = None) -> list[Transaction]:
        check_limit(limit)
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
        check_lease_seconds(lease_seconds)
        branch = self.load()
        [opened] = open_transactions(
            self.store.database,
            [Opening(branch=branch.id, type=member(TransactionType, type, what="type"))],
            Opener(
                actor=self.store.settings.actor,
                lease_seconds=lease_seconds,
                may_write_protected=self.store.may_write_protected,
            ),
        )
        handle = TransactionHandle(self.store, opened)
        try:
            handle.transaction = begin(self.store, opened)
        except BaseException:
            handle.abort()
            raise
        return handle

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
                may_write_protected=self.store.may_write_protected,
            ),
        )

    def files(self, prefix: str = "", *, at: str | None = None) -> list[Entry]:
        check_is_files(self.dataset.load())
        return list(view_files(self.store, self.view(at=at), prefix))

    def read(self, path: str, *, at: str | None = None) -> bytes:
        shown = self.dataset.shown(branch=self.name, at=at)
        return self.store.trees.read(shown.find(path))

    def view(self, *, at: str | None = None) -> Transaction | None:
        """What the branch shows, or a COMMITTED transaction of the dataset's past."""
        branch = self.load()
        id = at or branch.view
        if id is None:
            return None
        return self._checked(branch, self.store.database.read(lambda c: load_transaction(c, id)))

    def _checked(self, branch: Branch, shown: Transaction) -> Transaction:
        """A transaction that this branch's dataset shows, or once showed."""
        id = shown.id
        if shown.dataset_id != branch.dataset_id:
            raise NotInHistory(dataset=str(branch.dataset), branch=self.name, transaction=id)
        if shown.state is not TransactionState.COMMITTED:
            raise TransactionNotCommitted(transaction=id, state=shown.state)
        if shown.condemned:
            raise VersionExpired(what=f"transaction {id}")
        return shown
