"""What a tree is made of, and the bytes that stand for it.

A tree is an ordered list of entries, cut into leaves. Where a leaf ends depends on the path of
its last entry alone, so that the same entries always make the same leaves, whatever edits led to
them, and an edit changes only the leaves it falls into.
"""

from __future__ import annotations

import enum
import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from headgate.files.objects import Digest, digest_of

_FORMAT = 1
_NO_CONTENT = Digest("")


class Mode(enum.IntEnum):
    """What of a file's mode is kept: whether it can be executed."""

    FILE = 0o644
    EXECUTABLE = 0o755
    DIRECTORY = 0o40755


_MODES = {mode.value: mode for mode in Mode}


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A file, or a directory with nothing in it; other directories exist by what is below them."""

    path: str
    mode: Mode
    size: int
    digest: Digest

    @property
    def is_directory(self) -> bool:
        return self.mode is Mode.DIRECTORY


def empty_directory(path: str) -> Entry:
    return Entry(path=path, mode=Mode.DIRECTORY, size=0, digest=_NO_CONTENT)


@dataclass(frozen=True, kw_only=True, slots=True)
class LeafRef:
    """A leaf as the index knows it."""

    last_path: str
    digest: Digest
    entry_count: int
    total_bytes: int


class Index:
    """The leaves of one tree, in order."""

    def __init__(self, leaves: Iterable[LeafRef]) -> None:
        self.leaves = tuple(leaves)
        self.last_paths = [leaf.last_path for leaf in self.leaves]

    def position(self, path: str) -> int:
        """Which leaf holds the path if the tree does; one past the end if it sorts after all."""
        return bisect_left(self.last_paths, path)


def directories_of(path: str) -> Iterator[str]:
    """The directories that the path is in, the innermost first."""
    end = path.rfind("/")
    while end > 0:
        yield path[:end]
        end = path.rfind("/", 0, end)


def ends_leaf(path: str) -> bool:
    """True of one path in 256, by its own digest."""
    return hashlib.sha256(path.encode()).digest()[-1] == 0


def cut(entries: Sequence[Entry]) -> tuple[list[Sequence[Entry]], Sequence[Entry]]:
    """The complete leaves that these sorted entries make, and the entries left after the last."""
    leaves, start = [], 0
    for end, entry in enumerate(entries, start=1):
        if ends_leaf(entry.path):
            leaves.append(entries[start:end])
            start = end
    return leaves, entries[start:]


def encode_leaf(entries: Sequence[Entry]) -> tuple[LeafRef, bytes]:
    rows = [[entry.path, entry.mode, entry.size, entry.digest] for entry in entries]
    data = orjson.dumps(rows)
    leaf = LeafRef(
        last_path=entries[-1].path,
        digest=digest_of(data),
        entry_count=len(entries),
        total_bytes=sum(entry.size for entry in entries),
    )
    return leaf, data


def decode_leaf(data: bytes) -> list[Entry]:
    rows: list[Any] = orjson.loads(data)
    return [
        Entry(path=path, mode=_MODES[mode], size=size, digest=digest)
        for path, mode, size, digest in rows
    ]


def encode_index(leaves: Sequence[LeafRef]) -> bytes:
    rows = [[leaf.last_path, leaf.digest, leaf.entry_count, leaf.total_bytes] for leaf in leaves]
    return orjson.dumps({"tree": _FORMAT, "leaves": rows})


def decode_index(data: bytes) -> Index:
    document: Any = orjson.loads(data)
    if document["tree"] != _FORMAT:
        raise ValueError(f"tree format {document['tree']} is not known")
    return Index(
        LeafRef(last_path=path, digest=digest, entry_count=count, total_bytes=size)
        for path, digest, count, size in document["leaves"]
    )


# The digest of the tree without entries; it needs no object to be read.
EMPTY = digest_of(encode_index(()))
