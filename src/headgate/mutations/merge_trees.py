"""Trees of files, merged three ways by path."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from headgate.catalog.condemning import find_condemned
from headgate.errors import UnsafePath
from headgate.files.difference import Change, ChangeKind
from headgate.files.editing import Edited
from headgate.files.entries import Entry
from headgate.files.objects import Digest
from headgate.files.writing import (
    FileEdit,
    locations_in,
    natural_type,
    take_back,
    tree_version,
)
from headgate.model.nouns import TransactionType, Version
from headgate.mutations.counts import Counts
from headgate.mutations.parts import Parts

_SENTENCES = {
    "insert_insert": "both sides added it, with different content",
    "update_update": "both sides changed it, differently",
    "delete_update": "one side deleted it, the other changed it",
}


@dataclass(frozen=True, kw_only=True)
class MergedTree:
    """What the target is to show; None where it shows it already, or where there are conflicts."""

    version: Version | None = None
    type: TransactionType = TransactionType.UPDATE
    counts: Counts = field(default_factory=Counts)
    # Objects of the tree that the target's does not hold.
    objects: frozenset[str] = frozenset()
    conflicts: list[dict[str, Any]] = field(default_factory=list)


def take_tree(parts: Parts, target: Digest, source: Digest) -> MergedTree:
    """The source's tree as it is."""
    changes = list(parts.trees.difference(target, source))
    return MergedTree(
        version=tree_version(source), type=natural_type(changes), counts=_counts(changes)
    )


def merge_trees(parts: Parts, base: Digest, source: Digest, target: Digest) -> MergedTree:
    """What the source changed since the base, on top of the target; cost follows the changes."""
    here = {change.path: change for change in parts.trees.difference(base, target)}
    wanted: list[Change] = []
    conflicts: list[dict[str, Any]] = []
    for change in parts.trees.difference(base, source):
        other = here.get(change.path)
        if other is None:
            wanted.append(change)
        elif other.after != change.after:
            conflicts.append(_conflict(change, other))
    if conflicts:
        return MergedTree(conflicts=conflicts)
    try:
        edited = _apply(parts, target, wanted)
    except UnsafePath as error:
        # A file of one side has the name of a directory of the other.
        return MergedTree(conflicts=[{"kind": "path", **error.facts, "reason": error.message}])
    if edited.root == target:
        return MergedTree()
    changes = list(parts.trees.difference(target, edited.root))
    return MergedTree(
        version=tree_version(edited.root),
        type=natural_type(changes),
        counts=_counts(changes),
        objects=frozenset(locations_in(parts.trees, edited)),
    )


def _apply(parts: Parts, target: Digest, wanted: Iterable[Change]) -> Edited:
    edit = FileEdit(
        put=[change.after for change in wanted if change.after is not None],
        remove=[change.path for change in wanted if change.after is None],
    )
    apply = partial(parts.trees.edit, target, put=edit.put, remove=edit.remove)
    edited = apply()
    locations = list(locations_in(parts.trees, edited))
    if parts.database.read(partial(find_condemned, locations=locations)):
        # A tree like this was there once, and cleanup is about to sweep it.
        take_back(parts.database, parts.trees, edit, apply)
    return edited


def _conflict(source: Change, target: Change) -> dict[str, Any]:
    kinds = {source.kind, target.kind}
    if kinds == {ChangeKind.ADDED}:
        kind = "insert_insert"
    else:
        kind = "delete_update" if ChangeKind.REMOVED in kinds else "update_update"
    return {
        "kind": kind,
        "path": source.path,
        "base": _shown(source.before),
        "source": _shown(source.after),
        "target": _shown(target.after),
        "reason": f"{source.path!r}: {_SENTENCES[kind]}",
    }


def _shown(entry: Entry | None) -> Mapping[str, Any] | None:
    if entry is None:
        return None
    return {"size": entry.size, "digest": None if entry.is_directory else entry.digest}


def _counts(changes: Iterable[Change]) -> Counts:
    kinds = [change.kind for change in changes if not _is_directory(change)]
    return Counts(
        inserted=kinds.count(ChangeKind.ADDED),
        updated=kinds.count(ChangeKind.CHANGED),
        deleted=kinds.count(ChangeKind.REMOVED),
    )


def _is_directory(change: Change) -> bool:
    return all(e is None or e.is_directory for e in (change.before, change.after))
