"""The front of this room: file trees in one store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headgate.files import tree
from headgate.files.cache import ContentCache, LocalContents
from headgate.files.edit import Edited, edit
from headgate.files.objects import Digest, Objects
from headgate.files.transfer import LocalFile, Progress, download, relative_to, scan, upload
from headgate.files.tree import EMPTY, Change, Entry, difference, find_violation
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
        return self.stream_content(entry.digest)

    def find_size(self, digest: str) -> int | None:
        """How many bytes a stored content has; None where there is none of that digest."""
        return self._objects.find_size(digest)

    def store_file(self, digest: Digest, source: Path) -> bool:
        """Stores a file's content, which must have this digest; False if it was there already."""
        return self._objects.put_file(digest, source)

    def store_files(self, files: Mapping[Digest, Path]) -> None:
        """As `store_file` of each, together where small contents travel so."""
        self._objects.put_files(files)

    def store_each(self, contents: Iterable[tuple[Digest, bytes]]) -> int:
        """Stores contents whose digests were verified, as they come; how many they were."""
        return self._objects.put_each(contents)

    @property
    def travel_together(self) -> bool:
        """Whether small contents come from this store, and go to it, many at once."""
        return self._objects.travel_together

    def find_missing(self, digests: Sequence[Digest]) -> list[Digest]:
        """Which of these contents are not stored."""
        return self._objects.find_missing(digests)

    def read_small(
        self, digests: Sequence[Digest], *, most_bytes: int
    ) -> Iterator[tuple[Digest, bytes]]:
        """Of these contents those that are there, whole, and no larger than that."""
        return self._objects.get_small(digests, most_bytes=most_bytes)

    def store_unhashed(self, source: Path) -> tuple[Digest, int]:
        """Stores a file's content as it is now; its digest and size."""
        return self._objects.put_unhashed(source)

    def stream_content(self, digest: Digest) -> Iterator[bytes]:
        """A stored content in chunks; ends in `ObjectCorrupted` if it is damaged."""
        return self._objects.stream(digest)

    def contents(self, cache: ContentCache) -> LocalContents:
        """The contents as local files: the store's own, or fetched once into this cache."""
        return LocalContents(self._objects, cache)

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

    def download_entries(self, entries: Iterable[Entry], target: Path) -> list[Entry]:
        """Writes these files into the target directory, verified."""
        return download(self._objects, entries, target)

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
