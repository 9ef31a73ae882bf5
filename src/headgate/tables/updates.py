"""Applying a commit's updates to a table's metadata: old metadata in, new metadata out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headgate.errors import MalformedRequest
from headgate.tables import layouts, properties, schemas, sidecars, snapshots
from headgate.tables.shape import Json, Metadata, read_str
from headgate.tables.state import State, refuse

Update = Callable[[State, Json], State]

UPDATES: dict[str, Update] = {
    "assign-uuid": properties.assign_uuid,
    "upgrade-format-version": properties.upgrade_format_version,
    "set-location": properties.set_location,
    "set-properties": properties.set_properties,
    "remove-properties": properties.remove_properties,
    "add-schema": schemas.add_schema,
    "set-current-schema": schemas.set_current_schema,
    "remove-schemas": schemas.remove_schemas,
    "add-spec": layouts.add_spec,
    "set-default-spec": layouts.set_default_spec,
    "remove-partition-specs": layouts.remove_partition_specs,
    "add-sort-order": layouts.add_sort_order,
    "set-default-sort-order": layouts.set_default_sort_order,
    "add-snapshot": snapshots.add_snapshot,
    "set-snapshot-ref": snapshots.set_snapshot_ref,
    "remove-snapshot-ref": snapshots.remove_snapshot_ref,
    "remove-snapshots": snapshots.remove_snapshots,
    "set-statistics": sidecars.set_statistics,
    "remove-statistics": sidecars.remove_statistics,
    "set-partition-statistics": sidecars.set_partition_statistics,
    "remove-partition-statistics": sidecars.remove_partition_statistics,
    "add-encryption-key": sidecars.add_encryption_key,
    "remove-encryption-key": sidecars.remove_encryption_key,
}

_PREVIOUS_VERSIONS_MAX = "write.metadata.previous-versions-max"
_PREVIOUS_VERSIONS_DEFAULT = 100
_REQUIRED = ("table-uuid", "location", "current-schema-id", "default-spec-id")


def check_known(updates: Sequence[Json]) -> None:
    """Refuses a kind of update that the protocol does not have, before any is applied."""
    for update in updates:
        action = read_str(update, "action")
        if action not in UPDATES:
            raise MalformedRequest(what=f"update {action!r}", reason="this kind is not known")


def apply_updates(
    base: Metadata, updates: Sequence[Json], *, now_ms: int, base_location: str | None
) -> Metadata:
    """The table's next metadata; `base_location` is the file that held the old one.

    Without updates that change anything the old metadata comes back, the same object.
    """
    check_known(updates)
    held = int(base.get("format-version", 2))
    if held == 1 and updates[:1] and updates[0]["action"] != "upgrade-format-version":
        raise refuse(
            "a change to a table of format version 1",
            "set its property 'format-version' to '2' first, in a statement of its own",
        )
    state = State(metadata=base, now_ms=now_ms)
    for update in updates:
        state = UPDATES[update["action"]](state, update)
    if state.metadata == base:
        return base
    return _close(base, state, base_location)


def apply_create(updates: Sequence[Json], *, now_ms: int) -> Metadata:
    """The first metadata of a table whose creation was staged: every part of it is in updates."""
    check_known(updates)
    empty: Metadata = {
        "format-version": 2,
        "last-sequence-number": 0,
        "last-updated-ms": now_ms,
        "last-column-id": 0,
        "schemas": [],
        "partition-specs": [],
        "last-partition-id": layouts.FIRST_PARTITION_FIELD_ID - 1,
        "sort-orders": [],
        "properties": {},
        "refs": {},
        "snapshots": [],
        "snapshot-log": [],
        "metadata-log": [],
    }
    state = State(metadata=empty, now_ms=now_ms)
    for update in updates:
        state = UPDATES[update["action"]](state, update)
    for part in _REQUIRED:
        if part not in state.metadata:
            raise MalformedRequest(what="the staged creation", reason=f"nothing sets its {part}")
    return _close(empty, state, None)


def _close(base: Metadata, state: State, base_location: str | None) -> Metadata:
    layouts.check_layout_fits(state.metadata)
    log = list(state.metadata.get("metadata-log") or [])
    if base_location is not None:
        log.append({"metadata-file": base_location, "timestamp-ms": base.get("last-updated-ms", 0)})
    keep = _log_length(state.metadata)
    # Time never runs backwards within one table, even where two servers' clocks disagree.
    updated = max(state.now_ms, int(base.get("last-updated-ms", 0)))
    return {**state.metadata, "metadata-log": log[-keep:], "last-updated-ms": updated}


def _log_length(metadata: Metadata) -> int:
    text = str((metadata.get("properties") or {}).get(_PREVIOUS_VERSIONS_MAX, ""))
    return max(1, int(text)) if text.isdecimal() else _PREVIOUS_VERSIONS_DEFAULT
