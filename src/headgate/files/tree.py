"""The tree of a files dataset as a value: entries, stored form, differences and type rules.

A tree is an ordered list of entries, cut into leaves. Where a leaf ends depends on the path of
its last entry alone: the same entries always make the same leaves, whatever edits led to them,
and an edit changes only the leaves that it falls into. An index lists the leaves by digest, and
the digest of the index names the tree.
"""

import enum
import hashlib
import heapq
import itertools
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import orjson

from headgate.files.objects import Digest, digest_of
from headgate.model.nouns import TransactionType

_FORMAT = 1
_NO_CONTENT = Digest("")


class Mode(enum.IntEnum):
    """The part of a file's mode that a tree keeps: whether it can be executed."""

    FILE = 0o644
    EXECUTABLE = 0o755
    DIRECTORY = 0o40755


_MODES = {mode.value: mode for mode in Mode}


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A file or an empty directory; other directories exist by the entries below them."""

    path: str
    mode: Mode
    size: int
    digest: Digest

    @property
    def is_directory(self) -> bool:
        return self.mode is Mode.DIRECTORY


def empty_directory(path: str) -> Entry:
    return Entry(path=path, mode=Mode.DIRECTORY, size=0, digest=_NO_CONTENT)


def directories_of(path: str) -> Iterator[str]:
    """Yield the directories that the path is in, the innermost first."""
    end = path.rfind("/")
    while end > 0:
        yield path[:end]
        end = path.rfind("/", 0, end)


@dataclass(frozen=True, kw_only=True, slots=True)
class LeafRef:
    """A leaf as the index lists it."""

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
        """Return the only leaf that may hold the path; one past the end if it sorts after all."""
        return bisect_left(self.last_paths, path)


def ends_leaf(path: str) -> bool:
    """Return whether an entry is the last of its leaf: one path in 256, by its own digest."""
    return hashlib.sha256(path.encode()).digest()[-1] == 0


def cut(entries: Sequence[Entry]) -> tuple[list[Sequence[Entry]], Sequence[Entry]]:
    """Cut sorted entries into complete leaves, and the entries left after the last of them."""
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
    rows = _checked_rows(orjson.loads(data), (str, int, int, str))
    return [
        Entry(path=path, mode=_MODES[mode], size=size, digest=digest)
        for path, mode, size, digest in rows
    ]


def _checked_rows(rows: Any, types: tuple[type, ...]) -> list[Any]:
    """Return the rows of an object that a client may have sent; raise unless all have the types."""
    for row in rows:
        if tuple(map(type, row)) != types:
            raise ValueError(f"it has {row!r:.200}")
    return list(rows)


def encode_index(leaves: Sequence[LeafRef]) -> bytes:
    rows = [[leaf.last_path, leaf.digest, leaf.entry_count, leaf.total_bytes] for leaf in leaves]
    return orjson.dumps({"tree": _FORMAT, "leaves": rows})


def decode_index(data: bytes) -> Index:
    document: Any = orjson.loads(data)
    if document["tree"] != _FORMAT:
        raise ValueError(f"tree format {document['tree']} is not known")
    return Index(
        LeafRef(last_path=path, digest=digest, entry_count=count, total_bytes=size)
        for path, digest, count, size in _checked_rows(document["leaves"], (str, str, int, int))
    )


# The digest of the tree without entries; it can be read without an object in the store.
EMPTY = digest_of(encode_index(()))


class ChangeKind(enum.StrEnum):
    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A path whose entry differs between two trees; None means no entry."""

    path: str
    before: Entry | None
    after: Entry | None

    @property
    def kind(self) -> ChangeKind:
        if self.before is None:
            return ChangeKind.ADDED
        return ChangeKind.REMOVED if self.after is None else ChangeKind.CHANGED


def compare(before: Iterable[Entry], after: Iterable[Entry]) -> Iterator[Change]:
    """Yield the changes between two sorted streams of entries, each read once."""
    olds = ((entry.path, "before", entry) for entry in before)
    news = ((entry.path, "after", entry) for entry in after)
    for path, group in itertools.groupby(heapq.merge(olds, news), key=itemgetter(0)):
        sides = {side: entry for _, side, entry in group}
        old, new = sides.get("before"), sides.get("after")
        if old != new:
            yield Change(path=path, before=old, after=new)


@dataclass(frozen=True, kw_only=True)
class FilesDifference:
    """Numbers of added, removed and changed paths, and the first few of each."""

    before_count: int
    after_count: int
    counts: dict[ChangeKind, int]
    samples: dict[ChangeKind, list[Change]]


def summarize_changes(
    changes: Iterable[Change], *, before_count: int, after_count: int, samples: int
) -> FilesDifference:
    """Count the changes by kind, and keep the first few of each."""
    counts = dict.fromkeys(ChangeKind, 0)
    shown: dict[ChangeKind, list[Change]] = {kind: [] for kind in ChangeKind}
    for change in changes:
        counts[change.kind] += 1
        if len(shown[change.kind]) < samples:
            shown[change.kind].append(change)
    return FilesDifference(
        before_count=before_count, after_count=after_count, counts=counts, samples=shown
    )


_FORBIDDEN = {
    TransactionType.SNAPSHOT: frozenset[ChangeKind](),
    TransactionType.APPEND: frozenset({ChangeKind.CHANGED, ChangeKind.REMOVED}),
    TransactionType.UPDATE: frozenset({ChangeKind.REMOVED}),
    TransactionType.DELETE: frozenset({ChangeKind.ADDED, ChangeKind.CHANGED}),
}
_VERBS = {ChangeKind.ADDED: "adds", ChangeKind.CHANGED: "overwrites", ChangeKind.REMOVED: "removes"}


def infer_type(changes: Iterable[Change]) -> TransactionType:
    """Return the type of a transaction that was opened without one, from its changes."""
    kinds = {change.kind for change in changes}
    if kinds == {ChangeKind.ADDED}:
        return TransactionType.APPEND
    if kinds == {ChangeKind.REMOVED}:
        return TransactionType.DELETE
    # An UPDATE may not remove, so a mix of additions and removals is a SNAPSHOT.
    return TransactionType.SNAPSHOT if ChangeKind.REMOVED in kinds else TransactionType.UPDATE


def find_violation(type: TransactionType, changes: Iterable[Change]) -> str | None:
    """Return why a transaction of this type may not make these changes, naming a path, or None."""
    forbidden = _FORBIDDEN[type]
    if not forbidden:
        return None
    all_changes = list(changes)
    found = [change for change in all_changes if change.kind in forbidden]
    violations = _without_kept_directories(found, all_changes)
    if not violations:
        return None
    first = violations[0]
    more = f" (and {len(violations) - 1} more paths)" if len(violations) > 1 else ""
    return f"it {_VERBS[first.kind]} {first.path!r}{more}, which {type} does not allow"


def _without_kept_directories(found: Sequence[Change], changes: Iterable[Change]) -> list[Change]:
    """Leave out directories whose entry appeared or vanished only as they emptied or filled."""
    if not any(_is_directory_entry(change) for change in found):
        return list(found)
    filled, emptied = set[str](), set[str]()
    for change in changes:
        if change.kind is not ChangeKind.CHANGED:
            above = filled if change.kind is ChangeKind.ADDED else emptied
            above.update(directories_of(change.path))
    kept = {ChangeKind.REMOVED: filled, ChangeKind.ADDED: emptied}
    return [
        change
        for change in found
        if not (_is_directory_entry(change) and change.path in kept[change.kind])
    ]


def _is_directory_entry(change: Change) -> bool:
    """Return whether an empty directory's entry was added or removed, not turned into a file."""
    entry = change.before or change.after
    return change.kind is not ChangeKind.CHANGED and entry is not None and entry.is_directory
