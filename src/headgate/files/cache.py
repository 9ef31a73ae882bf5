"""Contents as plain local files: where the store has them already, or fetched once into a cache."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from headgate.errors import ObjectNotFound, StorageUnavailable
from headgate.files.objects import BATCHES_AHEAD, Digest, Objects, batched, in_parallel
from headgate.files.tree import Entry

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
