"""Commits of a table: updates and requirements of the Iceberg REST protocol, as pure functions.

An update takes the metadata in a `State` and returns the next one; a requirement takes the
metadata and returns the expected and the actual value. See ADR 0006.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from uuid import UUID

from headgate.errors import MalformedRequest, RequirementFailed
from headgate.tables.metadata import (
    MAIN,
    Json,
    Metadata,
    current_schema,
    field_ids,
    impossible,
    read_int,
    read_ints,
    read_object,
    read_objects,
    read_properties,
    read_str,
    read_strings,
)
from headgate.tables.schemas import check_schema, same_schema

# In an update, the id of what this same commit added last.
_LAST_ADDED = -1


@dataclass(frozen=True, kw_only=True)
class State:
    """Metadata of a table or view in the middle of a commit, and the ids that this commit added."""

    metadata: Metadata
    now_ms: int
    last_schema_id: int | None = None
    last_spec_id: int | None = None
    last_order_id: int | None = None
    last_version_id: int | None = None
    # Of a table's snapshots, or of a view's versions.
    added_ids: frozenset[int] = frozenset()

    def put(self, **fields: Any) -> State:
        """Return the state with metadata fields set; `_` in a name means `-`."""
        changed = {name.replace("_", "-"): value for name, value in fields.items()}
        return replace(self, metadata={**self.metadata, **changed})

    def drop(self, name: str) -> State:
        """Return the state without a metadata field."""
        kept = {key: value for key, value in self.metadata.items() if key != name}
        return replace(self, metadata=kept)

    def items(self, name: str) -> list[Json]:
        """Return a list field of the metadata; a missing one is empty."""
        return list(self.metadata.get(name) or [])

    @property
    def format_version(self) -> int:
        return int(self.metadata.get("format-version", 2))


def _named_id(
    update: Json, key: str, *, known: Iterable[int], last_added: int | None, what: str
) -> int:
    """Return the id that an update names, which must exist."""
    id = read_int(update, key)
    if id == _LAST_ADDED:
        if last_added is None:
            raise impossible(f"{update['action']} -1", f"this commit has added no {what}")
        id = last_added
    if id not in known:
        raise impossible(f"{update['action']} {id}", f"there is no {what} with that id")
    return id


NEWEST_FORMAT_VERSION = 3
# Clients send the format version as a property; it is a field of the metadata and never stored so.
_RESERVED = frozenset({"format-version"})


def assign_uuid(state: State, update: Json) -> State:
    """Give a new table its UUID; raise if the table has another one."""
    text = read_str(update, "uuid")
    try:
        uuid = str(UUID(text))
    except ValueError as error:
        raise MalformedRequest(what="field 'uuid'", reason="it is not a UUID") from error
    held = state.metadata.get("table-uuid")
    if held is not None and held.lower() != uuid:
        raise impossible("assign-uuid", f"the table has the UUID {held}")
    return state.put(table_uuid=held or uuid)


def upgrade_format_version(state: State, update: Json) -> State:
    """Move the table to a newer format version; never back."""
    wanted, held = read_int(update, "format-version"), state.format_version
    if wanted > NEWEST_FORMAT_VERSION or wanted < 1:
        reason = f"the newest supported version is {NEWEST_FORMAT_VERSION}"
        raise impossible(f"format version {wanted}", reason)
    if wanted < held and state.metadata.get("schemas"):
        raise impossible(f"format version {wanted}", f"the table is at {held}, which is newer")
    # A new table of version 1 is written at version 2.
    wanted = max(wanted, 2)
    metadata = upgrade_from_v1(state.metadata) if held == 1 else state.metadata
    upgraded = {**metadata, "format-version": wanted}
    if wanted >= 3:
        upgraded.setdefault("next-row-id", 0)
    return replace(state, metadata=upgraded)


def upgrade_from_v1(metadata: Metadata) -> Metadata:
    """Return version 1 metadata with the fields that version 2 requires and version 1 omits."""
    schemas = metadata.get("schemas") or [{**metadata["schema"], "schema-id": 0}]
    # Version 1 gives partition fields no ids: they count from 1000 in order.
    fields = enumerate(metadata.get("partition-spec") or [], start=FIRST_PARTITION_FIELD_ID)
    specs = metadata.get("partition-specs") or [
        {"spec-id": 0, "fields": [{"field-id": id, **field} for id, field in fields]}
    ]
    partition_ids = [field.get("field-id", 0) for spec in specs for field in spec["fields"]]
    current = metadata.get("current-snapshot-id")
    has_current = current is not None and current != -1
    filled = {
        "last-sequence-number": 0,
        "schemas": schemas,
        "current-schema-id": schemas[-1]["schema-id"],
        "last-column-id": max(field_ids(schemas[-1]), default=0),
        "partition-specs": specs,
        "default-spec-id": specs[-1]["spec-id"],
        "last-partition-id": max([*partition_ids, FIRST_PARTITION_FIELD_ID - 1]),
        "sort-orders": [{"order-id": 0, "fields": []}],
        "default-sort-order-id": 0,
        "refs": {MAIN: {"snapshot-id": current, "type": "branch"}} if has_current else {},
        **{key: value for key, value in metadata.items() if value is not None},
        "snapshots": [{"sequence-number": 0, **item} for item in metadata.get("snapshots") or []],
    }
    if not has_current:
        filled.pop("current-snapshot-id", None)
    return {key: value for key, value in filled.items() if key not in {"schema", "partition-spec"}}


def set_location(state: State, update: Json) -> State:
    """Set where the table's files are written."""
    return state.put(location=read_str(update, "location").rstrip("/"))


def set_properties(state: State, update: Json) -> State:
    """Set properties; a `format-version` among them is an upgrade."""
    updates = read_properties(update, "updates")
    properties = {**(state.metadata.get("properties") or {}), **updates}
    kept = {key: value for key, value in properties.items() if key not in _RESERVED}
    state = state.put(properties=kept)
    if "format-version" in updates:
        version = parse_format_version(updates["format-version"])
        return upgrade_format_version(state, {"format-version": version})
    return state


def remove_properties(state: State, update: Json) -> State:
    """Remove properties; missing ones are ignored."""
    removed = set(read_strings(update, "removals"))
    properties = state.metadata.get("properties") or {}
    return state.put(
        properties={key: value for key, value in properties.items() if key not in removed}
    )


def parse_format_version(text: str) -> int:
    """Return the format version that a property carries."""
    if text not in {"1", "2", "3"}:
        reason = f"the newest supported version is {NEWEST_FORMAT_VERSION}"
        raise impossible(f"format version {text!r}", reason)
    return int(text)


def add_schema(state: State, update: Json) -> State:
    """Add a schema under the next id, or find the equal one that exists."""
    schema = read_object(update, "schema")
    check_schema(schema, state.format_version)
    highest = max([*field_ids(schema), 0])
    last_column_id = max(int(state.metadata.get("last-column-id", 0)), highest)
    return put_schema(state.put(last_column_id=last_column_id), schema)


def put_schema(state: State, schema: Json) -> State:
    """Return the state with a checked schema of a table or view."""
    schemas = state.items("schemas")
    for known in schemas:
        if same_schema(known, schema):
            return replace(state, last_schema_id=known["schema-id"])
    schema_id = max((known["schema-id"] for known in schemas), default=-1) + 1
    added = state.put(schemas=[*schemas, {**schema, "schema-id": schema_id}])
    return replace(added, last_schema_id=schema_id)


def set_current_schema(state: State, update: Json) -> State:
    """Make a schema the current one; the partition spec and sort order must still fit it."""
    known = [schema["schema-id"] for schema in state.items("schemas")]
    last = state.last_schema_id
    id = _named_id(update, "schema-id", known=known, last_added=last, what="schema")
    return state.put(current_schema_id=id)


def remove_schemas(state: State, update: Json) -> State:
    """Remove schemas that are not current; unknown ids are ignored."""
    removed = set(read_ints(update, "schema-ids"))
    if state.metadata.get("current-schema-id") in removed:
        raise impossible("remove-schemas", "one of them is the current schema")
    kept = [schema for schema in state.items("schemas") if schema["schema-id"] not in removed]
    return state.put(schemas=kept)


# The specification numbers partition fields from 1000.
FIRST_PARTITION_FIELD_ID = 1000
_UNSORTED_ORDER_ID = 0


def add_spec(state: State, update: Json) -> State:
    """Add a partition spec under the next id, or find the equal one that exists."""
    fields = read_objects(read_object(update, "spec"), "fields")
    specs = state.items("partition-specs")
    for known in specs:
        if _without_field_ids(known["fields"]) == _without_field_ids(fields):
            return replace(state, last_spec_id=known["spec-id"])
    _check_sources(state, fields, "add-spec")
    names = [read_str(field, "name") for field in fields]
    if len(set(names)) != len(names):
        raise impossible("add-spec", "two partition fields have the same name")
    numbered, last_id = _number_fields(state, fields)
    spec_id = max((known["spec-id"] for known in specs), default=-1) + 1
    added = state.put(
        partition_specs=[*specs, {"spec-id": spec_id, "fields": numbered}],
        last_partition_id=last_id,
    )
    return replace(added, last_spec_id=spec_id)


def set_default_spec(state: State, update: Json) -> State:
    """Make a partition spec the one that writers use."""
    known = [spec["spec-id"] for spec in state.items("partition-specs")]
    last = state.last_spec_id
    id = _named_id(update, "spec-id", known=known, last_added=last, what="partition spec")
    return state.put(default_spec_id=id)


def remove_partition_specs(state: State, update: Json) -> State:
    """Remove partition specs that are not the default one."""
    removed = set(read_ints(update, "spec-ids"))
    if state.metadata.get("default-spec-id") in removed:
        raise impossible("remove-partition-specs", "one of them is the default spec")
    kept = [spec for spec in state.items("partition-specs") if spec["spec-id"] not in removed]
    return state.put(partition_specs=kept)


def add_sort_order(state: State, update: Json) -> State:
    """Add a sort order under the next id, or find the equal one; unsorted is always id 0."""
    order = read_object(update, "sort-order")
    fields = read_objects(order, "fields")
    orders = state.items("sort-orders")
    for known in orders:
        if known["fields"] == fields:
            return replace(state, last_order_id=known["order-id"])
    _check_sources(state, fields, "add-sort-order")
    for field in fields:
        read_str(field, "direction")
        read_str(field, "null-order")
    order_id = _UNSORTED_ORDER_ID
    if fields:
        order_id = max([*(known["order-id"] for known in orders), _UNSORTED_ORDER_ID]) + 1
    added = state.put(sort_orders=[*orders, {**order, "order-id": order_id}])
    return replace(added, last_order_id=order_id)


def set_default_sort_order(state: State, update: Json) -> State:
    """Make a sort order the one that writers use."""
    known = [order["order-id"] for order in state.items("sort-orders")]
    last = state.last_order_id
    id = _named_id(update, "sort-order-id", known=known, last_added=last, what="sort order")
    return state.put(default_sort_order_id=id)


def _check_sources(state: State, fields: list[Json], change: str) -> None:
    for field in fields:
        read_str(field, "transform")
    # Some clients create a table by a schema, a spec and an order, and then make them current.
    schema = current_schema(state.metadata) or next(reversed(state.items("schemas")), None)
    if schema is None:
        if fields:
            raise impossible(change, "the table has no schema yet")
        return
    _check_columns(fields, set(field_ids(schema)), change)


def _check_layout(metadata: Json) -> None:
    """Raise if the default spec or order refers to a column that the current schema lacks."""
    columns = set(field_ids(current_schema(metadata) or {"fields": []}))
    for spec in metadata.get("partition-specs") or []:
        if spec["spec-id"] == metadata.get("default-spec-id"):
            # A dropped source column leaves a void transform behind in version 1.
            fields = [field for field in spec["fields"] if field.get("transform") != "void"]
            _check_columns(fields, columns, "the default partition spec")
    for order in metadata.get("sort-orders") or []:
        if order["order-id"] == metadata.get("default-sort-order-id"):
            _check_columns(order["fields"], columns, "the default sort order")


def _check_columns(fields: list[Json], columns: set[int], change: str) -> None:
    for field in fields:
        for source in sources_of(field):
            if source not in columns:
                raise impossible(change, f"its source column {source} is not in the current schema")


def sources_of(field: Json) -> list[int]:
    """Return the columns that a partition or sort field is computed from."""
    # A transform of several arguments has `source-ids` in place of `source-id`.
    if "source-ids" in field:
        return read_ints(field, "source-ids")
    return [read_int(field, "source-id")]


def _without_field_ids(fields: list[Json]) -> list[Any]:
    """Return what makes two specs equal: the fields in order, without their assigned ids."""
    return [(sources_of(field), field.get("name"), field.get("transform")) for field in fields]


def _number_fields(state: State, fields: list[Json]) -> tuple[list[Json], int]:
    """Give fields their ids: as sent, else that of an equal earlier field, else the next one."""
    last_id = int(state.metadata.get("last-partition-id", FIRST_PARTITION_FIELD_ID - 1))
    earlier = {
        (tuple(sources_of(field)), field["transform"]): field["field-id"]
        for spec in state.items("partition-specs")
        for field in spec["fields"]
        if "field-id" in field
    }
    numbered = []
    for field in fields:
        field_id = field.get("field-id")
        if field_id is None:
            field_id = earlier.get((tuple(sources_of(field)), field["transform"]))
        if field_id is None:
            field_id = last_id + 1
        field_id = read_int({"field-id": field_id}, "field-id")
        last_id = max(last_id, field_id)
        numbered.append({**field, "field-id": field_id})
    if len({field["field-id"] for field in numbered}) != len(numbered):
        raise impossible("add-spec", "two partition fields have the same id")
    return numbered, last_id


_OPERATIONS = frozenset({"append", "replace", "overwrite", "delete"})
_RETENTION = ("min-snapshots-to-keep", "max-snapshot-age-ms", "max-ref-age-ms")


def add_snapshot(state: State, update: Json) -> State:
    """Add a snapshot exactly as sent; one prepared on an older table is a conflict."""
    snapshot = read_object(update, "snapshot")
    snapshot_id = read_int(snapshot, "snapshot-id")
    _check_snapshot(state, snapshot, snapshot_id)
    if any(known["snapshot-id"] == snapshot_id for known in state.items("snapshots")):
        # A conflict rather than a defect: a client may repeat a commit that has landed.
        raise RequirementFailed(requirement="snapshot-id", expected="a new id", actual=snapshot_id)
    state = _next_sequence(state, snapshot)
    if state.format_version >= 3:
        state = _next_rows(state, snapshot)
    added = state.put(snapshots=[*state.items("snapshots"), snapshot])
    return replace(added, added_ids=state.added_ids | {snapshot_id})


def _check_snapshot(state: State, snapshot: Json, snapshot_id: int) -> None:
    for part in ("schemas", "partition-specs", "sort-orders"):
        if not state.metadata.get(part):
            raise impossible(f"add-snapshot {snapshot_id}", f"the table has no {part} yet")
    read_int(snapshot, "timestamp-ms")
    read_str(snapshot, "manifest-list")
    operation = read_str(read_object(snapshot, "summary"), "operation")
    if operation not in _OPERATIONS:
        raise impossible(f"add-snapshot {snapshot_id}", f"operation {operation!r} is not known")


def _next_sequence(state: State, snapshot: Json) -> State:
    sequence = read_int(snapshot, "sequence-number")
    last = int(state.metadata.get("last-sequence-number", 0))
    if sequence <= last:
        raise RequirementFailed(
            requirement="sequence-number", expected=f"more than {last}", actual=sequence
        )
    return state.put(last_sequence_number=sequence)


def _next_rows(state: State, snapshot: Json) -> State:
    """Advance the row lineage: ids start at or after the table's next one."""
    first, added = read_int(snapshot, "first-row-id"), read_int(snapshot, "added-rows")
    next_id = int(state.metadata.get("next-row-id", 0))
    if first < next_id:
        raise RequirementFailed(
            requirement="first-row-id", expected=f"{next_id} or more", actual=first
        )
    if added < 0:
        raise impossible("add-snapshot", "added-rows is negative")
    return state.put(next_row_id=first + added)


def set_snapshot_ref(state: State, update: Json) -> State:
    """Point a branch or tag at a snapshot; for main, also set the current snapshot and the log."""
    name, snapshot_id = read_str(update, "ref-name"), read_int(update, "snapshot-id")
    kind = read_str(update, "type")
    if kind not in {"branch", "tag"}:
        raise impossible(f"set-snapshot-ref {name!r}", f"type {kind!r} is neither branch nor tag")
    if name == MAIN and kind != "branch":
        raise impossible("set-snapshot-ref 'main'", "main must be a branch")
    # From the end: a commit points at the snapshot that it has just added.
    held = reversed(state.metadata.get("snapshots") or [])
    snapshot = next((one for one in held if one["snapshot-id"] == snapshot_id), None)
    if snapshot is None:
        raise impossible(f"set-snapshot-ref {name!r}", f"there is no snapshot {snapshot_id}")
    ref: Json = {"snapshot-id": snapshot_id, "type": kind}
    ref |= {key: read_int(update, key) for key in _RETENTION if update.get(key) is not None}
    refs = state.metadata.get("refs") or {}
    if refs.get(name) == ref:
        return state
    state = state.put(refs={**refs, name: ref})
    return _move_main(state, snapshot) if name == MAIN else state


_MINUTE_MS = 60_000


def _move_main(state: State, snapshot: Json) -> State:
    """Log the current snapshot: an added one at its own time, a rollback at the commit's."""
    snapshot_id = snapshot["snapshot-id"]
    at = snapshot["timestamp-ms"] if snapshot_id in state.added_ids else state.now_ms
    # A snapshot that this same commit added and then replaced was never visible as current.
    log = [
        known
        for known in state.items("snapshot-log")
        if known["snapshot-id"] not in state.added_ids
    ]
    last = log[-1]["timestamp-ms"] if log else at
    # Iceberg's Java library rejects a log whose times fall by more, as after a clock was ahead.
    entry = {"snapshot-id": snapshot_id, "timestamp-ms": last if last - at > _MINUTE_MS else at}
    return state.put(current_snapshot_id=snapshot_id, snapshot_log=[*log, entry])


def remove_snapshot_ref(state: State, update: Json) -> State:
    """Remove a ref; without main the table has no current snapshot."""
    return _without_refs(state, {read_str(update, "ref-name")})


def remove_snapshots(state: State, update: Json) -> State:
    """Remove snapshots, with the refs, statistics and log entries that need them."""
    removed = set(read_ints(update, "snapshot-ids"))
    kept = [item for item in state.items("snapshots") if item["snapshot-id"] not in removed]
    state = state.put(snapshots=kept)
    for name in ("statistics", "partition-statistics"):
        if name in state.metadata:
            state = _without_statistics(name, state, removed)
    refs = state.metadata.get("refs") or {}
    dangling = {name for name, ref in refs.items() if ref["snapshot-id"] in removed}
    log: list[Json] = []
    for entry in state.items("snapshot-log"):
        # History before a gap would claim that its last snapshot stayed current through the gap.
        log = [] if entry["snapshot-id"] in removed else [*log, entry]
    return _without_refs(state.put(snapshot_log=log), dangling)


def _without_refs(state: State, names: set[str]) -> State:
    refs = state.metadata.get("refs") or {}
    state = state.put(refs={name: ref for name, ref in refs.items() if name not in names})
    return state.drop("current-snapshot-id") if MAIN in names else state


def set_statistics(name: str, state: State, update: Json) -> State:
    """Set the one file of a snapshot in the list of that name."""
    file = read_object(update, name)
    snapshot_id = read_int(file, "snapshot-id")
    read_str(file, "statistics-path")
    others = _without_statistics(name, state, {snapshot_id})
    return others.put(**{name: [*others.items(name), file]})


def remove_statistics(name: str, state: State, update: Json) -> State:
    """Remove the file of a snapshot from the list of that name, if it is there."""
    return _without_statistics(name, state, {read_int(update, "snapshot-id")})


def _without_statistics(name: str, state: State, snapshots: set[int]) -> State:
    kept = [item for item in state.items(name) if item["snapshot-id"] not in snapshots]
    return state.put(**{name: kept})


def add_encryption_key(state: State, update: Json) -> State:
    """Add an encryption key; one that exists stays as it is."""
    if state.format_version < 3:
        raise impossible("add-encryption-key", "encryption keys need format version 3")
    key = read_object(update, "encryption-key")
    key_id = read_str(key, "key-id")
    read_str(key, "encrypted-key-metadata")
    keys = state.items("encryption-keys")
    if any(known["key-id"] == key_id for known in keys):
        return state
    return state.put(encryption_keys=[*keys, key])


def remove_encryption_key(state: State, update: Json) -> State:
    """Remove an encryption key, if it exists."""
    removed = read_str(update, "key-id")
    kept = [key for key in state.items("encryption-keys") if key["key-id"] != removed]
    return state.put(encryption_keys=kept)


# --- requirements ---------------------------------------------------------------------------
#
# Each returns the expected and the actual value; the metadata is empty where there is no table.

Requirement = Callable[[Metadata, Json], tuple[object, object]]


def _create(metadata: Metadata, _requirement: Json) -> tuple[object, object]:
    return "no table", metadata.get("table-uuid", "no table")


def _table_uuid(metadata: Metadata, requirement: Json) -> tuple[object, object]:
    expected, actual = read_str(requirement, "uuid"), metadata.get("table-uuid")
    is_same = actual is not None and str(actual).lower() == expected.lower()
    return expected, expected if is_same else actual


def _ref_snapshot_id(metadata: Metadata, requirement: Json) -> tuple[object, object]:
    """Return the snapshots of a ref; an expected null means that there is no such ref."""
    ref = (metadata.get("refs") or {}).get(read_str(requirement, "ref"))
    is_none = requirement.get("snapshot-id") is None
    expected = None if is_none else read_int(requirement, "snapshot-id")
    return expected, ref["snapshot-id"] if ref else None


# Requirements on one number. Its key in the request is the kind without `assert-`; these are its
# fields in the metadata.
_NUMBERS = {
    "assert-last-assigned-field-id": "last-column-id",
    "assert-current-schema-id": "current-schema-id",
    "assert-last-assigned-partition-id": "last-partition-id",
    "assert-default-spec-id": "default-spec-id",
    "assert-default-sort-order-id": "default-sort-order-id",
}


def _number(metadata: Metadata, requirement: Json) -> tuple[object, object]:
    kind: str = requirement["type"]
    return read_int(requirement, kind.removeprefix("assert-")), metadata.get(_NUMBERS[kind])


REQUIREMENTS: dict[str, Requirement] = {
    "assert-create": _create,
    "assert-table-uuid": _table_uuid,
    "assert-ref-snapshot-id": _ref_snapshot_id,
    **dict.fromkeys(_NUMBERS, _number),
}


def find_unmet(metadata: Metadata | None, requirements: Iterable[Json]) -> RequirementFailed | None:
    """Return the error of the first requirement that does not hold; raise on an unknown kind.

    Every kind is looked up before any is evaluated, so that a malformed request is malformed
    whatever state the table is in.
    """
    for compare, requirement in [(_requirement(item), item) for item in requirements]:
        expected, actual = compare(metadata or {}, requirement)
        if expected != actual:
            ref = f" {requirement['ref']}" if "ref" in requirement else ""
            name = f"{requirement['type']}{ref}"
            return RequirementFailed(requirement=name, expected=expected, actual=actual)
    return None


def _requirement(requirement: Json) -> Requirement:
    kind = read_str(requirement, "type")
    if kind not in REQUIREMENTS:
        raise MalformedRequest(what=f"requirement {kind!r}", reason="this kind is not known")
    return REQUIREMENTS[kind]


UPDATES: dict[str, Callable[[State, Json], State]] = {
    "assign-uuid": assign_uuid,
    "upgrade-format-version": upgrade_format_version,
    "set-location": set_location,
    "set-properties": set_properties,
    "remove-properties": remove_properties,
    "add-schema": add_schema,
    "set-current-schema": set_current_schema,
    "remove-schemas": remove_schemas,
    "add-spec": add_spec,
    "set-default-spec": set_default_spec,
    "remove-partition-specs": remove_partition_specs,
    "add-sort-order": add_sort_order,
    "set-default-sort-order": set_default_sort_order,
    "add-snapshot": add_snapshot,
    "set-snapshot-ref": set_snapshot_ref,
    "remove-snapshot-ref": remove_snapshot_ref,
    "remove-snapshots": remove_snapshots,
    "set-statistics": partial(set_statistics, "statistics"),
    "remove-statistics": partial(remove_statistics, "statistics"),
    "set-partition-statistics": partial(set_statistics, "partition-statistics"),
    "remove-partition-statistics": partial(remove_statistics, "partition-statistics"),
    "add-encryption-key": add_encryption_key,
    "remove-encryption-key": remove_encryption_key,
}

_PREVIOUS_VERSIONS_MAX = "write.metadata.previous-versions-max"
_PREVIOUS_VERSIONS_DEFAULT = 100
_REQUIRED = ("table-uuid", "location", "current-schema-id", "default-spec-id")


def check_update_kinds(updates: Sequence[Json]) -> None:
    """Raise on a kind of update that the protocol does not have, before any is applied."""
    for update in updates:
        action = read_str(update, "action")
        if action not in UPDATES:
            raise MalformedRequest(what=f"update {action!r}", reason="this kind is not known")


def apply_updates(
    base: Metadata, updates: Sequence[Json], *, now_ms: int, base_location: str | None
) -> Metadata:
    """Return the table's next metadata; `base_location` is the file that held the old one.

    If no update changes anything, the same `base` object is returned.
    """
    check_update_kinds(updates)
    held = int(base.get("format-version", 2))
    if held == 1 and updates[:1] and updates[0]["action"] != "upgrade-format-version":
        raise impossible(
            "a change to a table of format version 1",
            "set its property 'format-version' to '2' first, in a statement of its own",
        )
    state = _apply(base, updates, now_ms)
    return base if state.metadata == base else _finish(base, state, base_location)


def empty_metadata(now_ms: int) -> Metadata:
    """Return what the first metadata of every table starts from."""
    return {
        "format-version": 2,
        "last-sequence-number": 0,
        "last-updated-ms": now_ms,
        "last-column-id": 0,
        "schemas": [],
        "partition-specs": [],
        "last-partition-id": FIRST_PARTITION_FIELD_ID - 1,
        "sort-orders": [],
        "properties": {},
        "refs": {},
        "snapshots": [],
        "snapshot-log": [],
        "metadata-log": [],
    }


def apply_create(updates: Sequence[Json], *, now_ms: int) -> Metadata:
    """Return the first metadata of a table whose creation was staged, from updates alone."""
    check_update_kinds(updates)
    empty = empty_metadata(now_ms)
    state = _apply(empty, updates, now_ms)
    for part in _REQUIRED:
        if part not in state.metadata:
            raise MalformedRequest(what="the staged creation", reason=f"nothing sets its {part}")
    return _finish(empty, state, None)


def _apply(base: Metadata, updates: Sequence[Json], now_ms: int) -> State:
    state = State(metadata=base, now_ms=now_ms)
    for update in updates:
        state = UPDATES[update["action"]](state, update)
    return state


def _finish(base: Metadata, state: State, base_location: str | None) -> Metadata:
    _check_layout(state.metadata)
    log = list(state.metadata.get("metadata-log") or [])
    if base_location is not None:
        log.append({"metadata-file": base_location, "timestamp-ms": base.get("last-updated-ms", 0)})
    text = str((state.metadata.get("properties") or {}).get(_PREVIOUS_VERSIONS_MAX, ""))
    keep = max(1, int(text)) if text.isdecimal() else _PREVIOUS_VERSIONS_DEFAULT
    # Time never runs backwards within one table, even where two servers' clocks disagree.
    updated = max(state.now_ms, int(base.get("last-updated-ms", 0)))
    return {**state.metadata, "metadata-log": log[-keep:], "last-updated-ms": updated}
