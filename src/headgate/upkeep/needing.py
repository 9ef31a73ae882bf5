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
from headgate.model.nouns import DatasetKind
from headgate.model.ports import ObjectStore
from headgate.upkeep.sorting import Kind, read_key, table_file_of
from headgate.upkeep.table_files import TableFiles

_DIGEST = re.compile(r"[0-9a-f]{64}\Z")


@dataclass(frozen=True, kw_only=True)
class Needed:
    """Digests of objects and of bundles, and whole locations where only those are known."""

    objects: Collection[str]
    bundles: Collection[str]
    locations: Collection[str]
    # Keys of the files of tables; None where it cannot be known which are needed.
    tables: Collection[str] | None

    def holds(self, key: str, location: str) -> bool | None:
        """Whether an object is needed; None where nobody can tell."""
        if location in self.locations:
            return True
        kind, digest = read_key(key)
        if kind is Kind.TABLE:
            return None if self.tables is None else table_file_of(key) in self.tables
        return digest is not None and digest in (
            self.bundles if kind is Kind.BUNDLE else self.objects
        )


@dataclass(frozen=True, kw_only=True)
class Readers:
    """What it takes to find out what content needs."""

    objects: ObjectStore
    trees: FileTrees
    tables: TableFiles


def find_needed(readers: Readers, mark: ObjectMark, before: ObjectMark | None = None) -> Needed:
    """All that these versions hold, and all that OPEN transactions, intents and JobSpecs name.

    With `before`, only what came on top of that. Content that cannot be read raises: nothing may
    be swept while it is unknown what it needs.
    """
    trees = readers.trees
    roots = mark.roots - (before.roots if before else frozenset())
    digests: set[str] = set(trees.references(Digest(root) for root in sorted(roots)))
    for word in mark.named - mark.roots:
        if _DIGEST.match(word):
            digests.add(word)
            digests |= _tree_to_come(trees, Digest(word))
    tables = mark.tables - (before.tables if before else frozenset())
    is_known = all(readers.tables.is_ours(root) for root in mark.tables)
    return Needed(
        objects=digests,
        bundles=mark.bundles,
        locations=mark.working | mark.named,
        tables=readers.tables.needed(tables) if is_known else None,
    )


def find_whole(readers: Readers, kind: DatasetKind, root: str) -> list[str] | None:
    """The locations of all that a version needs, or None if some of it is not there."""
    objects = readers.objects
    try:
        if kind is DatasetKind.TABLE:
            keys = sorted(readers.tables.apart().needed([root]))
        else:
            digests = sorted(set(readers.trees.references([Digest(root)])) - {EMPTY})
            keys = [key_of(digest) for digest in digests]
    except NotFound:
        return None
    if not all(in_parallel(lambda key: objects.find(key) is not None, keys)):
        return None
    return [f"{objects.url}/{key}" for key in keys]


def _tree_to_come(trees: FileTrees, digest: Digest) -> set[str]:
    """What an intent's tree needs; nothing where the digest is not that of a tree."""
    try:
        return set(trees.references([digest]))
    except (NotFound, Invalid):
        return set()
