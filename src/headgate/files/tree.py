"""Looking into a tree: each look reads the index and the leaves it needs, no more."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import TypeVar

from headgate.errors import Invalid
from headgate.files.entries import EMPTY, Entry, Index, LeafRef, decode_index, decode_leaf
from headgate.files.objects import Digest, Objects
from headgate.files.parallel import in_parallel

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
