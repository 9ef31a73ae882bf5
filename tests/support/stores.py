"""Stores for tests: real and new, on either database, with content on local disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import Connection, select, update

from headgate.catalog.database import Database, now
from headgate.catalog.migrate import ensure_schema
from headgate.catalog.records import load_transaction
from headgate.catalog.schema import attempts, intents, metadata, transactions, units
from headgate.files.edits import FileEdit, publish_edit
from headgate.model.changes import Receipt
from headgate.model.ids import BranchId, TransactionId
from headgate.model.nouns import Branch, Dataset, Transaction
from headgate.settings import Settings
from headgate.store.datasets import BranchHandle
from headgate.store.embedded import Store
from headgate.store.transactions import StoreBase, store_bytes

DATASET = "raw.scans"


def new_settings(catalog_url: str, root: Path, *, actor: str = "ana") -> Settings:
    """Create an empty store, and return its settings."""
    settings = Settings(
        root=root,
        catalog=catalog_url,
        warehouse=str(root / "warehouse"),
        actor=actor,
        cache=root / "cache",
    )
    database = Database(catalog_url)
    ensure_schema(database, create=True)
    database.close()
    return settings


def new_store(catalog_url: str, root: Path, *, actor: str = "ana") -> Store:
    return Store(new_settings(catalog_url, root, actor=actor))


def files_branch(store: Store, name: str = DATASET, branch: str = "master") -> BranchHandle:
    """Create a files dataset with an empty root branch."""
    return store.dataset(name).create("files", branch=branch, create=True).branch(branch)


def put(branch: BranchHandle, **files: str) -> TransactionId:
    """Publish small files, by name, in a transaction of their own; return the new view."""
    publish_files(branch, **files)
    view = branch.load().view
    assert view is not None
    return view


def publish_files(branch: BranchHandle, **files: str) -> Receipt:
    store = branch.store
    entries = [store_bytes(store, path, text.encode()) for path, text in files.items()]
    return publish_edit(
        store.database,
        store.trees,
        branch.dataset.load(),
        branch.name,
        FileEdit(put=entries),
        caller=store.caller,
    )


def content(branch: BranchHandle, *, at: str | None = None) -> dict[str, str]:
    """Return path and text of the files on a branch, or at a transaction."""
    return {e.path: branch.read(e.path, at=at).decode() for e in branch.files(at=at)}


def load(store: StoreBase, id: str) -> Transaction:
    """Read a transaction from the catalog."""
    return store.database.read(lambda c: load_transaction(c, id))


def load_dataset(store: Store, name: str = DATASET) -> Dataset:
    return store.dataset(name).load()


def branches_by_name(store: Store, dataset: str = DATASET) -> dict[str, Branch]:
    return {branch.name: branch for branch in store.dataset(dataset).branches()}


def branch_id(branch: BranchHandle) -> BranchId:
    return branch.load().id


def expire_leases(store: Store) -> None:
    """Expire every lease in the store, long ago."""

    def work(connection: Connection) -> None:
        for table in (transactions, intents, attempts, units):
            connection.execute(update(table).values(lease_until=1))

    store.database.write(work)


def expire_just_now(store: Store, transaction: str) -> None:
    """Expire the lease of this transaction, just now."""
    set_lease(store, transaction, seconds_left=-0.001)


def set_lease(store: Store, transaction: str, *, seconds_left: float) -> None:
    def work(connection: Connection) -> None:
        connection.execute(
            update(transactions)
            .where(transactions.c.id == transaction)
            .values(lease_until=now(connection) + int(seconds_left * 1_000_000))
        )

    store.database.write(work)


def hold_for_years(store: Store, id: str) -> None:
    """Extend the lease of this transaction or unit, as if it was used for years."""
    years = 100 * 365 * 24 * 3600

    def work(connection: Connection) -> None:
        until = now(connection) + years * 1_000_000
        for table in (transactions, units):
            held = update(table).where(table.c.id == id)
            connection.execute(held.values(lease_seconds=years, lease_until=until))

    store.database.write(work)


def everything(store: Store) -> dict[str, list[tuple[Any, ...]]]:
    """Return every row of every table, to compare before and after."""

    def read(connection: Connection) -> dict[str, list[tuple[Any, ...]]]:
        return {
            table.name: sorted((tuple(row) for row in connection.execute(select(table))), key=repr)
            for table in metadata.sorted_tables
        }

    return store.database.read(read)
