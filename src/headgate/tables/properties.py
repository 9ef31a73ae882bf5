"""Updates of a table's identity, format version, location and properties."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from headgate.errors import MalformedRequest
from headgate.tables.layouts import FIRST_PARTITION_FIELD_ID
from headgate.tables.schemas import field_ids
from headgate.tables.shape import (
    MAIN,
    Json,
    Metadata,
    read_int,
    read_properties,
    read_str,
    read_strings,
)
from headgate.tables.state import State, refuse

NEWEST_FORMAT_VERSION = 3
# Clients send the format version as a property; it is a field of the metadata and never stored so.
_RESERVED = frozenset({"format-version"})


def assign_uuid(state: State, update: Json) -> State:
    """Gives a new table its UUID; a table that has another one keeps it."""
    text = read_str(update, "uuid")
    try:
        uuid = str(UUID(text))
    except ValueError as error:
        raise MalformedRequest(what="field 'uuid'", reason="it is not a UUID") from error
    held = state.metadata.get("table-uuid")
    if held is not None and held.lower() != uuid:
        raise refuse("assign-uuid", f"the table has the UUID {held}")
    return state.put(table_uuid=held or uuid)


def upgrade_format_version(state: State, update: Json) -> State:
    """Moves the table to a newer format version; never back."""
    wanted, held = read_int(update, "format-version"), state.format_version
    if wanted > NEWEST_FORMAT_VERSION or wanted < 1:
        raise refuse(f"format version {wanted}", f"the newest known is {NEWEST_FORMAT_VERSION}")
    if wanted < held and state.metadata.get("schemas"):
        raise refuse(f"format version {wanted}", f"the table is at {held}, which is newer")
    if wanted < 2:
        raise refuse("format version 1", "new tables are written at version 2 or 3")
    metadata = upgrade_from_v1(state.metadata) if held == 1 else state.metadata
    upgraded = {**metadata, "format-version": wanted}
    if wanted >= 3:
        upgraded.setdefault("next-row-id", 0)
    return replace(state, metadata=upgraded)


def upgrade_from_v1(metadata: Metadata) -> Metadata:
    """Version 1 metadata with the fields that version 2 requires and version 1 leaves out."""
    schemas = metadata.get("schemas") or [{**metadata["schema"], "schema-id": 0}]
    specs = metadata.get("partition-specs") or [
        {"spec-id": 0, "fields": _number_v1(metadata.get("partition-spec") or [])}
    ]
    current = metadata.get("current-snapshot-id")
    has_current = current is not None and current != -1
    filled = {
        "last-sequence-number": 0,
        "schemas": schemas,
        "current-schema-id": schemas[-1]["schema-id"],
        "last-column-id": max(field_ids(schemas[-1]), default=0),
        "partition-specs": specs,
        "default-spec-id": specs[-1]["spec-id"],
        "last-partition-id": _last_partition_id(specs),
        "sort-orders": [{"order-id": 0, "fields": []}],
        "default-sort-order-id": 0,
        "refs": {MAIN: {"snapshot-id": current, "type": "branch"}} if has_current else {},
        **{key: value for key, value in metadata.items() if value is not None},
        "snapshots": [{"sequence-number": 0, **item} for item in metadata.get("snapshots") or []],
    }
    if not has_current:
        filled.pop("current-snapshot-id", None)
    return {key: value for key, value in filled.items() if key not in {"schema", "partition-spec"}}


def _number_v1(fields: list[Json]) -> list[Json]:
    """Version 1 gave partition fields no ids: they count from 1000 in order."""
    return [{"field-id": FIRST_PARTITION_FIELD_ID + at, **field} for at, field in enumerate(fields)]


def _last_partition_id(specs: list[Json]) -> int:
    ids = [field.get("field-id", 0) for spec in specs for field in spec["fields"]]
    return int(max([*ids, FIRST_PARTITION_FIELD_ID - 1]))


def set_location(state: State, update: Json) -> State:
    """Sets where the table's files are written."""
    return state.put(location=read_str(update, "location").rstrip("/"))


def set_properties(state: State, update: Json) -> State:
    """Sets properties; a `format-version` among them asks for an upgrade."""
    updates = read_properties(update, "updates")
    properties = {**(state.metadata.get("properties") or {}), **updates}
    kept = {key: value for key, value in properties.items() if key not in _RESERVED}
    state = state.put(properties=kept)
    if "format-version" in updates:
        return upgrade_format_version(
            state, {"format-version": parse_format_version(updates["format-version"])}
        )
    return state


def remove_properties(state: State, update: Json) -> State:
    """Removes properties; those that are not there are passed over."""
    doomed = set(read_strings(update, "removals"))
    properties = state.metadata.get("properties") or {}
    return state.put(
        properties={key: value for key, value in properties.items() if key not in doomed}
    )


def parse_format_version(text: str) -> int:
    """A format version as a property carries it."""
    if text not in {"1", "2", "3"}:
        raise refuse(f"format version {text!r}", f"the newest known is {NEWEST_FORMAT_VERSION}")
    return int(text)
