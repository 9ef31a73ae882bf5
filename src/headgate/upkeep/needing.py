"""Which stored objects are needed by what the catalog keeps."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from headgate.catalog.condemning import ObjectMark
from headgate.errors import Invalid, NotFound
from headgate.files.entries import EMPTY
from headgate.files.objects import Digest, key_of
from headgate.files.parallel import in_parallel
from headgate.files.trees import FileTrees
from headgate.model.ports import ObjectStore
from headgate.upkeep.sorting import Kind

_DIGEST = re.compile(r"[0-9a-f]{64}\Z")


@dataclass(frozen=True, kw_only=True)
class Needed:
    """Digests of objects and of bundles, and whole locations where only those are known."""

    objects: Collection[str]
    bundles: Collection[str]
    locations: Collection[str]

    def holds(self, kind: Kind, digest: str | None, location: str) -> bool:
        if location in self.locations:
            return True
        return digest is not None and digest in (
            self.bundles if kind is Kind.BUNDLE else self.objects
        )


def find_needed(trees: FileTrees, mark: ObjectMark, roots: Collection[str]) -> Needed:
    """All that these trees hold, and all that OPEN transactions, intents and JobSpecs name.

    A tree that cannot be read raises: nothing may be swept while it is unknown what it needs.
    """
    digests: set[str] = set(trees.references(Digest(root) for root in sorted(roots)))
    for word in mark.named - mark.roots:
        if _DIGEST.match(word):
            digests.add(word)
            digests |= _tree_to_come(trees, Digest(word))
    return Needed(objects=digests, bundles=mark.bundles, locations=mark.working | mark.named)


def find_whole(objects: ObjectStore, trees: FileTrees, root: str) -> list[str] | None:
    """The locations of all that a tree needs, or None if some of it is not there."""
    try:
        digests = sorted(set(trees.references([Digest(root)])) - {EMPTY})
    except NotFound:
        return None
    if not all(in_parallel(lambda digest: objects.find(key_of(digest)) is not None, digests)):
        return None
    return [trees.location(digest) for digest in digests]


def _tree_to_come(trees: FileTrees, digest: Digest) -> set[str]:
    """What an intent's tree needs; nothing where the digest is not that of a tree."""
    try:
        return set(trees.references([digest]))
    except (NotFound, Invalid):
        return set()
