"""Objects of lakeFS as contents of this machine: fetched once, known by address and digest."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

from headgate.errors import ObjectCorrupted, ObjectNotFound
from headgate.files.cache import ContentCache
from headgate.files.entries import Entry, Mode
from headgate.files.objects import Digest
from headgate.files.parallel import in_parallel
from headgate.lakefs.client import LakeFS, StoredObject
from headgate.tasks.inputs import WorkspaceRef

_AHEAD = 256


class LakeFSContents:
    """Implements `Contents`; what an address held before is not asked for again."""

    def __init__(
        self, lakefs: LakeFS, workspace: WorkspaceRef, below: str, cache: ContentCache
    ) -> None:
        self._lakefs = lakefs
        self._workspace = workspace
        self._below = below
        self._cache = cache

    def entries(self, found: Iterable[StoredObject]) -> Iterator[Entry]:
        """The objects as entries, each with its bytes in the cache; lakeFS keeps no modes."""
        listed = list(found)
        digests = in_parallel(self._digest, listed, ahead=_AHEAD)
        for one, digest in zip(listed, digests, strict=True):
            yield Entry(path=one.path, mode=Mode.FILE, size=one.size, digest=digest)

    def path(self, digest: Digest) -> str:
        found = self._cache.find(digest)
        if found is None:
            raise self.missing(digest)
        return str(found)

    def fetch(self, entries: Iterable[Entry]) -> None:
        """They were fetched when their digests became known."""

    def missing(self, digest: Digest) -> ObjectNotFound:
        return ObjectNotFound(location=f"{self._workspace.repository} {digest}")

    def _digest(self, one: StoredObject) -> Digest:
        known = self._cache.find_named(_name(one))
        if known is not None and self._cache.find(known) is not None:
            return known
        digest, path = self._cache.add_unnamed(self._read(one))
        if path.stat().st_size != one.size:
            raise ObjectCorrupted(
                location=f"{self._workspace.repository} {one.path}",
                expected=f"{one.size} bytes",
                actual=f"{path.stat().st_size} bytes",
            )
        self._cache.name(_name(one), digest)
        return digest

    def _read(self, one: StoredObject) -> Iterator[bytes]:
        path = f"{self._below}{one.path}"
        return self._lakefs.read(self._workspace.repository, self._workspace.ref, path)


def _name(one: StoredObject) -> str:
    text = f"{one.address}\n{one.checksum}\n{one.size}"
    return hashlib.sha256(text.encode()).hexdigest()
