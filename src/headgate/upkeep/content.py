"""Whether the bytes are there that the catalog shows, and, looking deep, whether they are right."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from headgate.catalog.soundness import Finding
from headgate.catalog.soundness_branches import Shown
from headgate.errors import HeadgateError, ObjectCorrupted
from headgate.files.entries import EMPTY, Entry, LeafRef
from headgate.files.objects import Digest, Objects
from headgate.files.parallel import in_parallel
from headgate.files.tree import load_index, load_leaf
from headgate.model.ports import ObjectStore
from headgate.upkeep.sorting import Kind, read_key

_PUT_AGAIN = "Restore it from a backup, or put a file with the same content again."
# Putting the content again would find the damaged object in its place.
_BACKUP = "Restore it from a backup."


@dataclass(kw_only=True)
class Trees:
    """All that the trees of a store need, and what could not be read of the trees themselves."""

    # Each digest with one place that needs it.
    needed: dict[Digest, str] = field(default_factory=dict)
    # How many bytes it has, where the tree says so.
    sizes: dict[Digest, int] = field(default_factory=dict)
    unreadable: dict[Digest, HeadgateError] = field(default_factory=dict)


def walk_trees(objects: Objects, shown: Iterable[Shown]) -> Trees:
    """Reads every index and leaf once; what cannot be read is noted, and passed over."""
    found = Trees()
    for version in shown:
        root = Digest(version.location)
        if root == EMPTY:
            continue
        found.needed.setdefault(root, version.where)
        try:
            leaves = load_index(objects, root).leaves
        except HeadgateError as error:
            found.unreadable[root] = error
            continue
        fresh = [leaf for leaf in leaves if leaf.digest not in found.needed]
        found.needed |= {leaf.digest: version.where for leaf in fresh}
        for leaf, entries in zip(
            fresh, in_parallel(partial(_try_leaf, objects), fresh), strict=True
        ):
            if isinstance(entries, HeadgateError):
                found.unreadable[leaf.digest] = entries
                continue
            for entry in entries:
                if not entry.is_directory:
                    found.needed.setdefault(entry.digest, f"{version.where}: {entry.path}")
                    found.sizes[entry.digest] = entry.size
    return found


def _try_leaf(objects: Objects, leaf: LeafRef) -> list[Entry] | HeadgateError:
    try:
        return load_leaf(objects, leaf)
    except HeadgateError as error:
        return error


def check_trees(store: ObjectStore, trees: Trees, *, deep: bool) -> Iterator[Finding]:
    """Every object that is shown exists; `deep`: and holds what its digest says."""
    objects = Objects(store)
    for digest, error in trees.unreadable.items():
        yield Finding(what=error.message, where=trees.needed[digest], remedy=_BACKUP)
    present = {
        stored: info.size
        for info in store.list("objects")
        if (stored := _digest_in(info.key)) is not None
    }
    rest = [digest for digest in trees.needed if digest not in trees.unreadable]
    for digest in rest:
        found, wanted = present.get(digest), trees.sizes.get(digest)
        if found is None:
            what, remedy = "does not exist", _PUT_AGAIN
        elif wanted is not None and found != wanted:
            what, remedy = f"is damaged: it has {found} bytes instead of {wanted}", _BACKUP
        else:
            continue
        what = f"object {objects.location(digest)} {what}"
        yield Finding(what=what, where=trees.needed[digest], remedy=remedy)
    if deep:
        there = [d for d in rest if d in present and trees.sizes.get(d, present[d]) == present[d]]
        for digest, damage in zip(
            there, in_parallel(partial(_find_damage, objects), there), strict=True
        ):
            if damage is not None:
                yield Finding(what=damage, where=trees.needed[digest], remedy=_BACKUP)


def _find_damage(objects: Objects, digest: Digest) -> str | None:
    try:
        for _ in objects.stream(digest):
            pass
    except HeadgateError as error:
        return error.message
    return None


def _digest_in(key: str) -> Digest | None:
    kind, digest = read_key(key)
    return Digest(digest) if kind is Kind.OBJECT and digest is not None else None


def check_bundles(
    store: ObjectStore, bundles: Mapping[str, str], *, deep: bool
) -> Iterator[Finding]:
    """The code of every published JobSpec is there; `deep`: and is what was published."""
    for digest, where in bundles.items():
        key = f"bundles/{digest}.zip"
        if store.find(key) is None:
            what = f"bundle {store.url}/{key} does not exist, so its jobs cannot be built"
        elif deep and (actual := hashlib.sha256(store.get(key)).hexdigest()) != digest:
            location = f"{store.url}/{key}"
            what = ObjectCorrupted(location=location, expected=digest, actual=actual).message
        else:
            continue
        yield Finding(
            what=what,
            where=where,
            remedy="Restore it from a backup, or run `headgate jobspecs publish` there again.",
        )
