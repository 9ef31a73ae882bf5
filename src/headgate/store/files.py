"""The files that a transaction shows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headgate.errors import FileNotInView, Invalid, VersionExpired
from headgate.files.publication import root_of
from headgate.files.transfer import Progress
from headgate.files.tree import Entry, Mode
from headgate.model.names import DatasetName, check_file_path
from headgate.model.nouns import Transaction
from headgate.store.parts import StoreParts


@dataclass(frozen=True, kw_only=True)
class ShownFiles:
    """The tree of files that a transaction shows; none shows none."""

    store: StoreParts
    dataset: DatasetName
    transaction: Transaction | None

    @property
    def where(self) -> str:
        return self.transaction.id if self.transaction else "an empty branch"

    def entries(self, path: str = "") -> list[Entry]:
        """What is at or below a path; an error where a path is named and nothing is there."""
        found = list(view_files(self.store, self.transaction, path))
        if path and not found:
            raise FileNotInView(dataset=str(self.dataset), path=path, where=self.where)
        return found

    def find(self, path: str) -> Entry:
        """The file with exactly this path."""
        check_file_path(path)
        entry = next((e for e in view_files(self.store, self.transaction, path)), None)
        if entry is None or entry.path != path or entry.is_directory:
            raise FileNotInView(dataset=str(self.dataset), path=path, where=self.where)
        return entry

    def download(self, target: Path, path: str = "", *, progress: Progress | None = None) -> None:
        """Writes what is below a path into a directory; a file under its last name. Verified."""
        root = root_of(self.transaction.version if self.transaction else None)
        self.store.trees.download(root, target, path, progress=progress)


def view_files(
    store: StoreParts, transaction: Transaction | None, prefix: str = ""
) -> Iterator[Entry]:
    """The files that a transaction shows; `VersionExpired` once cleanup has condemned them."""
    if transaction is None:
        return iter(())
    _check_alive(transaction)
    return store.trees.walk(root_of(transaction.version), prefix)


def check_is_bytes(path: str, content: bytes) -> None:
    if not isinstance(content, bytes):
        raise Invalid(
            f"{path!r} is given a {type(content).__name__}: files hold bytes; encode a text, as in "
            '`text.encode("utf-8")`.',
            path=path,
        )


def store_bytes(store: StoreParts, path: str, content: bytes) -> Entry:
    check_file_path(path)
    check_is_bytes(path, content)
    return Entry(path=path, mode=Mode.FILE, size=len(content), digest=store.trees.store(content))


def _check_alive(transaction: Transaction) -> None:
    if transaction.condemned:
        raise VersionExpired(what=f"transaction {transaction.id}")
