"""The files that a transaction shows."""

from __future__ import annotations

from collections.abc import Iterator

from headgate.errors import FileNotInView, VersionExpired
from headgate.files.entries import Entry, Mode
from headgate.files.writing import root_of
from headgate.handles.parts import StoreParts
from headgate.model.names import check_file_path
from headgate.model.nouns import Transaction


def view_files(
    store: StoreParts, transaction: Transaction | None, prefix: str = ""
) -> Iterator[Entry]:
    """The files that a transaction shows; `VersionExpired` once cleanup has condemned them."""
    if transaction is None:
        return iter(())
    _check_alive(transaction)
    return store.trees.walk(root_of(transaction.version), prefix)


def read_file(store: StoreParts, transaction: Transaction | None, path: str) -> bytes:
    check_file_path(path)
    if transaction is not None:
        _check_alive(transaction)
    entry = (
        store.trees.find(root_of(transaction.version), path) if transaction is not None else None
    )
    if entry is None or entry.is_directory:
        raise FileNotInView(
            dataset=str(transaction.dataset) if transaction else "?",
            path=path,
            where=transaction.id if transaction else "an empty branch",
        )
    return store.trees.read(entry)


def store_bytes(store: StoreParts, path: str, content: bytes) -> Entry:
    check_file_path(path)
    return Entry(path=path, mode=Mode.FILE, size=len(content), digest=store.trees.store(content))


def _check_alive(transaction: Transaction) -> None:
    if transaction.condemned:
        raise VersionExpired(what=f"transaction {transaction.id}")
