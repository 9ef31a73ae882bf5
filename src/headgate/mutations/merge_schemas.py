"""The schema that a merged table has, and how rows of all three sides are read to be compared."""

from __future__ import annotations

from dataclasses import dataclass

from headgate.tables import constraints, references
from headgate.tables.schemas import current_schema, same_schema
from headgate.tables.shape import Json, Metadata
from headgate.tables.updates import apply_updates
from headgate.tables.versions import StoredVersion

_LAYOUT = ("partition-specs", "default-spec-id", "sort-orders", "default-sort-order-id")


class SchemasDisagree(Exception):
    """Both sides changed the schema, and not by adding different columns."""


@dataclass(frozen=True, kw_only=True)
class Readings:
    """Metadata by which each side is read; `target` is also what the merged table gets."""

    base: Metadata
    source: Metadata
    target: Metadata
    # Neither schema, partition spec nor sort order changed on any side.
    unchanged: bool


def merge_schemas(
    base: StoredVersion, source: StoredVersion, target: StoredVersion, *, now_ms: int
) -> Readings:
    """Takes the schema of the side that changed it; where both added columns, those of both."""
    ours, theirs, was = (_schema(v) for v in (target, source, base))
    source_changed = not same_schema(was, theirs) or _property_changed(base, source)
    target_changed = not same_schema(was, ours) or _property_changed(base, target)
    if not source_changed:
        return Readings(
            base=_read_by(base, ours),
            source=_read_by(source, ours),
            target=target.metadata,
            unchanged=not target_changed and _same_layout(base, source, target),
        )
    if not target_changed:
        merged = _with_schema(target, theirs, source, now_ms)
        return Readings(
            base=_read_by(base, theirs), source=source.metadata, target=merged, unchanged=False
        )
    if same_schema(ours, theirs) and not _disagree(source, target):
        merged = target.metadata
    else:
        merged = _with_schema(target, _union(was, ours, theirs, target), None, now_ms)
    return Readings(
        base=_read_by(base, theirs), source=source.metadata, target=merged, unchanged=False
    )


def _schema(version: StoredVersion) -> Json:
    schema = current_schema(version.metadata)
    assert schema is not None
    return schema


def _property_changed(one: StoredVersion, other: StoredVersion) -> bool:
    name = constraints.PROPERTY
    before = (one.metadata.get("properties") or {}).get(name)
    return bool(before != (other.metadata.get("properties") or {}).get(name))


def _disagree(source: StoredVersion, target: StoredVersion) -> bool:
    if _property_changed(source, target):
        raise SchemasDisagree("both sides changed what the table demands of its rows")
    return False


def _same_layout(*versions: StoredVersion) -> bool:
    first, *others = ({part: v.metadata.get(part) for part in _LAYOUT} for v in versions)
    return all(other == first for other in others)


def _read_by(version: StoredVersion, schema: Json) -> Metadata:
    """The version's files read by another schema that began from the same fields."""
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
            *references.referring_datasets(target.metadata),
            *references.referring_datasets(taken.metadata),
        }
        properties = {constraints.PROPERTY: text} if text else {}
        if names:
            properties[references.PROPERTY] = references.referring_property(names)
        if properties:
            updates.append({"action": "set-properties", "updates": properties})
    return apply_updates(target.metadata, updates, now_ms=now_ms, base_location=target.location)


def _union(was: Json, ours: Json, theirs: Json, target: StoredVersion) -> Json:
    """The target's schema with the columns that the source added, under ids of their own."""
    old = {field["name"]: field for field in was["fields"]}
    mine = {field["name"]: field for field in ours["fields"]}
    yours = {field["name"]: field for field in theirs["fields"]}
    for side in (mine, yours):
        for name, field in old.items():
            if name not in side or side[name]["type"] != field["type"]:
                raise SchemasDisagree(f"one side changed column {name!r}, and both their schemas")
    if ours.get("identifier-field-ids") != theirs.get("identifier-field-ids"):
        raise SchemasDisagree("both sides changed their schemas, and one its key")
    added = [field for name, field in yours.items() if name not in old]
    for field in added:
        if field["name"] in mine and mine[field["name"]]["type"] != field["type"]:
            raise SchemasDisagree(f"both sides added column {field['name']!r}, with two types")
        if not isinstance(field["type"], str) and field["name"] not in mine:
            raise SchemasDisagree(f"both sides added columns, {field['name']!r} a nested one")
    next_id = int(target.metadata["last-column-id"])
    fresh = [field for field in added if field["name"] not in mine]
    numbered = [{**field, "id": next_id + at} for at, field in enumerate(fresh, start=1)]
    return {**ours, "fields": [*ours["fields"], *numbered]}
