"""The front of this room: file trees in one store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from headgate.files import tree
from headgate.files.difference import Change, difference
from headgate.files.download import download, relative_to
from headgate.files.editing import Edited, edit
from headgate.files.entries import EMPTY, Entry
from headgate.files.objects import Digest, Objects
from headgate.files.progress import Progress
from headgate.files.rules import find_violation
from headgate.files.upload import LocalFile, scan, upload
from headgate.model.nouns import TransactionType
from headgate.model.ports import ObjectStore


@dataclass(frozen=True, kw_only=True)
class TreeSize:
    entries: int
    bytes: int


class FileTrees:
    """Trees of files in one store; a tree is named by its root, the digest of its index."""

    def __init__(self, store: ObjectStore) -> None:
        self._objects = Objects(store)

    def location(self, digest: Digest) -> str:
        """Where the object with this digest is stored."""
        return self._objects.location(digest)

    def find(self, root: Digest, path: str) -> Entry | None:
        """The entry with exactly this path; None also for a directory that has content."""
        return tree.find(self._objects, root, path)

    def walk(self, root: Digest, prefix: str = "") -> Iterator[Entry]:
        """The entries at or below `prefix`, all for the empty one, in the order of their paths."""
        return tree.walk(self._objects, root, prefix.rstrip("/"))

    def measure(self, root: Digest) -> TreeSize:
        """How many entries and bytes the tree has, from its index alone."""
        leaves = tree.load_index(self._objects, root).leaves
        return TreeSize(
            entries=sum(leaf.entry_count for leaf in leaves),
            bytes=sum(leaf.total_bytes for leaf in leaves),
        )

    def read(self, entry: Entry) -> bytes:
        """The content of a file, verified."""
        return self._objects.get(entry.digest)

    def stream(self, entry: Entry) -> Iterator[bytes]:
        """The content of a file in chunks; ends in `ObjectCorrupted` if it is damaged."""
        return self._objects.stream(entry.digest)

    def store(self, data: bytes) -> Digest:
        """Stores one content, for an entry that is to name it."""
        return self._objects.put(data)

    def upload(
        self, source: Path, under: str = "", *, progress: Progress | None = None
    ) -> list[Entry]:
        """Stores a local file as `under`, or a directory's content below it: entries to put."""
        return self.upload_files(scan(source, under), progress=progress)

    def upload_files(
        self, files: Iterable[LocalFile], *, progress: Progress | None = None
    ) -> list[Entry]:
        """As `upload`, of those that the caller chose from a `scan`."""
        return upload(self._objects, files, progress)

    def edit(
        self, root: Digest, *, put: Iterable[Entry] = (), remove: Iterable[str] = ()
    ) -> Edited:
        """The tree without the removed paths and with the entries put; a path in both is put."""
        return edit(self._objects, root, put=put, remove=remove)

    def download(
        self, root: Digest, target: Path, prefix: str = "", *, progress: Progress | None = None
    ) -> list[Entry]:
        """Writes what is below `prefix` into the target directory, verified; returns what it wrote.

        A prefix that is a file is written under its last name.
        """
        chosen = relative_to(self.walk(root, prefix), prefix.rstrip("/"))
        return download(self._objects, chosen, target, progress)

    def difference(self, before: Digest, after: Digest) -> Iterator[Change]:
        """The changes that lead from one tree to the other, in the order of their paths."""
        return difference(self._objects, before, after)

    def find_violation(
        self, type: TransactionType, before: Digest | None, after: Digest
    ) -> str | None:
        """Why a transaction of this type may not make this change, naming a path, or None."""
        return find_violation(type, self.difference(before or EMPTY, after))

    def references(self, roots: Iterable[Digest]) -> Iterator[Digest]:
        """Every object that these trees need, some of them more than once."""
        return tree.references(self._objects, roots)
