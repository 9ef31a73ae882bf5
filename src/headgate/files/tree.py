"""Looking into a tree: each look reads the index and the leaves it needs, no more."""

from __future__ import annotations

import enum
import hashlib
import heapq
import itertools
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Any, TypeVar

import orjson

from headgate.errors import Invalid, UnsafePath
from headgate.files.objects import Digest, Objects, digest_of, in_parallel
from headgate.model.names import check_file_path
from headgate.model.nouns import TransactionType

# What a tree is made of, and the bytes that stand for it.
#
# A tree is an ordered list of entries, cut into leaves. Where a leaf ends depends on the path of
# its last entry alone, so that the same entries always make the same leaves, whatever edits led to
# them, and an edit changes only the leaves it falls into.

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


_path_of = attrgetter("path")
# The character after "/": everything below a directory sorts before the directory plus this.
_AFTER_SLASH = "0"

Decoded = TypeVar("Decoded")


def load_index(objects: Objects, root: Digest) -> Index:
    if root == EMPTY:
        return Index(())
    return _decode(objects, root, decode_index)


def load_leaf(objects: Objects, leaf: LeafRef) -> list[Entry]:
    return _decode(objects, leaf.digest, decode_leaf)


def load_leaves(objects: Objects, leaves: Sequence[LeafRef]) -> Iterator[list[Entry]]:
    """The leaves in their order, read ahead where there are several."""
    return in_parallel(lambda leaf: load_leaf(objects, leaf), leaves)


def find_in(entries: Sequence[Entry], path: str) -> Entry | None:
    place = bisect_left(entries, path, key=_path_of)
    if place < len(entries) and entries[place].path == path:
        return entries[place]
    return None


def find(objects: Objects, root: Digest, path: str) -> Entry | None:
    """The entry with exactly this path; None also for a directory that has content."""
    index = load_index(objects, root)
    position = index.position(path)
    if position == len(index.leaves):
        return None
    return find_in(load_leaf(objects, index.leaves[position]), path)


def walk(objects: Objects, root: Digest, prefix: str = "") -> Iterator[Entry]:
    """The entries at or below `prefix`, all for the empty one, in the order of their paths."""
    index = load_index(objects, root)
    if not prefix:
        for entries in load_leaves(objects, index.leaves):
            yield from entries
        return
    below, beyond = f"{prefix}/", f"{prefix}{_AFTER_SLASH}"
    # Between a path and what is below it lie its siblings that go on with "-" or ".".
    positions = {index.position(prefix), *range(index.position(below), index.position(beyond) + 1)}
    leaves = [index.leaves[at] for at in sorted(positions) if at < len(index.leaves)]
    for entries in load_leaves(objects, leaves):
        for entry in entries:
            if entry.path == prefix or entry.path.startswith(below):
                yield entry


def references(objects: Objects, roots: Iterable[Digest]) -> Iterator[Digest]:
    """Every object that these trees need; a leaf that several share is read once."""
    seen: set[Digest] = set()
    for root in roots:
        yield root
        fresh = [leaf for leaf in load_index(objects, root).leaves if leaf.digest not in seen]
        seen.update(leaf.digest for leaf in fresh)
        yield from (leaf.digest for leaf in fresh)
        for entries in load_leaves(objects, fresh):
            yield from (entry.digest for entry in entries if not entry.is_directory)


def _decode(objects: Objects, digest: Digest, decode: Callable[[bytes], Decoded]) -> Decoded:
    data = objects.get(digest)
    try:
        return decode(data)
    except (ValueError, TypeError, KeyError) as error:
        location = objects.location(digest)
        raise Invalid(f"object {location} is not part of a file tree: {error}.") from error


# What differs between two trees, at a cost that follows the difference.


class ChangeKind(enum.StrEnum):
    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One path whose entry differs; None is no entry."""

    path: str
    before: Entry | None
    after: Entry | None

    @property
    def kind(self) -> ChangeKind:
        if self.before is None:
            return ChangeKind.ADDED
        return ChangeKind.REMOVED if self.after is None else ChangeKind.CHANGED


def difference(objects: Objects, before: Digest, after: Digest) -> Iterator[Change]:
    """The changes that lead from one tree to the other, in the order of their paths."""
    if before == after:
        return iter(())
    old, new = load_index(objects, before), load_index(objects, after)
    return compare(_entries_outside(objects, old, new), _entries_outside(objects, new, old))


def compare(before: Iterable[Entry], after: Iterable[Entry]) -> Iterator[Change]:
    """The changes between two sorted runs of entries, which are read once and never held."""
    olds = ((entry.path, "before", entry) for entry in before)
    news = ((entry.path, "after", entry) for entry in after)
    for path, group in itertools.groupby(heapq.merge(olds, news), key=itemgetter(0)):
        sides = {side: entry for _, side, entry in group}
        old, new = sides.get("before"), sides.get("after")
        if old != new:
            yield Change(path=path, before=old, after=new)


def _entries_outside(objects: Objects, index: Index, other: Index) -> Iterator[Entry]:
    """The entries in leaves that the other tree does not have; equal leaves hold no change."""
    shared = {leaf.digest for leaf in other.leaves}
    for entries in load_leaves(objects, [x for x in index.leaves if x.digest not in shared]):
        yield from entries


# What a transaction's type allows it to do to a tree; pure.

_FORBIDDEN = {
    TransactionType.SNAPSHOT: frozenset[ChangeKind](),
    TransactionType.APPEND: frozenset({ChangeKind.CHANGED, ChangeKind.REMOVED}),
    TransactionType.UPDATE: frozenset({ChangeKind.REMOVED}),
    TransactionType.DELETE: frozenset({ChangeKind.ADDED, ChangeKind.CHANGED}),
}
_VERBS = {
    ChangeKind.ADDED: "adds",
    ChangeKind.CHANGED: "overwrites",
    ChangeKind.REMOVED: "removes",
}


def find_violation(type: TransactionType, changes: Iterable[Change]) -> str | None:
    """Why a transaction of this type may not make these changes, naming a path, or None."""
    forbidden = _FORBIDDEN[type]
    if not forbidden:
        return None
    all_changes = list(changes)
    broken = [change for change in all_changes if change.kind in forbidden]
    unexcused = _without_directories_that_stay(broken, all_changes)
    if not unexcused:
        return None
    first = unexcused[0]
    more = f" (and {len(unexcused) - 1} more paths)" if len(unexcused) > 1 else ""
    return f"it {_VERBS[first.kind]} {first.path!r}{more}, which {type} does not allow"


def _without_directories_that_stay(
    broken: Sequence[Change], changes: Iterable[Change]
) -> list[Change]:
    """Leaves out directories whose entry came or went only because their content went or came."""
    if not any(_is_directory_alone(change) for change in broken):
        return list(broken)
    filled, emptied = set[str](), set[str]()
    for change in changes:
        if change.kind is not ChangeKind.CHANGED:
            above = filled if change.kind is ChangeKind.ADDED else emptied
            above.update(directories_of(change.path))
    stays = {ChangeKind.REMOVED: filled, ChangeKind.ADDED: emptied}
    return [
        change
        for change in broken
        if not (_is_directory_alone(change) and change.path in stays[change.kind])
    ]


def _is_directory_alone(change: Change) -> bool:
    """Whether an empty directory's entry came or went, rather than turned into a file."""
    entry = change.before or change.after
    return change.kind is not ChangeKind.CHANGED and entry is not None and entry.is_directory


# A new tree from an old one, at a cost that follows the change and not the tree.

# From what an edit asks for to what it means: which paths get an entry, and which lose theirs.
#
# The rules of a tree are kept here: no path is below a file, and a directory has an entry of its
# own only while nothing is below it.


class Base:
    """The tree that an edit starts from; each of its leaves is read once at most."""

    def __init__(self, objects: Objects, index: Index) -> None:
        self.index = index
        self.is_empty = not index.leaves
        self._last_place = max(len(index.leaves) - 1, 0)
        self._objects = objects
        self._leaves: dict[int, list[Entry]] = {}

    def place(self, path: str) -> int:
        """The leaf that the path belongs into; what sorts after all belongs into the last."""
        return min(self.index.position(path), self._last_place)

    def read_ahead(self, paths: Iterable[str]) -> None:
        places = [] if self.is_empty else sorted({self.place(path) for path in paths})
        read = in_parallel(lambda at: load_leaf(self._objects, self.index.leaves[at]), places)
        self._leaves.update(zip(places, read, strict=True))

    def leaf(self, at: int) -> list[Entry]:
        if at not in self._leaves:
            self._leaves[at] = load_leaf(self._objects, self.index.leaves[at])
        return self._leaves[at]

    def find(self, path: str) -> Entry | None:
        return None if self.is_empty else find_in(self.leaf(self.place(path)), path)

    def starting_at(self, path: str) -> Iterator[Entry]:
        """The entries from this path on, in order."""
        for at in range(self.place(path), len(self.index.leaves)):
            entries = self.leaf(at)
            yield from entries[bisect_left(entries, path, key=_path_of) :]

    def neighbours(self, path: str) -> Iterator[str]:
        """The paths before and after this one, where that takes no leaf but its own."""
        if self.is_empty:
            return
        at = self.place(path)
        entries = self.leaf(at)
        place = bisect_left(entries, path, key=_path_of)
        if place > 0:
            yield entries[place - 1].path
        elif at > 0:
            yield self.index.last_paths[at - 1]
        if place < len(entries):
            yield entries[place].path


def settle(base: Base, put: Iterable[Entry], remove: Iterable[str]) -> dict[str, Entry | None]:
    """What becomes of each path that the edit touches: its entry, or None for no entry."""
    wanted: dict[str, Entry | None] = dict.fromkeys(remove)
    wanted.update((check_file_path(entry.path), entry) for entry in put)
    base.read_ahead(wanted)
    _settle_above(base, wanted)
    _settle_below(base, wanted)
    return wanted


def _settle_above(base: Base, wanted: dict[str, Entry | None]) -> None:
    """Directories that get content lose their own entry; a file there is in the way."""
    putting = [path for path, entry in wanted.items() if entry is not None]
    occupied = _occupied(base, putting)
    above: dict[str, str] = {}
    for path in putting:
        for directory in directories_of(path):
            if directory in above:
                break
            above[directory] = path
    for directory, path in above.items():
        if directory in wanted:
            entry = wanted[directory]
        else:
            entry = None if directory in occupied else base.find(directory)
        if entry is None:
            continue
        if not entry.is_directory:
            raise UnsafePath(
                path=path, reason=f"{directory!r} is a file, so nothing can be below it"
            )
        wanted[directory] = None


def _settle_below(base: Base, wanted: dict[str, Entry | None]) -> None:
    """A file cannot take the name of a directory with content; such a directory needs no entry."""
    if base.is_empty:
        return
    for path, entry in list(wanted.items()):
        if entry is None or base.find(path) is not None:
            continue
        other = _left_below(base, path, wanted)
        if other is None:
            continue
        if not entry.is_directory:
            raise UnsafePath(
                path=path, reason=f"it would be a file, but {other!r} is below it already"
            )
        wanted[path] = None


def _left_below(base: Base, path: str, wanted: dict[str, Entry | None]) -> str | None:
    for entry in base.starting_at(f"{path}/"):
        if not entry.path.startswith(f"{path}/"):
            return None
        if entry.path not in wanted:
            return entry.path
    return None


def _occupied(base: Base, paths: Iterable[str]) -> set[str]:
    """Directories known to have content in the base, so that they cannot be entries there.

    Told by the neighbours of each path, which are at hand; a directory that is missed here is
    looked up in the leaf where its entry would be.
    """
    occupied: set[str] = set()
    for path in paths:
        for neighbour in base.neighbours(path):
            for directory in directories_of(path):
                if directory in occupied:
                    break
                if neighbour.startswith(f"{directory}/"):
                    occupied.add(directory)
    return occupied


@dataclass(frozen=True, kw_only=True)
class Edited:
    """The new tree, and the objects that it needs and the old one may not have needed."""

    root: Digest
    digests: frozenset[Digest]


def edit(
    objects: Objects, root: Digest, *, put: Iterable[Entry] = (), remove: Iterable[str] = ()
) -> Edited:
    """The tree without the removed paths and with the entries put; a path in both is put.

    The contents of the entries must have been stored before.
    """
    base = Base(objects, load_index(objects, root))
    wanted = settle(base, put, remove)
    leaves, written = _rewrite(base, wanted)
    index = encode_index(leaves)
    new_root = digest_of(index)
    if new_root == root:
        return Edited(root=root, digests=frozenset())
    known = {leaf.digest for leaf in base.index.leaves}
    fresh = {digest: data for digest, data in written.items() if digest not in known}
    objects.put_all(fresh)
    # Last, so that an index in the store always has its leaves.
    objects.put(index)
    contents = {entry.digest for entry in wanted.values() if entry and not entry.is_directory}
    return Edited(root=new_root, digests=frozenset({new_root, *fresh, *contents}))


def _rewrite(
    base: Base, wanted: Mapping[str, Entry | None]
) -> tuple[list[LeafRef], dict[Digest, bytes]]:
    """The leaves of the new tree, and the bytes of those that had to be made."""
    touched: dict[int, dict[str, Entry | None]] = defaultdict(dict)
    for path, entry in wanted.items():
        touched[base.place(path)][path] = entry
    leaves: list[LeafRef] = []
    written: dict[Digest, bytes] = {}
    # Entries after the last boundary: a leaf that lost its own goes on into the next one.
    rest: Sequence[Entry] = ()

    def add(entries: Sequence[Entry]) -> None:
        leaf, data = encode_leaf(entries)
        leaves.append(leaf)
        written[leaf.digest] = data

    for at, leaf in enumerate(base.index.leaves or (None,)):
        if leaf and at not in touched and not rest:
            leaves.append(leaf)
            continue
        old = base.leaf(at) if leaf else ()
        complete, rest = cut([*rest, *_merge(old, touched.get(at, {}))])
        for entries in complete:
            add(entries)
    if rest:
        add(rest)
    return leaves, written


def _merge(entries: Iterable[Entry], changes: Mapping[str, Entry | None]) -> list[Entry]:
    merged: dict[str, Entry | None] = {entry.path: entry for entry in entries}
    merged.update(changes)
    return [entry for path in sorted(merged) if (entry := merged[path]) is not None]
