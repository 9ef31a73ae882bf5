"""Content under the name of its own digest, and never handed out unless it still has it."""

from __future__ import annotations

import hashlib
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NewType, TypeVar

from headgate.errors import ContentsGarbled, Invalid, ObjectCorrupted, ObjectNotFound
from headgate.model.failpoints import Failpoint, reach
from headgate.model.ports import ObjectStore, Parcels
from headgate.storage.local import read_checked

# Many small waits at once: what storage makes us wait for, a pool of threads waits for.

_THREADS = 16

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_parallel(
    work: Callable[[Item], Result], items: Iterable[Item], *, ahead: int = 2 * _THREADS
) -> Iterator[Result]:
    """The results in the order of the items, at most `ahead` of them begun before they are asked
    for; the first error ends it, with nothing still under way.
    """
    if isinstance(items, Sized) and len(items) <= 1:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="headgate-files") as pool:
        under_way: deque[Future[Result]] = deque()
        try:
            for item in items:
                under_way.append(pool.submit(work, item))
                if len(under_way) >= ahead:
                    yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()
        finally:
            for future in under_way:
                future.cancel()


# The SHA-256 of some bytes as 64 hexadecimal digits.
Digest = NewType("Digest", str)

_FOLDER = "objects/sha256"
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")


def digest_of(data: bytes | bytearray) -> Digest:
    return Digest(hashlib.sha256(data).hexdigest())


def key_of(digest: str) -> str:
    """Where the object with this digest lies in every store."""
    if not _DIGEST.match(digest):
        raise Invalid(f"{digest[:80]!r} is not a SHA-256 digest.", digest=digest[:80])
    return f"{_FOLDER}/{digest[:2]}/{digest[2:]}"


class Objects:
    """The content-addressed part of one store."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._local = store.local_path(_FOLDER)
        self._parcels = store if isinstance(store, Parcels) else None

    def location(self, digest: str) -> str:
        return f"{self._store.url}/{key_of(digest)}"

    @property
    def is_local(self) -> bool:
        """Whether every content lies as a file of this machine."""
        return self._local is not None

    @property
    def travel_together(self) -> bool:
        """Whether small contents come and go many at once."""
        return self._parcels is not None

    def local_path(self, digest: Digest) -> str | None:
        """Where the content lies as a file of this machine, to be read only; else None."""
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
        """Stores each content under the digest that the caller computed for it."""
        if self._parcels is not None:
            self._parcels.put_many({key_of(digest): data for digest, data in contents.items()})
            return
        self.put_each(contents.items())

    def put_each(self, contents: Iterable[tuple[Digest, bytes]]) -> int:
        """The same as they come, so many are not in memory at once; how many they were."""
        stored = in_parallel(lambda one: self._store.put(key_of(one[0]), one[1]), contents)
        return sum(1 for _ in stored)

    def put_files(self, files: Mapping[Digest, Path]) -> None:
        """As `put_file`; of several small ones, those that the store lacks travel together."""
        if self._parcels is None or len(files) <= 1:
            for digest, source in files.items():
                self.put_file(digest, source)
            return
        keys = {key_of(digest): digest for digest in files}
        lacking = self._parcels.find_missing(list(keys))
        self._parcels.put_many(
            {key: b"".join(read_checked(files[keys[key]], keys[key])) for key in lacking}
        )
        reach(Failpoint.FILES_OBJECT_STORED)

    def put_file(self, digest: Digest, source: Path) -> bool:
        """Stores the file, which must still have this digest; False if it was there already."""
        stored = self._store.put_file(key_of(digest), source, sha256=digest)
        reach(Failpoint.FILES_OBJECT_STORED)
        return stored

    def put_unhashed(self, source: Path) -> tuple[Digest, int]:
        """Stores a file whose digest is found out on the way; that, and its size."""
        digest, size = self._store.put_hashed(source, key_of)
        reach(Failpoint.FILES_OBJECT_STORED)
        return Digest(digest), size

    def find_size(self, digest: str) -> int | None:
        """How many bytes the content has; None where it is not stored."""
        found = self._store.find(key_of(digest))
        return found.size if found is not None else None

    def find_missing(self, digests: Sequence[Digest]) -> list[Digest]:
        """Which of these contents are not stored."""
        sizes = (
            map(self.find_size, digests) if self.is_local else in_parallel(self.find_size, digests)
        )
        return [digest for digest, size in zip(digests, sizes, strict=True) if size is None]

    def get_many(self, digests: Sequence[Digest]) -> Iterator[tuple[Digest, bytes]]:
        """Those that come together, verified; who needs the others asks for each by itself."""
        if self._parcels is None:
            return
        keys = {key_of(digest): digest for digest in digests}
        for key, data in self._parcels.get_many(list(keys)):
            yield keys[key], data

    def get_small(
        self, digests: Sequence[Digest], *, most_bytes: int
    ) -> Iterator[tuple[Digest, bytes]]:
        """Those that are there, whole, and no larger than that, verified."""

        def read(digest: Digest) -> bytes | None:
            return self._find_small(digest, most_bytes)

        # A disk answers before another thread is awake.
        found = map(read, digests) if self.is_local else in_parallel(read, digests)
        for digest, data in zip(digests, found, strict=True):
            if data is not None:
                yield digest, data

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


# What travels together to a store that is far away: small contents, up to a bound.

T = TypeVar("T")

# Larger ones are worth a journey of their own.
SMALL_BYTES = 256 * 1024
_MOST_BYTES = 2 * 1024 * 1024
# Few enough that several batches are under way for a tree of a thousand files.
_MOST = 250
# Of batches that are under way at once, and of large ones by themselves.
BATCHES_AHEAD = 8


def batched(
    items: Iterable[T], size_of: Callable[[T], int], *, together: bool
) -> Iterator[list[T]]:
    """The items in batches: large ones, or all if they do not travel together, by themselves."""
    batch: list[T] = []
    size = 0
    for item in items:
        own = size_of(item)
        if not together or own > SMALL_BYTES:
            yield [item]
            continue
        if len(batch) >= _MOST or size + own > _MOST_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += own
    if batch:
        yield batch


# Many small contents as one stream of bytes: each a line that says what comes, then its bytes.
#
# The line is `<sha256> <bytes>` and a line feed: whoever reads the stream knows at every place what
# is whole, and that it is what it should be.

_LINE = re.compile(rb"([0-9a-f]{64}) (0|[1-9][0-9]{0,9})\Z")
# A digest, a space and ten digits.
_LONGEST_LINE = 75
_NO_LINE = "a line `<sha256> <bytes>` stands before each of them"


def framed(digest: Digest, data: bytes) -> bytes:
    """One content as a part of the stream."""
    return b"%s %d\n%s" % (digest.encode(), len(data), data)


def read_frames(chunks: Iterable[bytes], *, most_bytes: int) -> Iterator[tuple[Digest, bytes]]:
    """Each content once it is whole and verified; `ContentsGarbled` where one is not.

    A content of more than `most_bytes` is refused by its line: none of it is kept in memory.
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
                    _check_may_be_a_line(len(buffer) - at)
                    break
                announced = _read_line(bytes(buffer[at:end]), most_bytes)
                at = end + 1
            digest, size = announced
            if len(buffer) - at < size:
                break
            yield _verified(digest, bytes(buffer[at : at + size]))
            at, announced = at + size, None
        del buffer[:at]
    if buffer or announced is not None:
        raise ContentsGarbled(reason="they were cut short")


def _check_may_be_a_line(length: int) -> None:
    if length > _LONGEST_LINE:
        raise ContentsGarbled(reason=_NO_LINE)


def _read_line(line: bytes, most_bytes: int) -> tuple[Digest, int]:
    found = _LINE.match(line)
    if found is None:
        raise ContentsGarbled(reason=_NO_LINE)
    digest, size = Digest(found[1].decode()), int(found[2])
    if size > most_bytes:
        reason = f"one has {size} bytes, and goes by itself above {most_bytes}"
        raise ContentsGarbled(reason=reason, digest=digest)
    return digest, size


def _verified(digest: Digest, data: bytes) -> tuple[Digest, bytes]:
    actual = digest_of(data)
    if actual != digest:
        raise ContentsGarbled(reason=f"the bytes of one have the digest {actual}", digest=digest)
    return digest, data
