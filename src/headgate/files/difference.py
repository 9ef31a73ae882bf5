"""What differs between two trees, at a cost that follows the difference."""

from __future__ import annotations

import enum
import heapq
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import itemgetter

from headgate.files.entries import Entry, Index
from headgate.files.objects import Digest, Objects
from headgate.files.tree import load_index, load_leaves


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
