"""Content under the name of its own digest, and never handed out unless it still has it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NewType

from headgate.errors import Invalid, ObjectCorrupted
from headgate.files.parallel import in_parallel
from headgate.model.failpoints import Failpoint, reach
from headgate.model.ports import ObjectStore

# The SHA-256 of some bytes as 64 hexadecimal digits.
Digest = NewType("Digest", str)

_DIGEST = re.compile(r"[0-9a-f]{64}\Z")


def digest_of(data: bytes) -> Digest:
    return Digest(hashlib.sha256(data).hexdigest())


def key_of(digest: str) -> str:
    """Where the object with this digest lies in every store."""
    if not _DIGEST.match(digest):
        raise Invalid(f"{digest[:80]!r} is not a SHA-256 digest.", digest=digest[:80])
    return f"objects/sha256/{digest[:2]}/{digest[2:]}"


class Objects:
    """The content-addressed part of one store."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def location(self, digest: str) -> str:
        return f"{self._store.url}/{key_of(digest)}"

    def put(self, data: bytes) -> Digest:
        digest = digest_of(data)
        self._store.put(key_of(digest), data)
        reach(Failpoint.FILES_OBJECT_STORED)
        return digest

    def put_all(self, contents: Mapping[Digest, bytes]) -> None:
        """Stores each content under the digest that the caller computed for it."""
        for _ in in_parallel(
            lambda digest: self._store.put(key_of(digest), contents[digest]), contents
        ):
            pass

    def put_file(self, digest: Digest, source: Path) -> bool:
        """Stores the file, which must still have this digest; False if it was there already."""
        stored = self._store.put_file(key_of(digest), source, sha256=digest)
        reach(Failpoint.FILES_OBJECT_STORED)
        return stored

    def get(self, digest: Digest) -> bytes:
        data = self._store.get(key_of(digest))
        self._verify(digest, digest_of(data))
        return data

    def stream(self, digest: Digest) -> Iterator[bytes]:
        """The content in chunks; the last step is `ObjectCorrupted` if they are not the content."""
        seen = hashlib.sha256()
        for chunk in self._store.stream(key_of(digest)):
            seen.update(chunk)
            yield chunk
        self._verify(digest, seen.hexdigest())

    def _verify(self, expected: Digest, actual: str) -> None:
        if actual != expected:
            raise ObjectCorrupted(
                location=self.location(expected), expected=expected, actual=actual
            )
