"""A dataset and a branch by name, whether they exist yet or not."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

from headgate import errors
from headgate.catalog import branches as branch_verbs
from headgate.catalog import datasets as dataset_verbs
from headgate.catalog import records
from headgate.catalog.database import Connection
from headgate.catalog.log import list_history
from headgate.catalog.operations import do_once
from headgate.catalog.resolve import find_shown, load_shown
from headgate.catalog.transactions import Opener, Opening, open_transactions, stage_version
from headgate.files.edits import (
    FileEdit,
    check_is_files,
    publish_edit,
    root_of,
    write_uploaded,
)
from headgate.files.transfer import LocalFile, Progress, upload
from headgate.files.tree import Entry
from headgate.iceberg.table_catalog import (
    Idempotency,
    Principal,
    TableCatalog,
    operation_key,
    register,
)
from headgate.model.changes import OperationKey, Receipt
from headgate.model.contexts import BranchContext, UnitContext, parse_context
from headgate.model.ids import mint_content, mint_version
from headgate.model.names import (
    DatasetName,
    check_branch_name,
    check_lease_seconds,
    check_limit,
    parse_member,
)
from headgate.model.nouns import (
    Branch,
    Dataset,
    DatasetKind,
    Tag,
    Transaction,
    TransactionState,
    TransactionType,
    Version,
)
from headgate.storage.address import open_outside, read_outside
from headgate.store.documents import Json, dataset_json, file_json, transaction_json
from headgate.store.transactions import (
    ShownFiles,
    StoreParts,
    TransactionHandle,
    UnitHandle,
    load_opened,
    view_files,
)
from headgate.tables.creation import is_metadata_file, newest_metadata
from headgate.tables.inspect import columns_of, find_row_count, partitioning_of, read_rows
from headgate.tables.metadata import MAIN
from headgate.tables.updates import apply_updates

# What an OPEN transaction holds before anything is written in it.

# Nothing but this can be done to a table of the first format.
_UPGRADE: Json = {"action": "upgrade-format-version", "format-version": 2}
_WITHOUT_ROWS: Json = {"action": "remove-snapshot-ref", "ref-name": MAIN}


def begin(store: StoreParts, opened: Transaction) -> Transaction:
    """A SNAPSHOT of a table begins with the table's columns and no rows.

    Without them no engine would find the table to write to, and a commit would drop it.
    """
    base = store.database.read(lambda c: _base_of(c, opened))
    if base is None:
        return opened
    held = store.contents.tables.read(base.location).metadata
    metadata = apply_updates(
        held,
        [_WITHOUT_ROWS] if held["format-version"] > 1 else [_UPGRADE, _WITHOUT_ROWS],
        now_ms=time.time_ns() // 1_000_000,
        base_location=base.location,
    )
    written = store.contents.tables.write(opened.dataset_id, metadata)
    version = Version(id=mint_version(), location=written.location, content_id=mint_content())
    return stage_version(store.database, opened.id, version, expected=None)


def _base_of(connection: Connection, opened: Transaction) -> Version | None:
    """The version of the table that a SNAPSHOT is about to replace."""
    if opened.type is not TransactionType.SNAPSHOT or opened.parent is None:
        return None
    if records.load_dataset(connection, opened.dataset).kind is not DatasetKind.TABLE:
        return None
    before = records.find_transaction(connection, opened.parent)
    return before.version if before is not None else None


# What is in a dataset at a transaction: a table's columns and rows, or files.


def show_dataset(store: StoreParts, name: DatasetName, *, context: str | None, rows: int) -> Json:
    """The document of `headgate dataset show`: the noun, what a context shows, its content.

    Where nobody named one it is the primary branch, also of a dataset that has none of the name.
    """
    check_limit(rows)
    where = parse_context(context or store.settings.builds.branch)
    find = load_shown if context else find_shown

    def read(connection: Connection) -> tuple[Dataset, list[Branch], Transaction | None]:
        found = records.load_dataset(connection, name)
        branches = records.list_branches(connection, found.id)
        return found, branches, find(connection, where, found)

    dataset, branches, shown = store.database.read(read)
    noun = dataset_json(dataset, branches) | {
        "context": str(where),
        "transaction": shown.id if shown else None,
        "shown": transaction_json(shown) if shown else None,
    }
    return noun | look_inside(store, dataset, shown, rows=rows)


def look_inside(
    store: StoreParts, dataset: Dataset, shown: Transaction | None, *, rows: int
) -> Json:
    """A table's `{"schema", "partitioning", "properties", "row_count", "rows"}`; `row_count` is
    null where only Spark can tell. A tree's `{"files", "bytes", "paths"}`.
    """
    if dataset.kind is DatasetKind.FILES:
        return _look_into_files(store, shown, paths=rows)
    if shown is None or shown.version is None:
        return {"schema": [], "partitioning": [], "properties": {}, "row_count": 0, "rows": []}
    version = store.contents.tables.read(shown.version.location)
    options = store.settings.environ
    return {
        "schema": [
            {"name": column.name, "type": column.type, "required": column.required}
            for column in columns_of(version.metadata)
        ],
        "partitioning": partitioning_of(version.metadata),
        "properties": version.metadata.get("properties") or {},
        "row_count": find_row_count(version, options=options),
        "rows": read_rows(version, limit=rows, options=options),
    }


def _look_into_files(store: StoreParts, shown: Transaction | None, *, paths: int) -> Json:
    root = root_of(shown.version if shown else None)
    size = store.trees.measure(root)
    entries = itertools.islice(store.trees.walk(root), paths) if paths else ()
    return {
        "files": size.entries,
        "bytes": size.bytes,
        "paths": [file_json(entry)["path"] for entry in entries],
    }


# An Iceberg table of another catalog becomes a dataset, without a copy.


def register_table(
    store: StoreParts,
    name: DatasetName,
    location: str,
    *,
    branch: str,
    idempotency: Idempotency | None = None,
) -> None:
    """Shows the table at an address on a branch; a directory means its newest metadata file."""
    options = store.settings.environ
    principal = Principal(actor=store.settings.actor, may_write_protected=store.may_write_protected)
    context = BranchContext(chain=(check_branch_name(branch),))
    try:
        do_once(
            store.database,
            operation_key(principal, context, idempotency),
            lambda: register(
                TableCatalog(store.database),
                store.contents.tables,
                partial(read_outside, options=options),
                principal=principal,
                context=context,
                name=name,
                metadata_location=_metadata_file(location, options),
                now_ms=time.time_ns() // 1_000_000,
                idempotency=idempotency,
            ),
        )
    except errors.BucketMissing as error:
        # Not ours: whoever named it has to name another one.
        raise errors.ObjectNotFound(location=location) from error


def _metadata_file(location: str, options: Mapping[str, str]) -> str:
    address = location.rstrip("/")
    if not address.startswith("file:") and "://" not in address:
        address = f"file://{Path(address).absolute()}"
    if is_metadata_file(address):
        return address
    return f"{address}/{newest_metadata(open_outside(address, options))}"


LEASE_SECONDS = 900


@dataclass(frozen=True)
class DatasetHandle:
    """A dataset by name, whether it exists yet or not."""

    store: StoreParts
    name: DatasetName

    def load(self) -> Dataset:
        return self.store.database.read(lambda c: records.load_dataset(c, self.name))

    def exists(self) -> bool:
        return self.store.database.read(lambda c: records.find_dataset(c, self.name)) is not None

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
                kind=parse_member(DatasetKind, kind, what="kind of dataset"),
                branch=branch or self.store.settings.builds.branch,
                actor=self.store.settings.actor,
                operation=operation,
            ),
        )
        return self

    def branch(self, name: str) -> BranchHandle:
        return BranchHandle(self, name)

    def branches(self) -> list[Branch]:
        return self.store.database.read(
            lambda c: records.list_branches(c, records.load_dataset(c, self.name).id)
        )

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
        return upload(self.store.trees.objects, files, progress)

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
            raise errors.Invalid("a transaction says it all: leave out the branch and the moment.")
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
            raise errors.Invalid("say where: name either a branch or a transaction.")
        opened = load_opened(self.store, txn)
        if isinstance(opened, UnitHandle):
            return opened.dataset(str(self.name))
        if opened.transaction.dataset != self.name:
            raise errors.NotInHistory(dataset=str(self.name), branch=opened.branch, transaction=txn)
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
            lambda c: records.load_branch(c, records.load_dataset(c, self.dataset.name), self.name)
        )

    def exists(self) -> bool:
        try:
            self.load()
        except errors.NotFound:
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
                records.load_branch(c, records.load_dataset(c, self.dataset.name), self.name),
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
            [Opening(branch=branch.id, type=parse_member(TransactionType, type, what="type"))],
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
        return self._checked(
            branch, self.store.database.read(lambda c: records.load_transaction(c, id))
        )

    def _checked(self, branch: Branch, shown: Transaction) -> Transaction:
        """A transaction that this branch's dataset shows, or once showed."""
        id = shown.id
        if shown.dataset_id != branch.dataset_id:
            raise errors.NotInHistory(dataset=str(branch.dataset), branch=self.name, transaction=id)
        if shown.state is not TransactionState.COMMITTED:
            raise errors.TransactionNotCommitted(transaction=id, state=shown.state)
        if shown.condemned:
            raise errors.VersionExpired(what=f"transaction {id}")
        return shown
