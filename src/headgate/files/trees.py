"""The front of this room: file trees in one store."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from headgate.errors import ObjectNotFound, StorageUnavailable
from headgate.files import tree
from headgate.files.objects import BATCHES_AHEAD, Digest, Objects, batched, in_parallel
from headgate.files.transfer import LocalFile, Progress, download, relative_to, scan, upload
from headgate.files.tree import EMPTY, Change, Edited, Entry, difference, edit, find_violation
from headgate.model.nouns import TransactionType
from headgate.model.ports import ObjectStore

# Contents as plain local files: where the store has them already, or fetched once into a cache.

_AHEAD = 256


class ContentCache:
    """Contents by digest below a directory of this machine; a file there is whole and verified."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def find(self, digest: Digest) -> Path | None:
        path = self._path(digest)
        return path if path.is_file() else None

    def add(self, digest: Digest, chunks: Iterator[bytes]) -> Path:
        """Keeps a content that its source verifies: one whose chunks raise is not kept."""
        path = self._path(digest)
        with self.written_aside(chunks) as temporary:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.replace(path)
        return path

    def add_unnamed(self, chunks: Iterator[bytes]) -> tuple[Digest, Path]:
        """Keeps a content whose digest becomes known on the way."""
        seen = hashlib.sha256()

        def watched() -> Iterator[bytes]:
            for chunk in chunks:
                seen.update(chunk)
                yield chunk

        with self.written_aside(watched()) as temporary:
            path = self._path(Digest(seen.hexdigest()))
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.replace(path)
        return Digest(seen.hexdigest()), path

    def find_named(self, name: str) -> Digest | None:
        """The digest that another system's name for a content stands for."""
        try:
            return Digest(self._named(name).read_text())
        except FileNotFoundError:
            return None

    def name(self, name: str, digest: Digest) -> None:
        path = self._named(name)
        with self.written_aside(iter((digest.encode(),))) as temporary:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.replace(path)

    @contextmanager
    def written_aside(self, chunks: Iterator[bytes]) -> Iterator[Path]:
        """A file with these bytes that nobody else sees; gone after the block unless moved."""
        incoming = self._directory / "incoming"
        incoming.mkdir(parents=True, exist_ok=True)
        temporary = incoming / f"{os.getpid()}-{secrets.token_hex(8)}"
        try:
            with temporary.open("xb") as file:
                for chunk in chunks:
                    file.write(chunk)
            yield temporary
        except OSError as error:
            reason = error.strerror or str(error)
            raise StorageUnavailable(where=str(self._directory), reason=reason) from error
        finally:
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()

    def _named(self, name: str) -> Path:
        return self._directory / "names" / name[:2] / name[2:]

    def _path(self, digest: Digest) -> Path:
        return self._directory / "sha256" / digest[:2] / digest[2:]


class LocalContents:
    """The contents of one store as files of this machine."""

    def __init__(self, objects: Objects, cache: ContentCache) -> None:
        self._objects = objects
        self._cache = cache

    def path(self, digest: Digest) -> str:
        """A file that holds exactly this content and must only be read."""
        here = self._objects.local_path(digest)
        if here is not None:
            return here
        found = self._cache.find(digest)
        return str(found or self._cache.add(digest, self._objects.stream(digest)))

    def fetch(self, entries: Iterable[Entry]) -> None:
        """Brings what is not on this machine yet, many at once."""
        if self._objects.is_local:
            return
        sizes = {entry.digest: entry.size for entry in entries}
        wanted = sorted(digest for digest in sizes if self._cache.find(digest) is None)
        together = self._objects.travel_together
        batches = batched(wanted, sizes.__getitem__, together=together)
        for _ in in_parallel(self._bring, batches, ahead=BATCHES_AHEAD if together else _AHEAD):
            pass

    def _bring(self, digests: list[Digest]) -> None:
        """What came stays, also where the rest does not: the next time, only that is asked for."""
        missing = dict.fromkeys(digests)
        if len(digests) > 1:
            for digest, data in self._objects.get_many(digests):
                self._cache.add(digest, iter((data,)))
                del missing[digest]
        for digest in missing:
            self.path(digest)

    def missing(self, digest: Digest) -> ObjectNotFound:
        return ObjectNotFound(location=self._objects.location(digest))


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
