"""Contents stored under their own SHA-256 digest, and verified against it when read.

Small contents travel to and from a remote store many at once: `batched` groups them, and a
stream of frames carries a group in one request or reply.
"""

import hashlib
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NewType, TypeVar

from headgate.errors import ContentsGarbled, Invalid, ObjectCorrupted, ObjectNotFound
from headgate.model.failpoints import Failpoint, reach
from headgate.model.object_store import BatchStore, ObjectStore
from headgate.storage.local import read_checked

# The SHA-256 of some bytes as 64 hexadecimal digits.
Digest = NewType("Digest", str)
Item = TypeVar("Item")
Result = TypeVar("Result")

# The header of a request with the roots of the trees that contain the contents, and of a reply
# with the root of the tree that it lists.
TREE_HEADER = "Headgate-Tree"
MOST_TREES = 16

_FOLDER = "objects/sha256"
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")


def digest_of(data: bytes | bytearray) -> Digest:
    return Digest(hashlib.sha256(data).hexdigest())


def key_of(digest: str) -> str:
    """Return the key of the object with this digest, the same in every store."""
    if not _DIGEST.match(digest):
        raise Invalid(f"{digest[:80]!r} is not a SHA-256 digest.", digest=digest[:80])
    return f"{_FOLDER}/{digest[:2]}/{digest[2:]}"


class Objects:
    """The content-addressed objects of one store."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._local = store.local_path(_FOLDER)
        self._batches = store if isinstance(store, BatchStore) else None

    def location(self, digest: str) -> str:
        return f"{self._store.url}/{key_of(digest)}"

    @property
    def is_local(self) -> bool:
        """True if the contents are files of this machine."""
        return self._local is not None

    @property
    def in_batches(self) -> bool:
        """True if the store sends and receives many small contents in one request."""
        return self._batches is not None

    def local_path(self, digest: Digest) -> str | None:
        """Return the file of this machine that holds the content, to be read only; else None."""
        if self._local is None:
            return None
        if not _DIGEST.match(digest):
            key_of(digest)
        # By hand: joining paths takes longer than copying a small file.
        return f"{self._local}/{digest[:2]}/{digest[2:]}"

    def put(self, data: bytes) -> Digest:
        digest = digest_of(data)
        self._store.put(key_of(digest), data)
        reach(Failpoint.FILES_OBJECT_STORED)
        return digest

    def put_all(self, contents: Mapping[Digest, bytes]) -> None:
        """Store each content under the digest that the caller computed for it."""
        if self._batches is not None:
            self._batches.put_many({key_of(digest): data for digest, data in contents.items()})
            return
        self.put_each(contents.items())

    def put_each(self, contents: Iterable[tuple[Digest, bytes]]) -> int:
        """Store contents as they arrive, so that few are in memory at once; return their count."""
        stored = in_parallel(lambda one: self._store.put(key_of(one[0]), one[1]), contents)
        return sum(1 for _ in stored)

    def put_file(self, digest: Digest, source: Path) -> bool:
        """Store the file, which must still have this digest; return False if it was stored."""
        stored = self._store.put_file(key_of(digest), source, sha256=digest)
        reach(Failpoint.FILES_OBJECT_STORED)
        return stored

    def put_files(self, files: Mapping[Digest, Path]) -> None:
        """Store each file as `put_file` does, in one request where the store takes batches."""
        if self._batches is None or len(files) <= 1:
            for digest, source in files.items():
                self.put_file(digest, source)
            return
        keys = {key_of(digest): digest for digest in files}
        missing = self._batches.find_missing(list(keys))
        self._batches.put_many(
            {key: b"".join(read_checked(files[keys[key]], keys[key])) for key in missing}
        )
        reach(Failpoint.FILES_OBJECT_STORED)

    def put_unhashed(self, source: Path) -> tuple[Digest, int]:
        """Store a file that is hashed on the way; return its digest and size."""
        digest, size = self._store.put_hashed(source, key_of)
        reach(Failpoint.FILES_OBJECT_STORED)
        return Digest(digest), size

    def note_tree(self, root: Digest) -> None:
        """Note that the contents that are read next belong to the tree with this root."""
        if self._batches is not None:
            self._batches.note_tree(key_of(root))

    def find_size(self, digest: str) -> int | None:
        """Return the size of a content in bytes, or None if it is not stored."""
        found = self._store.find(key_of(digest))
        return found.size if found is not None else None

    def find_missing(self, digests: Sequence[Digest]) -> list[Digest]:
        """Return those of these contents that are not stored."""
        sizes = self._for_each(self.find_size, digests)
        return [digest for digest, size in zip(digests, sizes, strict=True) if size is None]

    def get(self, digest: Digest) -> bytes:
        data = self._store.get(key_of(digest))
        self._verify(digest, digest_of(data))
        return data

    def get_many(self, digests: Sequence[Digest]) -> Iterator[tuple[Digest, bytes]]:
        """Yield the contents that arrive in a batch, verified; the caller gets the others singly.

        Nothing is yielded by a store without batches.
        """
        if self._batches is None:
            return
        keys = {key_of(digest): digest for digest in digests}
        for key, data in self._batches.get_many(list(keys)):
            yield keys[key], data

    def get_small(
        self, digests: Sequence[Digest], *, most_bytes: int
    ) -> Iterator[tuple[Digest, bytes]]:
        """Yield the contents that are stored, undamaged, and at most `most_bytes` long."""
        found = self._for_each(lambda digest: self._find_small(digest, most_bytes), digests)
        for digest, data in zip(digests, found, strict=True):
            if data is not None:
                yield digest, data

    def stream(self, digest: Digest) -> Iterator[bytes]:
        """Yield the content in chunks; raise `ObjectCorrupted` at its end if it is damaged."""
        seen = hashlib.sha256()
        for chunk in self._store.stream(key_of(digest)):
            seen.update(chunk)
            yield chunk
        self._verify(digest, seen.hexdigest())

    def _find_small(self, digest: Digest, most_bytes: int) -> bytes | None:
        data = bytearray()
        try:
            for chunk in self._store.stream(key_of(digest)):
                data += chunk
                if len(data) > most_bytes:
                    return None
        except ObjectNotFound:
            return None
        return bytes(data) if digest_of(data) == digest else None

    def _for_each(
        self, work: Callable[[Digest], Result], digests: Sequence[Digest]
    ) -> Iterator[Result]:
        # A disk answers before another thread is awake.
        return map(work, digests) if self.is_local else in_parallel(work, digests)

    def _verify(self, expected: Digest, actual: str) -> None:
        if actual != expected:
            raise ObjectCorrupted(
                location=self.location(expected), expected=expected, actual=actual
            )


@dataclass(frozen=True, kw_only=True)
class StoredContent:
    """A content that is read only when it is needed."""

    digest: Digest
    objects: Objects

    def read(self) -> bytes:
        return b"".join(self.objects.stream(self.digest))


_THREADS = 16
# A larger content is worth a request of its own.
SMALL_BYTES = 256 * 1024
_BATCH_BYTES = 2 * 1024 * 1024
# Few enough that several batches are in flight for a tree of a thousand files.
_BATCH_COUNT = 250
# Batches in flight at once, single large contents included.
BATCHES_AHEAD = 8


def in_parallel(
    work: Callable[[Item], Result], items: Iterable[Item], *, ahead: int = 2 * _THREADS
) -> Iterator[Result]:
    """Yield the results in the order of the items, with at most `ahead` of them in flight.

    The first error ends the iteration, after all work in flight has stopped.
    """
    if isinstance(items, Sized) and len(items) <= 1:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="headgate-files") as pool:
        in_flight: deque[Future[Result]] = deque()
        try:
            for item in items:
                in_flight.append(pool.submit(work, item))
                if len(in_flight) >= ahead:
                    yield in_flight.popleft().result()
            while in_flight:
                yield in_flight.popleft().result()
        finally:
            for future in in_flight:
                future.cancel()


def batched(
    items: Iterable[Item], size_of: Callable[[Item], int], *, together: bool
) -> Iterator[list[Item]]:
    """Yield the items in bounded batches; large ones, and all unless `together`, singly."""
    batch: list[Item] = []
    size = 0
    for item in items:
        own = size_of(item)
        if not together or own > SMALL_BYTES:
            yield [item]
            continue
        if len(batch) >= _BATCH_COUNT or size + own > _BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += own
    if batch:
        yield batch


# --- frames: many small contents as one stream of bytes --------------------------------------
#
# A frame is a line `<sha256> <bytes>`, a line feed, and the content: a reader verifies each
# content as soon as it is complete.

_LINE = re.compile(rb"([0-9a-f]{64}) (0|[1-9][0-9]{0,9})\Z")
# A digest, a space and ten digits.
_LONGEST_LINE = 75
_NO_LINE = "each content must follow a line `<sha256> <bytes>`"


def encode_frame(digest: Digest, data: bytes) -> bytes:
    return b"%s %d\n%s" % (digest.encode(), len(data), data)


def read_frames(chunks: Iterable[bytes], *, most_bytes: int) -> Iterator[tuple[Digest, bytes]]:
    """Yield each content once it is complete and verified; raise `ContentsGarbled` otherwise.

    A content of more than `most_bytes` is rejected by its line: none of it is kept in memory.
    """
    buffer = bytearray()
    announced: tuple[Digest, int] | None = None
    for chunk in chunks:
        buffer += chunk
        at = 0
        while True:
            if announced is None:
                end = buffer.find(b"\n", at, at + _LONGEST_LINE + 1)
                if end < 0:
                    if len(buffer) - at > _LONGEST_LINE:
                        raise ContentsGarbled(reason=_NO_LINE)
                    break
                announced = _read_line(bytes(buffer[at:end]), most_bytes)
                at = end + 1
            digest, size = announced
            if len(buffer) - at < size:
                break
            data = bytes(buffer[at : at + size])
            actual = digest_of(data)
            if actual != digest:
                reason = f"the bytes of one have the digest {actual}"
                raise ContentsGarbled(reason=reason, digest=digest)
            yield digest, data
            at, announced = at + size, None
        del buffer[:at]
    if buffer or announced is not None:
        raise ContentsGarbled(reason="they were cut short")


def _read_line(line: bytes, most_bytes: int) -> tuple[Digest, int]:
    found = _LINE.match(line)
    if found is None:
        raise ContentsGarbled(reason=_NO_LINE)
    digest, size = Digest(found[1].decode()), int(found[2])
    if size > most_bytes:
        reason = f"one has {size} bytes, more than the {most_bytes} that a batch may carry each"
        raise ContentsGarbled(reason=reason, digest=digest)
    return digest, size
