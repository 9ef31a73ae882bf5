"""The first metadata of a table: from a create request, or from another catalog's table."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import uuid4

from headgate.errors import Invalid, MalformedRequest, NotFound, StorageUnavailable
from headgate.model.object_store import ObjectStore
from headgate.tables import schemas, updates
from headgate.tables.metadata import (
    MAIN,
    Json,
    Metadata,
    as_object,
    current_schema,
    field_ids,
    impossible,
    nested_parts,
    read_int,
    read_ints,
    read_object,
    read_objects,
    read_properties,
    read_str,
)
from headgate.tables.referenced_files import without_location_settings
from headgate.tables.updates import State
from headgate.tables.versions import parse_metadata

_DEFAULT_FORMAT_VERSION = 2
# As Iceberg's own catalogs write them into each table: where the property is missing, clients
# compress by gzip, which makes a Spark write take half as long again.
DEFAULT_PROPERTIES = {"write.parquet.compression-codec": "zstd"}


def create_metadata(request: Mapping[str, Any], *, location: str, now_ms: int) -> Metadata:
    """Return metadata of a table without rows, with field ids assigned by the server from 1."""
    properties = read_properties(request, "properties")
    version = _DEFAULT_FORMAT_VERSION
    if "format-version" in properties:
        # Headgate writes no tables of version 1; every client that writes it writes version 2 too.
        version = max(version, updates.parse_format_version(properties["format-version"]))
    numbering = _Numbering()
    schema = _renumber(read_object(request, "schema"), numbering)
    schemas.check_schema(schema, version)
    empty = {
        **updates.empty_metadata(now_ms),
        "format-version": version,
        "table-uuid": str(uuid4()),
        "location": location,
        "last-column-id": numbering.last,
        "current-schema-id": 0,
        "schemas": [{**schema, "schema-id": 0}],
        "statistics": [],
        "partition-statistics": [],
    }
    spec = request.get("partition-spec") or {"fields": []}
    order = request.get("write-order") or {"order-id": 0, "fields": []}
    state = State(metadata=empty, now_ms=now_ms)
    state = updates.add_spec(state, {"spec": numbering.translate(spec, drop="field-id")})
    state = updates.add_sort_order(state, {"sort-order": numbering.translate(order)})
    kept = {key: value for key, value in properties.items() if key != "format-version"}
    metadata = state.put(
        default_spec_id=state.last_spec_id,
        default_sort_order_id=state.last_order_id,
        properties={**DEFAULT_PROPERTIES, **kept},
    ).metadata
    return {**metadata, "next-row-id": 0} if version >= 3 else metadata


class _Numbering:
    """Assigns field ids, and translates the ids that the client sent."""

    def __init__(self) -> None:
        self.last = 0
        self._assigned: dict[int, int] = {}

    def assign(self, sent: int) -> int:
        self.last += 1
        self._assigned[sent] = self.last
        return self.last

    def find(self, sent: int) -> int | None:
        return self._assigned.get(sent)

    def translate(self, layout: Any, *, drop: str = "") -> Json:
        """Return a partition spec or sort order with the assigned ids of its columns."""
        source = as_object(layout, what="a partition spec or sort order")
        fields = []
        for field in read_objects(source, "fields"):
            moved = {key: value for key, value in field.items() if key != drop}
            if "source-ids" in field:
                moved["source-ids"] = [self._load(id) for id in read_ints(field, "source-ids")]
            else:
                moved["source-id"] = self._load(read_int(field, "source-id"))
            fields.append(moved)
        return {**source, "fields": fields}

    def _load(self, sent: int) -> int:
        found = self.find(sent)
        if found is None:
            raise impossible("create table", f"there is no column {sent} to partition or sort by")
        return found


def _renumber(schema: Json, numbering: _Numbering) -> Json:
    """Assign the ids of all columns of one level before those of their children."""
    sent = list(field_ids(schema))
    if len(set(sent)) != len(sent):
        raise impossible("create table", "two fields of the schema have the same id")
    renumbered = _renumber_struct(schema, numbering)
    keys = [numbering.find(key) for key in schemas.identifier_ids(schema)]
    if None in keys:
        raise impossible("create table", "an identifier field is not in the schema")
    return {**renumbered, "identifier-field-ids": keys} if keys else renumbered


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
    if nested.get("type") == "struct":
        return _renumber_struct(nested, numbering)
    parts = nested_parts(nested)
    ids = {f"{part}-id": numbering.assign(read_int(nested, f"{part}-id")) for part in parts}
    inner = {part: _renumber_type(nested[part], numbering) for part in parts}
    return {**nested, **ids, **inner}


_METADATA_FILE = re.compile(r"[^/]*metadata\.json(?:\.gz)?\Z")
# A Hadoop catalog numbers its metadata files and has no other record of which is the newest.
_NUMBERED = re.compile(r"metadata/v(\d+)(?:\.gz)?\.metadata\.json(?:\.gz)?\Z")
_HINT = "metadata/version-hint.text"


def is_metadata_file(location: str) -> bool:
    """Return whether an address names a metadata file, rather than a table's directory."""
    return _METADATA_FILE.search(location) is not None


def newest_metadata(table: ObjectStore) -> str:
    """Return the key of the newest metadata file in a table's directory.

    The files of a Hadoop catalog have numbers, or a hint beside them. For other tables only
    their catalog has this information.
    """
    keys = sorted(found.key for found in table.list("metadata") if is_metadata_file(found.key))
    numbered = {int(match[1]): key for key in keys if (match := _NUMBERED.match(key))}
    if numbered:
        return numbered[max(numbered)]
    if table.find(_HINT) is not None:
        hint = table.get(_HINT).decode(errors="replace").strip()
        hinted = [key for key in keys if key.startswith(f"metadata/{hint}")]
        if hint and len(hinted) == 1:
            return hinted[0]
    if not keys:
        raise NotFound(
            f"there is no Iceberg table in {table.url}: it has no metadata/*.metadata.json.",
            location=table.url,
        )
    raise Invalid(
        f"the newest of the {len(keys)} metadata files in {table.url}/metadata is not known here: "
        "only the table's catalog records it. Give the current metadata location of that catalog, "
        f"for example {table.url}/{keys[-1]}.",
        location=table.url,
    )


def read_external_metadata(read: Callable[[str], bytes], location: str) -> Metadata:
    """Return the metadata at an address outside the store; raise if it cannot be registered."""
    try:
        metadata = parse_metadata(read(location), location)
    except StorageUnavailable as error:
        raise MalformedRequest(
            what=f"the table at {location!r}", reason=error.message.rstrip(".")
        ) from error
    version = metadata["format-version"]
    if isinstance(version, bool) or version not in range(1, updates.NEWEST_FORMAT_VERSION + 1):
        raise impossible(f"registering {location}", f"it has format version {version!r}")
    try:
        _check_members(metadata)
    except MalformedRequest as error:
        raise impossible(f"registering {location}", error.message.rstrip(".")) from error
    if any("manifest-list" not in found for found in metadata.get("snapshots") or []):
        raise impossible(f"registering {location}", "it has a snapshot without a manifest list")
    return metadata


# Members of metadata, and of the objects in its lists, by the type that they must have if present.
_INTEGERS = (
    "last-updated-ms",
    "last-column-id",
    "current-schema-id",
    "default-spec-id",
    "default-sort-order-id",
    "last-partition-id",
    "last-sequence-number",
    "current-snapshot-id",
    "next-row-id",
)
_LISTS: Mapping[str, Mapping[str, Callable[[Json, str], object]]] = {
    "schemas": {"schema-id": read_int},
    "partition-specs": {"spec-id": read_int, "fields": read_objects},
    "sort-orders": {"order-id": read_int, "fields": read_objects},
    "snapshots": {"snapshot-id": read_int},
    "snapshot-log": {"snapshot-id": read_int, "timestamp-ms": read_int},
    "metadata-log": {"metadata-file": read_str, "timestamp-ms": read_int},
    "statistics": {"snapshot-id": read_int, "statistics-path": read_str},
    "partition-statistics": {"snapshot-id": read_int, "statistics-path": read_str},
}


def _check_members(metadata: Metadata) -> None:
    """Raise `MalformedRequest` if a member that is read here or by clients has the wrong type."""
    read_str(metadata, "table-uuid")
    read_str(metadata, "location")
    read_properties(metadata, "properties")
    if not metadata.get("schemas"):
        # Version 1 may have one of each, in other members.
        schemas.check_schema(read_object(metadata, "schema"), metadata["format-version"])
    if metadata.get("partition-spec") is not None:
        _check_fields(read_objects(metadata, "partition-spec"), named=True)
    for key in _INTEGERS:
        if metadata.get(key) is not None:
            read_int(metadata, key)
    for key, members in _LISTS.items():
        for item in read_objects(metadata, key) if metadata.get(key) is not None else []:
            for name, read in members.items():
                read(item, name)
            _check_item(key, item, metadata)
    for ref in (read_object(metadata, "refs") if metadata.get("refs") else {}).values():
        read_int(as_object(ref, what="a ref"), "snapshot-id")
        read_str(ref, "type")


def _check_item(key: str, item: Json, metadata: Metadata) -> None:
    if key == "schemas":
        schemas.check_schema(item, metadata["format-version"])
    elif key == "snapshots":
        for name in ("parent-snapshot-id", "sequence-number", "schema-id", "first-row-id"):
            if item.get(name) is not None:
                read_int(item, name)
        read_properties(item, "summary")
        if "manifest-list" in item:
            read_str(item, "manifest-list")
            read_int(item, "timestamp-ms")
    elif key in {"partition-specs", "sort-orders"}:
        _check_fields(item["fields"], named=key == "partition-specs")


def _check_fields(fields: Sequence[Json], *, named: bool) -> None:
    """Raise if a field of a partition spec, which has a name, or of a sort order is incomplete."""
    for field in fields:
        read_str(field, "transform")
        updates.sources_of(field)
        if named:
            read_str(field, "name")
            if "field-id" in field:
                read_int(field, "field-id")


def register_metadata(metadata: Metadata, *, outside: str, location: str, now_ms: int) -> Metadata:
    """Return the first metadata here of a table from elsewhere; only new files go to `location`."""
    upgraded = metadata
    if metadata["format-version"] == 1:
        upgraded = {**updates.upgrade_from_v1(metadata), "format-version": 2}
    if current_schema(upgraded) is None:
        raise impossible(f"registering {outside}", "it has no current schema")
    came_from = {"metadata-file": outside, "timestamp-ms": metadata.get("last-updated-ms", 0)}
    return {
        **_with_main(upgraded),
        "location": location,
        "properties": without_location_settings(upgraded.get("properties") or {}),
        "metadata-log": [*(metadata.get("metadata-log") or []), came_from],
        "last-updated-ms": now_ms,
    }


def _with_main(metadata: Metadata) -> Metadata:
    """Add the ref: older writers name the current snapshot without one, and write -1 for none."""
    current = metadata.get("current-snapshot-id")
    refs = metadata.get("refs") or {}
    if current is None or current == -1:
        kept = {key: value for key, value in metadata.items() if key != "current-snapshot-id"}
        return {**kept, "refs": refs}
    return {**metadata, "refs": {MAIN: {"snapshot-id": current, "type": "branch"}, **refs}}
