"""Three-way merges of a table's schema, and of file trees by path. See ADR 0010."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from headgate.catalog.garbage_collection import find_condemned
from headgate.errors import UnsafePath
from headgate.files import tree
from headgate.files.edits import FileEdit, spare_condemned, tree_version
from headgate.files.objects import Digest
from headgate.files.tree_store import Edited
from headgate.model.nouns import TransactionType, Version
from headgate.rows.outcome import Counts, Parts
from headgate.tables import constraints
from headgate.tables.metadata import Json, Metadata, current_schema
from headgate.tables.schemas import same_schema
from headgate.tables.updates import apply_updates
from headgate.tables.versions import StoredVersion

_LAYOUT = ("partition-specs", "default-spec-id", "sort-orders", "default-sort-order-id")


class SchemaConflict(Exception):
    """Both sides changed the schema, other than by adding different columns."""


@dataclass(frozen=True, kw_only=True)
class MergedSchemas:
    """Metadata by which each side is read; `target` is also that of the merged table."""

    base: Metadata
    source: Metadata
    target: Metadata
    # Neither schema, partition spec nor sort order changed on any side.
    unchanged: bool


def merge_schemas(
    bases: Sequence[StoredVersion], source: StoredVersion, target: StoredVersion, *, now_ms: int
) -> MergedSchemas:
    """Return the schema of the side that changed it; the columns of both where both added."""
    base, *others = bases
    ours, theirs, was = (_schema(v) for v in (target, source, base))
    source_changed = _changed(base, source)
    target_changed = _changed(base, target)
    if _changed(source, target) and any(_changed(base, other) for other in others):
        raise SchemaConflict("both sides merged each other, from states with different schemas")
    if not source_changed:
        layouts = [[v.metadata.get(part) for part in _LAYOUT] for v in (base, source, target)]
        return MergedSchemas(
            base=read_by(base, ours),
            source=read_by(source, ours),
            target=target.metadata,
            unchanged=not target_changed and layouts[0] == layouts[1] == layouts[2],
        )
    if not target_changed:
        merged = _with_schema(target, theirs, source, now_ms)
    elif same_schema(ours, theirs):
        if _property_changed(source, target):
            raise SchemaConflict("both sides changed the constraints of the table")
        merged = target.metadata
    else:
        merged = _with_schema(target, _union(was, ours, theirs, target), None, now_ms)
    return MergedSchemas(
        base=read_by(base, theirs), source=source.metadata, target=merged, unchanged=False
    )


def _schema(version: StoredVersion) -> Json:
    schema = current_schema(version.metadata)
    assert schema is not None
    return schema


def _changed(one: StoredVersion, other: StoredVersion) -> bool:
    return not same_schema(_schema(one), _schema(other)) or _property_changed(one, other)


def _property_changed(one: StoredVersion, other: StoredVersion) -> bool:
    name = constraints.PROPERTY
    before = (one.metadata.get("properties") or {}).get(name)
    return bool(before != (other.metadata.get("properties") or {}).get(name))


def read_by(version: StoredVersion, schema: Json) -> Metadata:
    """Return metadata that reads the version's files by another schema with the same field ids."""
    number = max(s["schema-id"] for s in version.metadata["schemas"]) + 1
    schemas = [*version.metadata["schemas"], {**schema, "schema-id": number}]
    return {**version.metadata, "schemas": schemas, "current-schema-id": number}


def _with_schema(
    target: StoredVersion, schema: Json, taken: StoredVersion | None, now_ms: int
) -> Metadata:
    updates: list[Json] = [
        {"action": "add-schema", "schema": schema},
        {"action": "set-current-schema", "schema-id": -1},
    ]
    if taken is not None:
        held = taken.metadata.get("properties") or {}
        text = held.get(constraints.PROPERTY)
        names = {
            *constraints.referring_datasets(target.metadata),
            *constraints.referring_datasets(taken.metadata),
        }
        properties = {constraints.PROPERTY: text} if text else {}
        if names:
            properties[constraints.REFERRING_PROPERTY] = constraints.referring_property(names)
        if properties:
            updates.append({"action": "set-properties", "updates": properties})
    return apply_updates(target.metadata, updates, now_ms=now_ms, base_location=target.location)


def _union(was: Json, ours: Json, theirs: Json, target: StoredVersion) -> Json:
    """Return the target's schema with the columns that the source added, under new ids."""
    old = {field["name"]: field for field in was["fields"]}
    mine = {field["name"]: field for field in ours["fields"]}
    yours = {field["name"]: field for field in theirs["fields"]}
    for side in (mine, yours):
        for name, column in old.items():
            if name not in side or side[name]["type"] != column["type"]:
                raise SchemaConflict(f"both sides changed the schema, one of them column {name!r}")
    if ours.get("identifier-field-ids") != theirs.get("identifier-field-ids"):
        raise SchemaConflict("both sides changed the schema, and one changed the key")
    added = [field for name, field in yours.items() if name not in old]
    for column in added:
        if column["name"] in mine and mine[column["name"]]["type"] != column["type"]:
            raise SchemaConflict(f"both sides added column {column['name']!r}, of different types")
        if not isinstance(column["type"], str) and column["name"] not in mine:
            raise SchemaConflict(f"both sides added columns, and {column['name']!r} is nested")
    next_id = int(target.metadata["last-column-id"])
    fresh = [field for field in added if field["name"] not in mine]
    numbered = [{**field, "id": next_id + at} for at, field in enumerate(fresh, start=1)]
    return {**ours, "fields": [*ours["fields"], *numbered]}


_SENTENCES = {
    "insert_insert": "both sides added it, with different content",
    "update_update": "both sides changed it, differently",
    "delete_update": "one side deleted it, the other changed it",
}


@dataclass(frozen=True, kw_only=True)
class MergedTree:
    """The target's next tree; None where nothing changes, or where there are conflicts."""

    version: Version | None = None
    type: TransactionType = TransactionType.UPDATE
    counts: Counts = field(default_factory=Counts)
    difference: tree.FilesDifference | None = None
    # Objects of the tree that the target's does not hold.
    objects: frozenset[str] = frozenset()
    conflicts: list[dict[str, Any]] = field(default_factory=list)


def merge_trees(
    parts: Parts, bases: Sequence[Digest], source: Digest, target: Digest, samples: int
) -> MergedTree:
    """Apply the source's changes since the base to the target; the cost follows the changes.

    A path at which several merge bases differ counts as changed on both sides.
    """
    base, *others = bases
    here, there = (
        {change.path: change for change in parts.trees.difference(base, side)}
        for side in (target, source)
    )
    for change in itertools.chain(*(parts.trees.difference(base, one) for one in others)):
        same = replace(change, after=change.before)
        for side in (here, there):
            side.setdefault(change.path, same)
    wanted: list[tree.Change] = []
    conflicts: list[dict[str, Any]] = []
    for change in there.values():
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
    return take_tree(parts, target, edited.root, samples, objects=edited.locations)


def take_tree(
    parts: Parts, target: Digest, root: Digest, samples: int, objects: frozenset[str] = frozenset()
) -> MergedTree:
    """Return a tree that the target shows next as it is; `objects` are those that it lacks."""
    changes = list(parts.trees.difference(target, root))
    found = tree.summarize_changes(
        changes,
        before_count=parts.trees.measure(target).entries,
        after_count=parts.trees.measure(root).entries,
        samples=samples,
    )
    return MergedTree(
        version=tree_version(root),
        type=tree.infer_type(changes),
        counts=Counts(
            inserted=found.counts[tree.ChangeKind.ADDED],
            updated=found.counts[tree.ChangeKind.CHANGED],
            deleted=found.counts[tree.ChangeKind.REMOVED],
        ),
        objects=objects,
        difference=found,
    )


def _apply(parts: Parts, target: Digest, wanted: Iterable[tree.Change]) -> Edited:
    edit = FileEdit.of(wanted)
    apply = partial(parts.trees.edit, target, put=edit.put, remove=edit.remove)
    edited = apply()
    if parts.database.read(partial(find_condemned, locations=edited.locations)):
        # The same tree existed before, and cleanup is about to delete it.
        spare_condemned(parts.database, parts.trees, edit, apply)
    return edited


def _conflict(source: tree.Change, target: tree.Change) -> dict[str, Any]:
    kinds = {source.kind, target.kind}
    if kinds == {tree.ChangeKind.ADDED}:
        kind = "insert_insert"
    else:
        kind = "delete_update" if tree.ChangeKind.REMOVED in kinds else "update_update"
    return {
        "kind": kind,
        "path": source.path,
        "base": _shown(source.before),
        "source": _shown(source.after),
        "target": _shown(target.after),
        "reason": f"{source.path!r}: {_SENTENCES[kind]}",
    }


def _shown(entry: tree.Entry | None) -> Mapping[str, Any] | None:
    if entry is None:
        return None
    return {"size": entry.size, "digest": None if entry.is_directory else entry.digest}
