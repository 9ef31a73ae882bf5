"""Handles of datasets and branches: the verbs of `Store.dataset` and `DatasetHandle.branch`."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

from headgate import errors
from headgate.catalog import branches as branch_verbs
from headgate.catalog import datasets as dataset_verbs
from headgate.catalog import records
from headgate.catalog.database import Connection
from headgate.catalog.log import list_history
from headgate.catalog.operations import do_once
from headgate.catalog.records import check_committed
from headgate.catalog.resolve import check_may_create, find_shown, load_shown
from headgate.catalog.transactions import Opener, Opening, open_transactions, stage_version
from headgate.files import edits
from headgate.files.transfer import LocalFile, Progress, scan, upload
from headgate.files.tree import Entry
from headgate.iceberg.table_catalog import Idempotency, TableCatalog, Write, operation_key, register
from headgate.model import names, nouns
from headgate.model.changes import Receipt, request_hash
from headgate.model.contexts import BranchContext, UnitContext, is_plain, parse_context
from headgate.model.ids import mint_content, mint_version
from headgate.storage.address import open_outside, read_outside
from headgate.store.documents import TRANSACTION, Json, dataset_json, file_json
from headgate.store.transactions import ShownFiles, StoreBase, TransactionHandle, UnitHandle
from headgate.tables import views
from headgate.tables.creation import is_metadata_file, newest_metadata
from headgate.tables.inspect import columns_of, partitioning_of
from headgate.tables.metadata import MAIN, Metadata
from headgate.tables.updates import apply_updates

T = TypeVar("T")

# A table of format version 1 accepts no other update before it is upgraded.
_UPGRADE: Json = {"action": "upgrade-format-version", "format-version": 2}
_WITHOUT_ROWS: Json = {"action": "remove-snapshot-ref", "ref-name": MAIN}


def begin(store: StoreBase, opened: nouns.Transaction) -> nouns.Transaction:
    """Stage the first working version of an OPEN transaction.

    A SNAPSHOT of a table starts with its columns and no rows, that of a view with the view.

    Without a staged version no engine would find the table to write to, and a commit would drop it.
    Other transactions are returned unchanged.
    """
    kind, base = store.database.read(lambda c: _base_of(c, opened))
    if base is None:
        return opened
    if kind is nouns.DatasetKind.VIEW:
        return stage_version(
            store.database, opened.id, replace(base, id=mint_version()), expected=None
        )
    held = store.contents.tables.read(base.location).metadata
    metadata = apply_updates(
        held,
        [_WITHOUT_ROWS] if held["format-version"] > 1 else [_UPGRADE, _WITHOUT_ROWS],
        now_ms=time.time_ns() // 1_000_000,
        base_location=base.location,
    )
    written = store.contents.tables.write(opened.dataset_id, metadata, base=held)
    version = nouns.Version(id=mint_version(), location=written.location, content_id=mint_content())
    return stage_version(store.database, opened.id, version, expected=None)


def _base_of(
    connection: Connection, opened: nouns.Transaction
) -> tuple[nouns.DatasetKind, nouns.Version | None]:
    """Return the version of the table or view that a SNAPSHOT replaces; None if there is none."""
    kind = records.load_dataset(connection, opened.dataset).kind
    if opened.type is not nouns.TransactionType.SNAPSHOT or opened.parent is None:
        return kind, None
    before = records.find_transaction(connection, opened.parent)
    if kind is nouns.DatasetKind.FILES or before is None:
        return kind, None
    return kind, before.version


def _describe_content(
    store: StoreBase, dataset: nouns.Dataset, shown: nouns.Transaction | None, *, rows: int
) -> Json:
    """Return the content of a dataset at a transaction, as part of its document.

    For a table `{"schema", "partitioning", "properties", "row_count", "rows"}`; `row_count` is null
    where only Spark can count the rows. For files `{"files", "bytes", "paths"}`, for a view
    `{"schema", "properties", "queries"}`.
    """
    if dataset.kind is nouns.DatasetKind.FILES:
        return _describe_files(store, shown, paths=rows)
    if dataset.kind is nouns.DatasetKind.VIEW:
        return _describe_view(store, dataset, shown, rows=rows)
    if shown is None or shown.version is None:
        return {"schema": [], "partitioning": [], "properties": {}, "row_count": 0, "rows": []}
    version = store.contents.tables.read(shown.version.location)
    from headgate.store.diff import read_shown  # noqa: PLC0415  (slow)

    return {
        "schema": _schema_json(version.metadata),
        "partitioning": partitioning_of(version.metadata),
        "properties": version.metadata.get("properties") or {},
        **read_shown(store, shown.branch, version, limit=rows),
    }


def _describe_view(
    store: StoreBase, dataset: nouns.Dataset, shown: nouns.Transaction | None, *, rows: int
) -> Json:
    if rows:
        raise errors.ViewHasNoRows(view=str(dataset.name))
    if shown is None or shown.version is None:
        return {"schema": [], "properties": {}, "queries": {}}
    metadata = store.contents.tables.read(shown.version.location).metadata
    return {
        "schema": _schema_json(views.as_table(metadata)),
        "properties": metadata.get("properties") or {},
        "queries": views.queries(metadata),
    }


def _schema_json(metadata: Metadata) -> list[Json]:
    return [
        {"name": column.name, "type": column.type, "required": column.required}
        for column in columns_of(metadata)
    ]


def _describe_files(store: StoreBase, shown: nouns.Transaction | None, *, paths: int) -> Json:
    root = edits.root_of(shown.version if shown else None)
    size = store.trees.measure(root)
    entries = itertools.islice(store.trees.walk(root), paths) if paths else ()
    return {
        "files": size.entries,
        "bytes": size.bytes,
        "paths": [file_json(entry)["path"] for entry in entries],
    }


def _metadata_file(location: str, options: Mapping[str, str]) -> str:
    """Return the metadata file at an address; of a directory, its newest one."""
    address = location.rstrip("/")
    if not address.startswith("file:") and "://" not in address:
        address = f"file://{Path(address).absolute()}"
    if is_metadata_file(address):
        return address
    return f"{address}/{newest_metadata(open_outside(address, options))}"


LEASE_SECONDS = 900


@dataclass(frozen=True)
class DatasetHandle:
    """A dataset by name; it does not have to exist yet."""

    store: StoreBase
    name: names.DatasetName

    def load(self) -> nouns.Dataset:
        """Return the dataset, or raise `DatasetNotFound`."""
        return self.store.database.read(lambda c: records.load_dataset(c, self.name))

    def exists(self) -> bool:
        """Return True if the dataset exists."""
        try:
            self.load()
        except errors.DatasetNotFound:
            return False
        return True

    def create(
        self,
        kind: str = "table",
        *,
        branch: str | None = None,
        create: bool = False,
        idempotency_key: str | None = None,
    ) -> Self:
        """Create the dataset with an empty root branch, and return this handle.

        :param kind: `table` or `files`.
        :param branch: name of the root branch; the primary branch by default.
        :param create: accept a branch name that no dataset has yet, and no JobSpecs.
        :param idempotency_key: a repeated call with the same key changes nothing.
        """
        root = branch or self.store.settings.builds.branch
        chosen = names.parse_member(nouns.DatasetKind, kind, what="kind of dataset")

        def act(**how: Any) -> nouns.Dataset:
            database = self.store.database
            database.read(lambda c: check_may_create(c, root, create=create))
            return dataset_verbs.create_dataset(
                database, self.name, kind=chosen, branch=root, **how
            )

        request = {"dataset": str(self.name), "kind": chosen}
        self.store.once(idempotency_key, "dataset-create", root, request, act)
        return self

    def branch(self, name: str) -> BranchHandle:
        """Return a branch of this dataset by name; it does not have to exist yet."""
        return BranchHandle(self, name)

    def branches(self) -> list[nouns.Branch]:
        """Return the branches of this dataset."""
        return self.store.database.read(
            lambda c: records.list_branches(c, records.load_dataset(c, self.name).id)
        )

    def show(self, context: str | None = None, *, rows: int = 0) -> Json:
        """Return the dataset and its content, as the document of `headgate dataset show`.

        :param context: branch, chain, time or unit to read; the primary branch by default. A
            dataset without that branch then shows nothing, and raises no error.
        :param rows: number of rows, or of paths of a files dataset, to include.
        """
        names.check_limit(rows)
        where = parse_context(context or self.store.settings.builds.branch)
        find = load_shown if context else find_shown

        def read(
            connection: Connection,
        ) -> tuple[nouns.Dataset, list[nouns.Branch], nouns.Transaction | None]:
            found = records.load_dataset(connection, self.name)
            branches = records.list_branches(connection, found.id)
            return found, branches, find(connection, where, found)

        dataset, branches, shown = self.store.database.read(read)
        noun = dataset_json(dataset, branches) | {
            "context": str(where),
            "transaction": shown.id if shown else None,
            "shown": TRANSACTION.json(shown) if shown else None,
        }
        return noun | _describe_content(self.store, dataset, shown, rows=rows)

    def register(
        self,
        location: str,
        *,
        branch: str,
        create: bool = False,
        idempotency_key: str | None = None,
    ) -> None:
        """Register an existing Iceberg table as this dataset, without a copy of its data.

        :param location: address of the table's metadata file, or of the directory that holds its
            metadata files.
        :param branch: branch that shows the table.
        :param create: accept a branch name that no dataset has yet, and no JobSpecs.
        """
        store, options = self.store, self.store.settings.environ
        write = Write(
            caller=store.caller, context=BranchContext(chain=(names.check_branch_name(branch),))
        )
        if idempotency_key:
            request = {"dataset": str(self.name), "metadata-location": location}
            hashed = request_hash("dataset-register", request)
            key = Idempotency(key=idempotency_key, request_hash=hashed)
            write = replace(write, idempotency=key)

        def act() -> Any:
            store.database.read(lambda c: check_may_create(c, branch, create=create))
            return register(
                TableCatalog(store.database),
                store.contents.tables,
                partial(read_outside, options=options),
                write,
                name=self.name,
                metadata_location=_metadata_file(location, options),
                now_ms=time.time_ns() // 1_000_000,
            )

        try:
            do_once(store.database, operation_key(write), act)
        except errors.BucketMissing as error:
            # The bucket is the caller's and not the store's: the caller has to name another one.
            raise errors.ObjectNotFound(location=location) from error

    def tag(self, name: str, *, at: str) -> nouns.Tag:
        """Tag a COMMITTED transaction of this dataset, so that cleanup keeps its version.

        :param at: id of the transaction.
        """
        return dataset_verbs.create_tag(
            self.store.database, self.load(), name, at=at, caller=self.store.caller
        )

    def untag(self, name: str) -> None:
        """Delete a tag; cleanup may then condemn the version that it kept."""
        dataset_verbs.delete_tag(self.store.database, self.load(), name, caller=self.store.caller)

    def upload(
        self, files: Sequence[LocalFile], *, progress: Progress | None = None
    ) -> list[Entry]:
        """Store the contents of local files, and return entries for an edit of this dataset.

        No branch changes until `edit` puts the entries.
        """
        edits.check_is_files(self.load())
        return upload(self.store.file_contents, files, progress)

    def shown(
        self, *, branch: str | None = None, txn: str | None = None, at: str | None = None
    ) -> ShownFiles:
        """Return the files of this dataset on a branch, at a transaction or inside a transaction.

        :param branch: branch, chain or moment to read; the primary branch by default.
        :param txn: id of an OPEN transaction or unit whose working version is read. It excludes the
            other parameters, and the read renews its lease.
        :param at: id of a COMMITTED transaction to read in place of the view of the branch.
        """
        found = self.load()
        edits.check_is_files(found)
        if txn is None:
            chosen = branch or self.store.settings.builds.branch
            if is_plain(chosen):
                shown = self.branch(chosen).view(at=at)
            else:
                where = parse_context(chosen)
                shown = self.store.database.read(lambda c: load_shown(c, where, found))
            return ShownFiles(store=self.store, dataset=self.name, transaction=shown)
        if branch is not None or at is not None:
            raise errors.Invalid("a transaction excludes a branch and a moment: leave these out.")
        # A read opens no transaction, but every use renews the lease.
        self.store.opened(txn).renew()
        shown = self.store.database.read(lambda c: find_shown(c, UnitContext(id=txn), found))
        return ShownFiles(store=self.store, dataset=self.name, transaction=shown)

    def writing(
        self, *, branch: str | None = None, txn: str | None = None
    ) -> BranchHandle | TransactionHandle:
        """Return the handle that files are written to: a branch, or an OPEN transaction.

        Pass either `branch`, which must exist, or `txn`, the id of a transaction or a unit.
        """
        edits.check_is_files(self.load())
        if branch is not None and txn is None:
            target = self.branch(branch)
            target.load()
            return target
        if txn is None or branch is not None:
            raise errors.Invalid("name either a branch or a transaction.")
        opened = self.store.opened(txn)
        if isinstance(opened, UnitHandle):
            return opened.dataset(str(self.name))
        if opened.transaction.dataset != self.name:
            raise errors.NotInHistory(dataset=str(self.name), branch=opened.branch, transaction=txn)
        return opened


@dataclass(frozen=True)
class BranchHandle:
    """A branch of a dataset by name; it does not have to exist yet."""

    dataset: DatasetHandle
    name: str

    @property
    def store(self) -> StoreBase:
        """The store of the dataset."""
        return self.dataset.store

    def load(self) -> nouns.Branch:
        """Return the branch, or raise `DatasetNotFound` or `BranchNotFound`."""
        return self.store.database.read(self._load_in)

    def _load_in(self, connection: Connection) -> nouns.Branch:
        dataset = records.load_dataset(connection, self.dataset.name)
        return records.load_branch(connection, dataset, self.name)

    def exists(self) -> bool:
        """Return True if the dataset and the branch exist."""
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
        idempotency_key: str | None = None,
    ) -> Self:
        """Create the branch, and return this handle.

        :param parent: branch to fork from. None creates an empty root branch.
        :param at: id of a COMMITTED transaction to start at, of any branch, also of a deleted one;
            the view of the parent by default.
        :param idempotency_key: a repeated call with the same key changes nothing.
        """
        create = branch_verbs.create_branch
        self._once(idempotency_key, "branch-create", create, parent=parent, at=at)
        return self

    def delete(self, *, force: bool = False, idempotency_key: str | None = None) -> Receipt:
        """Delete the branch, and return the receipt of the publication.

        Only the pointer is deleted. Child branches get the parent of the deleted branch.

        :param force: delete the primary branch too, and one with child branches, OPEN transactions
            or running builds, which raises `BranchInUse` otherwise.
        """

        def delete(**how: Any) -> Receipt:
            found = [self.load()]
            return branch_verbs.delete_branches(self.store.database, found, force=force, **how)

        request = {"dataset": str(self.dataset.name)}
        return self.store.once(idempotency_key, "branch-delete", self.name, request, delete)

    def restore(self, *, idempotency_key: str | None = None) -> Receipt:
        """Restore the branch after it was deleted, and return the receipt of the publication.

        It has its id, view and parent again, and the children that no user has moved since. This
        is possible while its history is retained and no other branch has its name.

        :param idempotency_key: a repeated call with the same key returns the first receipt.
        """
        return self._once(idempotency_key, "branch-restore", branch_verbs.restore_branches)

    def reset(self, to: str, *, idempotency_key: str | None = None) -> Receipt:
        """Move the branch to another transaction, and return the receipt of the publication.

        :param to: tag of the dataset, or id of a COMMITTED transaction of the dataset that cleanup
            has kept, on any branch.
        :param idempotency_key: a repeated call with the same key returns the first receipt.
        """
        return self._once(idempotency_key, "branch-reset", branch_verbs.reset_branch, to=to)

    def reparent(self, under: str | None) -> nouns.Branch:
        """Correct the recorded parent of the branch, and return the branch.

        No transaction moves and no view changes.

        :param under: name of the new parent. None makes it a root branch.
        """
        return branch_verbs.reparent_branch(
            self.store.database,
            self.dataset.load(),
            self.name,
            under=under,
            caller=self.store.caller,
        )

    def history(
        self, *, aborted: bool = False, limit: int | None = None
    ) -> list[nouns.Transaction]:
        """Return the transactions of the branch, newest first.

        :param aborted: include the transactions that were aborted on this branch.
        :param limit: maximum number of transactions; all of them by default.
        """
        names.check_limit(limit)
        return self.store.database.read(
            lambda c: list_history(c, self._load_in(c), aborted=aborted, limit=limit)
        )

    def transaction(
        self, type: str = "UPDATE", *, lease_seconds: int = LEASE_SECONDS
    ) -> TransactionHandle:
        """Open a transaction on the branch, and return its handle.

        The handle is a context manager: it commits at the end of the block, and aborts on an
        exception.

        :param type: `SNAPSHOT`, `APPEND`, `UPDATE` or `DELETE`.
        :param lease_seconds: time without use after which another writer may take over.
        """
        names.check_lease_seconds(lease_seconds)
        branch = self.load()
        [opened] = open_transactions(
            self.store.database,
            [
                Opening(
                    branch=branch.id,
                    type=names.parse_member(nouns.TransactionType, type, what="type"),
                )
            ],
            Opener(caller=self.store.caller, lease_seconds=lease_seconds),
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
        idempotency_key: str | None = None,
        progress: Progress | None = None,
    ) -> Receipt:
        """Upload a local file or directory, and publish it in a transaction of its own.

        :param source: local file or directory.
        :param path: path of the file in the dataset, or directory that receives the content of a
            local directory. Empty: the root of the dataset.
        :param idempotency_key: a repeated call with the same key returns the first receipt.
        :param progress: called as files are uploaded.
        """
        edits.check_is_files(self.dataset.load())
        return edits.write_uploaded(
            lambda: upload(self.store.file_contents, scan(Path(source), path), progress),
            lambda edit: self.edit(edit, idempotency_key=idempotency_key),
        )

    def remove(self, *paths: str, idempotency_key: str | None = None) -> Receipt:
        """Remove files, or everything below a directory, in a transaction of its own."""
        return self.edit(edits.FileEdit(remove=paths), idempotency_key=idempotency_key)

    def edit(self, edit: edits.FileEdit, *, idempotency_key: str | None = None) -> Receipt:
        """Put entries whose contents are already stored, and remove paths, in one publication."""
        store, kind = self.store, "files-put" if edit.put else "files-rm"

        def publish(**how: Any) -> Receipt:
            dataset = self.dataset.load()
            return edits.publish_edit(store.database, store.trees, dataset, self.name, edit, **how)

        request = {"dataset": str(self.dataset.name), **edit.to_json()}
        return store.once(idempotency_key, kind, self.name, request, publish)

    def files(self, prefix: str = "", *, at: str | None = None) -> list[Entry]:
        """Return the files at or below a prefix.

        :param at: id of a COMMITTED transaction to read in place of the view of the branch.
        """
        return self.dataset.shown(branch=self.name, at=at).entries(prefix)

    def read(self, path: str, *, at: str | None = None) -> bytes:
        """Return the content of one file, or raise `FileNotInView`.

        :param at: id of a COMMITTED transaction to read in place of the view of the branch.
        """
        return self.store.trees.read(self.dataset.shown(branch=self.name, at=at).find(path))

    def view(self, *, at: str | None = None) -> nouns.Transaction | None:
        """Return the newest COMMITTED transaction of the branch; None if it has none.

        :param at: id of a COMMITTED transaction of this dataset to return instead.
        """
        branch = self.load()
        id = at or branch.view
        if id is None:
            return None
        shown = self._load_transaction(id)
        if shown.dataset_id != branch.dataset_id:
            raise errors.NotInHistory(dataset=str(branch.dataset), branch=self.name, transaction=id)
        check_committed(shown)
        return shown

    def _load_transaction(self, id: str) -> nouns.Transaction:
        return self.store.database.read(lambda c: records.load_transaction(c, id))

    def _once(
        self, key: str | None, kind: str, verb: Callable[..., T], **request: Any
    ) -> T | Receipt:
        """Carry out a verb on the branch once for a key, with the request as its arguments."""

        def act(**how: Any) -> T:
            return verb(self.store.database, self.dataset.load(), self.name, **request, **how)

        named = {"dataset": str(self.dataset.name), **request}
        return self.store.once(key, kind, self.name, named, act)
