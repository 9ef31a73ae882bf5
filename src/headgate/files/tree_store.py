"""File trees in an object store: read, compared and edited at a cost that follows the change."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import TypeVar

from headgate.errors import Invalid, UnsafePath
from headgate.files import tree
from headgate.files.objects import Digest, Objects, digest_of, in_parallel
from headgate.files.transfer import Progress, download, relative_to, scan, upload
from headgate.files.tree import Change, Entry, Index, LeafRef
from headgate.model.names import check_file_path
from headgate.model.nouns import TransactionType
from headgate.model.object_store import ObjectStore

# The character after "/": everything below a directory sorts before the directory plus this.
_AFTER_SLASH = "0"

Decoded = TypeVar("Decoded")
_path_of = attrgetter("path")


@dataclass(frozen=True, kw_only=True)
class TreeSize:
    entries: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Edited:
    """The root of an edited tree, and the objects that it needs and the old one may not need."""

    root: Digest
    locations: frozenset[str]


class FileTrees:
    """The trees of files in one store; a tree is named by its root, the digest of its index."""

    def __init__(self, store: ObjectStore) -> None:
        self.objects = Objects(store)

    def find(self, root: Digest, path: str) -> Entry | None:
        """Return the entry with exactly this path; None also for a directory with content."""
        index = load_index(self.objects, root)
        position = index.position(path)
        if position == len(index.leaves):
            return None
        return _find_in(load_leaf(self.objects, index.leaves[position]), path)

    def walk(self, root: Digest, prefix: str = "") -> Iterator[Entry]:
        """Yield the entries at or below `prefix`, or all of them, in the order of their paths."""
        index = load_index(self.objects, root)
        prefix = prefix.rstrip("/")
        if not prefix:
            for entries in self._load_leaves(index.leaves):
                yield from entries
            return
        below, beyond = f"{prefix}/", f"{prefix}{_AFTER_SLASH}"
        # Between a path and the paths below it lie its siblings that go on with "-" or ".".
        below_it = range(index.position(below), index.position(beyond) + 1)
        positions = sorted({index.position(prefix), *below_it})
        leaves = (index.leaves[at] for at in positions if at < len(index.leaves))
        for entries in self._load_leaves(leaves):
            for entry in entries:
                if entry.path == prefix or entry.path.startswith(below):
                    yield entry

    def measure(self, root: Digest) -> TreeSize:
        """Return the number of entries and bytes of a tree, from its index alone."""
        leaves = load_index(self.objects, root).leaves
        return TreeSize(
            entries=sum(leaf.entry_count for leaf in leaves),
            bytes=sum(leaf.total_bytes for leaf in leaves),
        )

    def references(self, roots: Iterable[Digest]) -> Iterator[Digest]:
        """Yield every object that these trees need; a leaf that several share is read once."""
        seen: set[Digest] = set()
        for root in roots:
            yield root
            fresh = [
                leaf for leaf in load_index(self.objects, root).leaves if leaf.digest not in seen
            ]
            seen.update(leaf.digest for leaf in fresh)
            yield from (leaf.digest for leaf in fresh)
            for entries in self._load_leaves(fresh):
                yield from (entry.digest for entry in entries if not entry.is_directory)

    def difference(self, before: Digest, after: Digest) -> Iterator[Change]:
        """Yield the changes from one tree to the other, in the order of their paths."""
        if before == after:
            return iter(())
        old, new = load_index(self.objects, before), load_index(self.objects, after)
        return tree.compare(self._entries_outside(old, new), self._entries_outside(new, old))

    def find_violation(
        self, type: TransactionType, before: Digest | None, after: Digest
    ) -> str | None:
        """Return why a transaction of this type may not make this change, or None if it may."""
        return tree.find_violation(type, self.difference(before or tree.EMPTY, after))

    def edit(
        self, root: Digest, *, put: Iterable[Entry] = (), remove: Iterable[str] = ()
    ) -> Edited:
        """Store the tree without the removed paths and with the entries put; a path in both is put.

        The contents of the entries must be stored before.
        """
        base = _BaseTree(self.objects, load_index(self.objects, root))
        wanted = _settle(base, put, remove)
        leaves, written = _rewrite(base, wanted)
        index = tree.encode_index(leaves)
        new_root = digest_of(index)
        if new_root == root:
            return Edited(root=root, locations=frozenset())
        known = {leaf.digest for leaf in base.index.leaves}
        fresh = {digest: data for digest, data in written.items() if digest not in known}
        self.objects.put_all(fresh)
        # Last, so that an index in the store always has its leaves.
        self.objects.put(index)
        contents = {entry.digest for entry in wanted.values() if entry and not entry.is_directory}
        needed = {new_root, *fresh, *contents}
        return Edited(root=new_root, locations=frozenset(map(self.objects.location, needed)))

    def store(self, data: bytes) -> Digest:
        """Store one content, for an entry to name."""
        return self.objects.put(data)

    def read(self, entry: Entry) -> bytes:
        """Return the content of a file, verified."""
        return self.objects.get(entry.digest)

    def stream(self, entry: Entry) -> Iterator[bytes]:
        """Yield the content of a file in chunks; raise `ObjectCorrupted` if it is damaged."""
        return self.objects.stream(entry.digest)

    def upload(
        self, source: Path, under: str = "", *, progress: Progress | None = None
    ) -> list[Entry]:
        """Store a local file as `under`, or a directory's content below it; return the entries."""
        return upload(self.objects, scan(source, under), progress)

    def download(
        self, root: Digest, target: Path, prefix: str = "", *, progress: Progress | None = None
    ) -> list[Entry]:
        """Write the files below `prefix` into the target directory, verified; return their entries.

        A prefix that is a file is written under its last name.
        """
        chosen = relative_to(self.walk(root, prefix), prefix.rstrip("/"))
        return download(self.objects, chosen, target, progress)

    def _load_leaves(self, leaves: Iterable[LeafRef]) -> Iterator[list[Entry]]:
        return in_parallel(lambda leaf: load_leaf(self.objects, leaf), list(leaves))

    def _entries_outside(self, index: Index, other: Index) -> Iterator[Entry]:
        """Yield the entries of leaves that the other tree does not share."""
        shared = {leaf.digest for leaf in other.leaves}
        for entries in self._load_leaves(x for x in index.leaves if x.digest not in shared):
            yield from entries


def load_index(objects: Objects, root: Digest) -> Index:
    if root == tree.EMPTY:
        return Index(())
    objects.note_tree(root)
    return _decode(objects, root, tree.decode_index)


def load_leaf(objects: Objects, leaf: LeafRef) -> list[Entry]:
    return _decode(objects, leaf.digest, tree.decode_leaf)


def _decode(objects: Objects, digest: Digest, decode: Callable[[bytes], Decoded]) -> Decoded:
    data = objects.get(digest)
    try:
        return decode(data)
    except (ValueError, TypeError, KeyError) as error:
        location = objects.location(digest)
        raise Invalid(f"object {location} is not part of a file tree: {error}.") from error


def _find_in(entries: Sequence[Entry], path: str) -> Entry | None:
    place = bisect_left(entries, path, key=_path_of)
    if place < len(entries) and entries[place].path == path:
        return entries[place]
    return None


# --- edits ----------------------------------------------------------------------------------
#
# `_settle` turns a request into the entries that paths get or lose, and keeps the rules of a
# tree: no path is below a file, and a directory has an entry only while nothing is below it.
# `_rewrite` rebuilds the leaves that hold those paths.


class _BaseTree:
    """The tree that an edit starts from; each of its leaves is read at most once."""

    def __init__(self, objects: Objects, index: Index) -> None:
        self.index = index
        self.is_empty = not index.leaves
        self._last_place = max(len(index.leaves) - 1, 0)
        self._objects = objects
        self._leaves: dict[int, list[Entry]] = {}

    def place(self, path: str) -> int:
        """Return the leaf that the path belongs into; the last one if it sorts after all."""
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
        return None if self.is_empty else _find_in(self.leaf(self.place(path)), path)

    def starting_at(self, path: str) -> Iterator[Entry]:
        for at in range(self.place(path), len(self.index.leaves)):
            entries = self.leaf(at)
            yield from entries[bisect_left(entries, path, key=_path_of) :]

    def neighbours(self, path: str) -> Iterator[str]:
        """Yield the paths before and after this one, without reading another leaf."""
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


def _settle(
    base: _BaseTree, put: Iterable[Entry], remove: Iterable[str]
) -> dict[str, Entry | None]:
    """Return the new entry of each path that the edit touches, or None for no entry."""
    wanted: dict[str, Entry | None] = dict.fromkeys(remove)
    wanted.update((check_file_path(entry.path), entry) for entry in put)
    base.read_ahead(wanted)
    _settle_above(base, wanted)
    _settle_below(base, wanted)
    return wanted


def _settle_above(base: _BaseTree, wanted: dict[str, Entry | None]) -> None:
    """Remove the entries of directories that get content; raise if one of them is a file."""
    putting = [path for path, entry in wanted.items() if entry is not None]
    occupied = _occupied(base, putting)
    above: dict[str, str] = {}
    for path in putting:
        for directory in tree.directories_of(path):
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
            raise UnsafePath(path=path, reason=f"{directory!r} is a file: nothing can be below it")
        wanted[directory] = None


def _settle_below(base: _BaseTree, wanted: dict[str, Entry | None]) -> None:
    """Drop the entries of directories that have content; raise if a file takes such a name."""
    if base.is_empty:
        return
    for path, entry in list(wanted.items()):
        if entry is None or base.find(path) is not None:
            continue
        other = _left_below(base, path, wanted)
        if other is None:
            continue
        if not entry.is_directory:
            raise UnsafePath(path=path, reason=f"it would be a file, but {other!r} is below it")
        wanted[path] = None


def _left_below(base: _BaseTree, path: str, wanted: dict[str, Entry | None]) -> str | None:
    for entry in base.starting_at(f"{path}/"):
        if not entry.path.startswith(f"{path}/"):
            return None
        if entry.path not in wanted:
            return entry.path
    return None


def _occupied(base: _BaseTree, paths: Iterable[str]) -> set[str]:
    """Return directories that have content in the base, so that they cannot be entries there.

    The neighbours of each path show most of them without another read; a directory that is
    missed here is looked up in the leaf where its entry would be.
    """
    occupied: set[str] = set()
    for path in paths:
        for neighbour in base.neighbours(path):
            for directory in tree.directories_of(path):
                if directory in occupied:
                    break
                if neighbour.startswith(f"{directory}/"):
                    occupied.add(directory)
    return occupied


def _rewrite(
    base: _BaseTree, wanted: Mapping[str, Entry | None]
) -> tuple[list[LeafRef], dict[Digest, bytes]]:
    """Return the leaves of the new tree, and the bytes of those that had to be made."""
    touched: dict[int, dict[str, Entry | None]] = defaultdict(dict)
    for path, entry in wanted.items():
        touched[base.place(path)][path] = entry
    leaves: list[LeafRef] = []
    written: dict[Digest, bytes] = {}
    # Entries after the last boundary: a leaf that lost its own continues into the next one.
    rest: Sequence[Entry] = ()

    def add(entries: Sequence[Entry]) -> None:
        leaf, data = tree.encode_leaf(entries)
        leaves.append(leaf)
        written[leaf.digest] = data

    for at, leaf in enumerate(base.index.leaves or (None,)):
        if leaf and at not in touched and not rest:
            leaves.append(leaf)
            continue
        old = base.leaf(at) if leaf else ()
        complete, rest = tree.cut([*rest, *_merge(old, touched.get(at, {}))])
        for entries in complete:
            add(entries)
    if rest:
        add(rest)
    return leaves, written


def _merge(entries: Iterable[Entry], changes: Mapping[str, Entry | None]) -> list[Entry]:
    merged: dict[str, Entry | None] = {entry.path: entry for entry in entries}
    merged.update(changes)
    return [entry for path in sorted(merged) if (entry := merged[path]) is not None]
