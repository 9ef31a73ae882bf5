"""Applying a commit's updates to a table's metadata: old metadata in, new metadata out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID, uuid4

from headgate.errors import MalformedRequest, RequirementFailed
from headgate.tables import schemas
from headgate.tables.schemas import current_schema, field_ids
from headgate.tables.shape import (
    LAST_ADDED,
    MAIN,
    Json,
    Metadata,
    State,
    as_object,
    read_int,
    read_ints,
    read_object,
    read_objects,
    read_properties,
    read_str,
    read_strings,
    refuse,
)

# Updates of how a table's rows are laid out: partition specs and sort orders.

# The specification numbers partition fields from 1000.
FIRST_PARTITION_FIELD_ID = 1000
UNSORTED_ORDER_ID = 0


def add_spec(state: State, update: Json) -> State:
    """Adds a partition spec under the next id, or finds the equal one that is there."""
    fields = read_objects(read_object(update, "spec"), "fields")
    specs = state.items("partition-specs")
    for known in specs:
        if _spec_meaning(known["fields"]) == _spec_meaning(fields):
            return replace(state, last_spec_id=known["spec-id"])
    _check_sources(state, fields, "add-spec")
    _check_partition_names(fields)
    numbered, last_id = _number(state, fields)
    spec_id = max((known["spec-id"] for known in specs), default=-1) + 1
    added = state.put(
        partition_specs=[*specs, {"spec-id": spec_id, "fields": numbered}],
        last_partition_id=last_id,
    )
    return replace(added, last_spec_id=spec_id)


def set_default_spec(state: State, update: Json) -> State:
    """Makes a partition spec the one that writers use."""
    spec_id = read_int(update, "spec-id")
    if spec_id == LAST_ADDED:
        if state.last_spec_id is None:
            raise refuse("set-default-spec -1", "this commit has added no partition spec")
        spec_id = state.last_spec_id
    if spec_id not in {spec["spec-id"] for spec in state.items("partition-specs")}:
        raise refuse(f"set-default-spec {spec_id}", "there is no partition spec with that id")
    return state.put(default_spec_id=spec_id)


def remove_partition_specs(state: State, update: Json) -> State:
    """Removes partition specs that are not the default one."""
    doomed = set(read_ints(update, "spec-ids"))
    if state.metadata.get("default-spec-id") in doomed:
        raise refuse("remove-partition-specs", "one of them is the default spec")
    kept = [spec for spec in state.items("partition-specs") if spec["spec-id"] not in doomed]
    return state.put(partition_specs=kept)


def add_sort_order(state: State, update: Json) -> State:
    """Adds a sort order under the next id, or finds the equal one; unsorted is always id 0."""
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
    order_id = UNSORTED_ORDER_ID
    if fields:
        order_id = max([*(known["order-id"] for known in orders), UNSORTED_ORDER_ID]) + 1
    added = state.put(sort_orders=[*orders, {**order, "order-id": order_id}])
    return replace(added, last_order_id=order_id)


def set_default_sort_order(state: State, update: Json) -> State:
    """Makes a sort order the one that writers use."""
    order_id = read_int(update, "sort-order-id")
    if order_id == LAST_ADDED:
        if state.last_order_id is None:
            raise refuse("set-default-sort-order -1", "this commit has added no sort order")
        order_id = state.last_order_id
    if order_id not in {order["order-id"] for order in state.items("sort-orders")}:
        raise refuse(f"set-default-sort-order {order_id}", "there is no sort order with that id")
    return state.put(default_sort_order_id=order_id)


def check_layout_fits(metadata: Json) -> None:
    """The default spec and order refer only to columns that the current schema has."""
    known = set(field_ids(current_schema(metadata) or {"fields": []}))
    for spec in metadata.get("partition-specs") or []:
        if spec["spec-id"] == metadata.get("default-spec-id"):
            # A dropped source column leaves a void transform behind in version 1.
            fields = [field for field in spec["fields"] if field.get("transform") != "void"]
            _check_known(fields, known, "the default partition spec")
    for order in metadata.get("sort-orders") or []:
        if order["order-id"] == metadata.get("default-sort-order-id"):
            _check_known(order["fields"], known, "the default sort order")


def _check_sources(state: State, fields: list[Json], change: str) -> None:
    schema = current_schema(state.metadata)
    if schema is None:
        raise refuse(change, "the table has no current schema yet")
    for field in fields:
        read_str(field, "transform")
    _check_known(fields, set(field_ids(schema)), change)


def _check_known(fields: list[Json], known: set[int], change: str) -> None:
    for field in fields:
        for source in _sources(field):
            if source not in known:
                raise refuse(change, f"its source column {source} is not in the current schema")


def _sources(field: Json) -> list[int]:
    """A transform of several arguments has `source-ids` in place of `source-id`."""
    if "source-ids" in field:
        return read_ints(field, "source-ids")
    return [read_int(field, "source-id")]


def _check_partition_names(fields: list[Json]) -> None:
    names = [read_str(field, "name") for field in fields]
    if len(set(names)) != len(names):
        raise refuse("add-spec", "two partition fields have the same name")


def _spec_meaning(fields: list[Json]) -> list[Any]:
    """What makes two specs equal: the fields in order, without their assigned ids."""
    return [(_sources(field), field.get("name"), field.get("transform")) for field in fields]


def _number(state: State, fields: list[Json]) -> tuple[list[Json], int]:
    """Fields with their ids: as sent, else the id of an equal earlier field, else the next one."""
    last_id = int(state.metadata.get("last-partition-id", FIRST_PARTITION_FIELD_ID - 1))
    earlier = {
        (tuple(_sources(field)), field["transform"]): field["field-id"]
        for spec in state.items("partition-specs")
        for field in spec["fields"]
        if "field-id" in field
    }
    numbered = []
    for field in fields:
        field_id = field.get("field-id")
        if field_id is None:
            field_id = earlier.get((tuple(_sources(field)), field["transform"]))
        if field_id is None:
            field_id = last_id + 1
        field_id = read_int({"field-id": field_id}, "field-id")
        last_id = max(last_id, field_id)
        numbered.append({**field, "field-id": field_id})
    if len({field["field-id"] for field in numbered}) != len(numbered):
        raise refuse("add-spec", "two partition fields have the same id")
    return numbered, last_id


# Updates of a table's identity, format version, location and properties.

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


# Updates of what lies beside a table's data: statistics files and encryption keys.


def set_statistics(state: State, update: Json) -> State:
    """Sets the one statistics file of a snapshot."""
    return _replace(state, "statistics", read_object(update, "statistics"))


def remove_statistics(state: State, update: Json) -> State:
    """Removes a snapshot's statistics file, if it has one."""
    return _without(state, "statistics", read_int(update, "snapshot-id"))


def set_partition_statistics(state: State, update: Json) -> State:
    """Sets the one partition statistics file of a snapshot."""
    return _replace(state, "partition-statistics", read_object(update, "partition-statistics"))


def remove_partition_statistics(state: State, update: Json) -> State:
    """Removes a snapshot's partition statistics file, if it has one."""
    return _without(state, "partition-statistics", read_int(update, "snapshot-id"))


def add_encryption_key(state: State, update: Json) -> State:
    """Adds an encryption key; one that is there stays as it is."""
    if state.format_version < 3:
        raise refuse("add-encryption-key", "encryption keys need format version 3")
    key = read_object(update, "encryption-key")
    key_id = read_str(key, "key-id")
    read_str(key, "encrypted-key-metadata")
    keys = state.items("encryption-keys")
    if any(known["key-id"] == key_id for known in keys):
        return state
    return state.put(encryption_keys=[*keys, key])


def remove_encryption_key(state: State, update: Json) -> State:
    """Removes an encryption key, if it is there."""
    doomed = read_str(update, "key-id")
    kept = [key for key in state.items("encryption-keys") if key["key-id"] != doomed]
    return state.put(encryption_keys=kept)


def _replace(state: State, name: str, file: Json) -> State:
    snapshot_id = read_int(file, "snapshot-id")
    read_str(file, "statistics-path")
    others = [item for item in state.items(name) if item["snapshot-id"] != snapshot_id]
    return state.put(**{name.replace("-", "_"): [*others, file]})


def _without(state: State, name: str, snapshot_id: int) -> State:
    kept = [item for item in state.items(name) if item["snapshot-id"] != snapshot_id]
    return state.put(**{name.replace("-", "_"): kept})


# Updates of a table's snapshots and of the refs that name them.

_OPERATIONS = frozenset({"append", "replace", "overwrite", "delete"})
_RETENTION = ("min-snapshots-to-keep", "max-snapshot-age-ms", "max-ref-age-ms")


def add_snapshot(state: State, update: Json) -> State:
    """Adds a snapshot exactly as sent; one prepared on an older table is a conflict."""
    snapshot = read_object(update, "snapshot")
    snapshot_id = read_int(snapshot, "snapshot-id")
    _check_ready(state, snapshot, snapshot_id)
    if any(known["snapshot-id"] == snapshot_id for known in state.items("snapshots")):
        # A conflict rather than a defect: a client may be sending a commit that has landed.
        raise RequirementFailed(requirement="snapshot-id", expected="a new id", actual=snapshot_id)
    state = _next_sequence(state, snapshot)
    if state.format_version >= 3:
        state = _next_rows(state, snapshot)
    added = state.put(snapshots=[*state.items("snapshots"), snapshot])
    return replace(added, added_snapshots=state.added_snapshots | {snapshot_id})


def _check_ready(state: State, snapshot: Json, snapshot_id: int) -> None:
    for part in ("schemas", "partition-specs", "sort-orders"):
        if not state.metadata.get(part):
            raise refuse(f"add-snapshot {snapshot_id}", f"the table has no {part} yet")
    read_int(snapshot, "timestamp-ms")
    read_str(snapshot, "manifest-list")
    operation = read_str(read_object(snapshot, "summary"), "operation")
    if operation not in _OPERATIONS:
        raise refuse(f"add-snapshot {snapshot_id}", f"operation {operation!r} is not known")


def _next_sequence(state: State, snapshot: Json) -> State:
    sequence = read_int(snapshot, "sequence-number")
    last = int(state.metadata.get("last-sequence-number", 0))
    if sequence <= last:
        raise RequirementFailed(
            requirement="sequence-number", expected=f"more than {last}", actual=sequence
        )
    return state.put(last_sequence_number=sequence)


def _next_rows(state: State, snapshot: Json) -> State:
    """Row lineage: ids start at or after the table's next one, and move it on."""
    first, added = read_int(snapshot, "first-row-id"), read_int(snapshot, "added-rows")
    next_id = int(state.metadata.get("next-row-id", 0))
    if first < next_id:
        raise RequirementFailed(
            requirement="first-row-id", expected=f"{next_id} or more", actual=first
        )
    if added < 0:
        raise refuse("add-snapshot", "added-rows is negative")
    return state.put(next_row_id=first + added)


def set_snapshot_ref(state: State, update: Json) -> State:
    """Points a branch or tag at a snapshot; for main, also the current snapshot and the log."""
    name, snapshot_id = read_str(update, "ref-name"), read_int(update, "snapshot-id")
    kind = read_str(update, "type")
    if kind not in {"branch", "tag"}:
        raise refuse(f"set-snapshot-ref {name!r}", f"type {kind!r} is neither branch nor tag")
    if name == MAIN and kind != "branch":
        raise refuse("set-snapshot-ref 'main'", "main must be a branch")
    snapshot = _find(state, snapshot_id)
    if snapshot is None:
        raise refuse(f"set-snapshot-ref {name!r}", f"there is no snapshot {snapshot_id}")
    ref: Json = {"snapshot-id": snapshot_id, "type": kind}
    ref |= {key: read_int(update, key) for key in _RETENTION if update.get(key) is not None}
    refs = state.metadata.get("refs") or {}
    if refs.get(name) == ref:
        return state
    state = state.put(refs={**refs, name: ref})
    return _move_main(state, snapshot) if name == MAIN else state


def _move_main(state: State, snapshot: Json) -> State:
    """An added snapshot enters the log at its own time, a rollback at the time of the commit."""
    snapshot_id = snapshot["snapshot-id"]
    at = snapshot["timestamp-ms"] if snapshot_id in state.added_snapshots else state.now_ms
    entry = {"snapshot-id": snapshot_id, "timestamp-ms": at}
    # A snapshot that this same commit added and then replaced was never visible as current.
    log = [
        known
        for known in state.items("snapshot-log")
        if known["snapshot-id"] not in state.added_snapshots
    ]
    return state.put(current_snapshot_id=snapshot_id, snapshot_log=[*log, entry])


def remove_snapshot_ref(state: State, update: Json) -> State:
    """Removes a ref; without main the table has no current snapshot."""
    return _without_refs(state, {read_str(update, "ref-name")})


def remove_snapshots(state: State, update: Json) -> State:
    """Removes snapshots, with the refs, statistics and log entries that need them."""
    doomed = set(read_ints(update, "snapshot-ids"))
    kept = [item for item in state.items("snapshots") if item["snapshot-id"] not in doomed]
    state = state.put(snapshots=kept)
    for name in ("statistics", "partition-statistics"):
        if name in state.metadata:
            left = [item for item in state.items(name) if item["snapshot-id"] not in doomed]
            state = state.put(**{name.replace("-", "_"): left})
    refs = state.metadata.get("refs") or {}
    dangling = {name for name, ref in refs.items() if ref["snapshot-id"] in doomed}
    log: list[Json] = []
    for entry in state.items("snapshot-log"):
        # History before a gap would claim that its last snapshot stayed current through the gap.
        log = [] if entry["snapshot-id"] in doomed else [*log, entry]
    return _without_refs(state.put(snapshot_log=log), dangling)


def _without_refs(state: State, names: set[str]) -> State:
    refs = state.metadata.get("refs") or {}
    state = state.put(refs={name: ref for name, ref in refs.items() if name not in names})
    return state.drop("current-snapshot-id") if MAIN in names else state


def _find(state: State, snapshot_id: int) -> Json | None:
    for snapshot in reversed(state.metadata.get("snapshots") or []):
        if snapshot["snapshot-id"] == snapshot_id:
            return dict(snapshot)
    return None


# The first metadata of a table, from a create request.

_DEFAULT_FORMAT_VERSION = 2
_IDENTIFIERS = "identifier-field-ids"
# As every catalog of Iceberg's own writes them down: where a table says nothing, its clients
# compress by gzip, which costs a Spark write half as much again.
FIRST_PROPERTIES = {"write.parquet.compression-codec": "zstd"}


@dataclass(kw_only=True)
class _Numbering:
    """Hands out field ids and remembers which client's id became which."""

    last: int = 0

    def __post_init__(self) -> None:
        self.fresh: dict[int, int] = {}

    def assign(self, sent: int) -> int:
        self.last += 1
        self.fresh[sent] = self.last
        return self.last


def create_metadata(request: Mapping[str, Any], *, location: str, now_ms: int) -> Metadata:
    """Metadata of a table without rows, with field ids assigned by the server from 1."""
    properties = read_properties(request, "properties")
    version = _format_version(properties)
    numbering = _Numbering()
    schema = _renumber(read_object(request, "schema"), numbering)
    schemas.check_schema(schema, version)
    state = State(metadata=_empty(schema, numbering.last, version, location, now_ms), now_ms=now_ms)
    spec = request.get("partition-spec") or {"fields": []}
    state = add_spec(state, {"spec": _translate(spec, numbering.fresh, drop="field-id")})
    state = set_default_spec(state, {"spec-id": -1})
    order = request.get("write-order") or {"order-id": 0, "fields": []}
    state = add_sort_order(state, {"sort-order": _translate(order, numbering.fresh)})
    state = set_default_sort_order(state, {"sort-order-id": -1})
    kept = {key: value for key, value in properties.items() if key != "format-version"}
    metadata = state.put(properties={**FIRST_PROPERTIES, **kept}).metadata
    return {**metadata, "next-row-id": 0} if version >= 3 else metadata


def _empty(schema: Json, last_id: int, version: int, location: str, now_ms: int) -> Metadata:
    return {
        "format-version": version,
        "table-uuid": str(uuid4()),
        "location": location,
        "last-sequence-number": 0,
        "last-updated-ms": now_ms,
        "last-column-id": last_id,
        "current-schema-id": 0,
        "schemas": [{**schema, "schema-id": 0}],
        "partition-specs": [],
        "last-partition-id": FIRST_PARTITION_FIELD_ID - 1,
        "sort-orders": [],
        "refs": {},
        "snapshots": [],
        "statistics": [],
        "partition-statistics": [],
        "snapshot-log": [],
        "metadata-log": [],
    }


def _format_version(properties: Mapping[str, str]) -> int:
    if "format-version" not in properties:
        return _DEFAULT_FORMAT_VERSION
    version = parse_format_version(properties["format-version"])
    if version < _DEFAULT_FORMAT_VERSION:
        raise refuse("format version 1", "new tables are written at version 2 or 3")
    return version


def _renumber(schema: Json, numbering: _Numbering) -> Json:
    """All columns of one level take their ids before any of their children do."""
    sent = list(schemas.field_ids(schema))
    if len(set(sent)) != len(sent):
        raise refuse("create table", "two fields of the schema have the same id")
    fresh = _renumber_struct(schema, numbering)
    sent_keys = read_ints(schema, _IDENTIFIERS) if schema.get(_IDENTIFIERS) else []
    keys = [numbering.fresh.get(key) for key in sent_keys]
    if None in keys:
        raise refuse("create table", "an identifier field is not in the schema")
    return {**fresh, _IDENTIFIERS: keys} if keys else fresh


def _renumber_struct(struct: Json, numbering: _Numbering) -> Json:
    fields = read_objects(struct, "fields")
    named = [{**field, "id": numbering.assign(read_int(field, "id"))} for field in fields]
    return {
        **struct,
        "fields": [{**field, "type": _renumber_type(field["type"], numbering)} for field in named],
    }


def _renumber_type(kind: Any, numbering: _Numbering) -> Any:
    if isinstance(kind, str):
        return kind
    nested = as_object(kind, what="a column type")
    match read_str(nested, "type"):
        case "struct":
            return _renumber_struct(nested, numbering)
        case "list":
            element = numbering.assign(read_int(nested, "element-id"))
            inner = _renumber_type(nested["element"], numbering)
            return {**nested, "element-id": element, "element": inner}
        case "map":
            key = numbering.assign(read_int(nested, "key-id"))
            value = numbering.assign(read_int(nested, "value-id"))
            return {
                **nested,
                "key-id": key,
                "value-id": value,
                "key": _renumber_type(nested["key"], numbering),
                "value": _renumber_type(nested["value"], numbering),
            }
        case other:
            raise MalformedRequest(what="a column type", reason=f"{other!r} is not a nested type")


def _translate(layout: Any, fresh: Mapping[int, int], *, drop: str = "") -> Json:
    """A spec or order whose columns are named by the client's ids, in terms of the new ones."""
    source = as_object(layout, what="a partition spec or sort order")
    fields = []
    for field in read_objects(source, "fields"):
        moved = {key: value for key, value in field.items() if key != drop}
        if "source-ids" in field:
            moved["source-ids"] = [_fresh(fresh, at) for at in read_ints(field, "source-ids")]
        else:
            moved["source-id"] = _fresh(fresh, read_int(field, "source-id"))
        fields.append(moved)
    return {**source, "fields": fields}


def _fresh(fresh: Mapping[int, int], sent: int) -> int:
    if sent not in fresh:
        raise refuse("create table", f"there is no column {sent} to partition or sort by")
    return fresh[sent]


Update = Callable[[State, Json], State]

UPDATES: dict[str, Update] = {
    "assign-uuid": assign_uuid,
    "upgrade-format-version": upgrade_format_version,
    "set-location": set_location,
    "set-properties": set_properties,
    "remove-properties": remove_properties,
    "add-schema": schemas.add_schema,
    "set-current-schema": schemas.set_current_schema,
    "remove-schemas": schemas.remove_schemas,
    "add-spec": add_spec,
    "set-default-spec": set_default_spec,
    "remove-partition-specs": remove_partition_specs,
    "add-sort-order": add_sort_order,
    "set-default-sort-order": set_default_sort_order,
    "add-snapshot": add_snapshot,
    "set-snapshot-ref": set_snapshot_ref,
    "remove-snapshot-ref": remove_snapshot_ref,
    "remove-snapshots": remove_snapshots,
    "set-statistics": set_statistics,
    "remove-statistics": remove_statistics,
    "set-partition-statistics": set_partition_statistics,
    "remove-partition-statistics": remove_partition_statistics,
    "add-encryption-key": add_encryption_key,
    "remove-encryption-key": remove_encryption_key,
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
        "last-partition-id": FIRST_PARTITION_FIELD_ID - 1,
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
    check_layout_fits(state.metadata)
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


# What a commit asserts about a table, one small function per kind.
#
# Each takes the table's metadata, or None where there is no table, and returns what does not hold.


@dataclass(frozen=True, kw_only=True)
class Unmet:
    """One requirement that does not hold."""

    requirement: str
    expected: Any
    actual: Any

    def to_error(self) -> RequirementFailed:
        return RequirementFailed(
            requirement=self.requirement, expected=self.expected, actual=self.actual
        )


def assert_create(metadata: Metadata | None, _requirement: Json) -> Unmet | None:
    """The table must not exist."""
    if metadata is None:
        return None
    return Unmet(requirement="assert-create", expected="no table", actual=metadata["table-uuid"])


def assert_table_uuid(metadata: Metadata | None, requirement: Json) -> Unmet | None:
    """The table is the one that the client knows, whatever letters its UUID is written with."""
    expected = read_str(requirement, "uuid")
    actual = (metadata or {}).get("table-uuid")
    if actual is not None and str(actual).lower() == expected.lower():
        return None
    return Unmet(requirement="assert-table-uuid", expected=expected, actual=actual)


def assert_ref_snapshot_id(metadata: Metadata | None, requirement: Json) -> Unmet | None:
    """The named ref is at that snapshot; null: there is no such ref."""
    name = read_str(requirement, "ref")
    expected = None
    if requirement.get("snapshot-id") is not None:
        expected = read_int(requirement, "snapshot-id")
    ref = ((metadata or {}).get("refs") or {}).get(name)
    actual = ref["snapshot-id"] if ref else None
    if actual == expected:
        return None
    return Unmet(requirement=f"assert-ref-snapshot-id {name!r}", expected=expected, actual=actual)


def assert_last_assigned_field_id(metadata: Metadata | None, requirement: Json) -> Unmet | None:
    """No column was added since."""
    return _same(metadata, requirement, "last-assigned-field-id", "last-column-id")


def assert_current_schema_id(metadata: Metadata | None, requirement: Json) -> Unmet | None:
    """The current schema is that one."""
    return _same(metadata, requirement, "current-schema-id", "current-schema-id")


def assert_last_assigned_partition_id(metadata: Metadata | None, requirement: Json) -> Unmet | None:
    """No partition field was added since."""
    return _same(metadata, requirement, "last-assigned-partition-id", "last-partition-id")


def assert_default_spec_id(metadata: Metadata | None, requirement: Json) -> Unmet | None:
    """The default partition spec is that one."""
    return _same(metadata, requirement, "default-spec-id", "default-spec-id")


def assert_default_sort_order_id(metadata: Metadata | None, requirement: Json) -> Unmet | None:
    """The default sort order is that one."""
    return _same(metadata, requirement, "default-sort-order-id", "default-sort-order-id")


def _same(metadata: Metadata | None, requirement: Json, asked: str, held: str) -> Unmet | None:
    expected = read_int(requirement, asked)
    actual = (metadata or {}).get(held)
    if actual == expected:
        return None
    return Unmet(requirement=str(requirement["type"]), expected=expected, actual=actual)


Requirement = Callable[[Metadata | None, Json], Unmet | None]

REQUIREMENTS: dict[str, Requirement] = {
    "assert-create": assert_create,
    "assert-table-uuid": assert_table_uuid,
    "assert-ref-snapshot-id": assert_ref_snapshot_id,
    "assert-last-assigned-field-id": assert_last_assigned_field_id,
    "assert-current-schema-id": assert_current_schema_id,
    "assert-last-assigned-partition-id": assert_last_assigned_partition_id,
    "assert-default-spec-id": assert_default_spec_id,
    "assert-default-sort-order-id": assert_default_sort_order_id,
}


def find_unmet(metadata: Metadata | None, requirements: Iterable[Json]) -> Unmet | None:
    """The first requirement that does not hold; an unknown kind is refused, as the protocol asks.

    Every kind is looked up before any is evaluated, so that a malformed request is malformed
    whatever state the table is in.
    """
    pairs = [(_kind(requirement), requirement) for requirement in requirements]
    for check, requirement in pairs:
        if unmet := check(metadata, requirement):
            return unmet
    return None


def _kind(requirement: Json) -> Requirement:
    kind = read_str(requirement, "type")
    if kind not in REQUIREMENTS:
        raise MalformedRequest(what=f"requirement {kind!r}", reason="this kind is not known")
    return REQUIREMENTS[kind]
