"""A new tree from an old one, at a cost that follows the change and not the tree."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from headgate.files.entries import Entry, LeafRef, cut, encode_index, encode_leaf
from headgate.files.objects import Digest, Objects, digest_of
from headgate.files.settling import Base, settle
from headgate.files.tree import load_index


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
