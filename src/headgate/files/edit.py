"""A new tree from an old one, at a cost that follows the change and not the tree."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from headgate.errors import UnsafePath
from headgate.files.objects import Digest, Objects, digest_of, in_parallel
from headgate.files.tree import (
    Entry,
    Index,
    LeafRef,
    cut,
    directories_of,
    encode_index,
    encode_leaf,
    find_in,
    load_index,
    load_leaf,
)
from headgate.model.names import check_file_path

# From what an edit asks for to what it means: which paths get an entry, and which lose theirs.
#
# The rules of a tree are kept here: no path is below a file, and a directory has an entry of its
# own only while nothing is below it.

_path_of = attrgetter("path")


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
