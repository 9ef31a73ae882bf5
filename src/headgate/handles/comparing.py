"""What differs between two versions of a dataset, whatever kind it is."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from headgate.files.difference import Change, ChangeKind
from headgate.files.writing import root_of
from headgate.handles.parts import StoreParts
from headgate.handles.reading import Sides
from headgate.model.nouns import DatasetKind, Version
from headgate.tables.comparing import Comparing, TableDifference, compare_tables
from headgate.tables.versions import StoredVersion


@dataclass(frozen=True, kw_only=True)
class FilesDifference:
    """Paths that were added, removed or changed: how many, and the first few of each."""

    before_count: int
    after_count: int
    counts: dict[ChangeKind, int]
    samples: dict[ChangeKind, list[Change]]


def compare_sides(
    store: StoreParts, sides: Sides, how: Comparing
) -> TableDifference | FilesDifference:
    """The difference between what the two sides show."""
    if sides.dataset.kind is DatasetKind.FILES:
        return _compare_files(store, sides, how.samples)
    before, after = (_stored(store, version) for version in sides.versions)
    return compare_tables(before, after, how, same_content=sides.same_content)


def _stored(store: StoreParts, version: Version | None) -> StoredVersion | None:
    return store.contents.tables.read(version.location) if version else None


def _compare_files(store: StoreParts, sides: Sides, samples: int) -> FilesDifference:
    before, after = (root_of(version) for version in sides.versions)
    counts: Counter[ChangeKind] = Counter()
    shown: dict[ChangeKind, list[Change]] = {kind: [] for kind in ChangeKind}
    for change in store.trees.difference(before, after):
        counts[change.kind] += 1
        if len(shown[change.kind]) < samples:
            shown[change.kind].append(change)
    return FilesDifference(
        before_count=store.trees.measure(before).entries,
        after_count=store.trees.measure(after).entries,
        counts={kind: counts[kind] for kind in ChangeKind},
        samples=shown,
    )
