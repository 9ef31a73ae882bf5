"""The first metadata of a table, from a create request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from headgate.errors import MalformedRequest
from headgate.tables import layouts, schemas
from headgate.tables.properties import parse_format_version
from headgate.tables.shape import (
    Json,
    Metadata,
    as_object,
    read_int,
    read_ints,
    read_object,
    read_objects,
    read_properties,
    read_str,
)
from headgate.tables.state import State, refuse

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
    state = layouts.add_spec(state, {"spec": _translate(spec, numbering.fresh, drop="field-id")})
    state = layouts.set_default_spec(state, {"spec-id": -1})
    order = request.get("write-order") or {"order-id": 0, "fields": []}
    state = layouts.add_sort_order(state, {"sort-order": _translate(order, numbering.fresh)})
    state = layouts.set_default_sort_order(state, {"sort-order-id": -1})
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
        "last-partition-id": layouts.FIRST_PARTITION_FIELD_ID - 1,
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
