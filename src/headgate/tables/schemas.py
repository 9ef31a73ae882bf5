"""Updates of a table's schemas."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from headgate.errors import MalformedRequest
from headgate.tables.shape import (
    LAST_ADDED,
    Json,
    as_object,
    read_int,
    read_ints,
    read_object,
    read_objects,
    read_str,
)
from headgate.tables.state import State, refuse

# Types and features that came with version 3 of the format.
_SINCE_V3 = ("variant", "unknown", "geometry", "geography", "timestamp_ns", "timestamptz_ns")


def add_schema(state: State, update: Json) -> State:
    """Adds a schema under the next id, or finds the equal one that is there."""
    schema = read_object(update, "schema")
    check_schema(schema, state.format_version)
    highest = max([*field_ids(schema), 0])
    last_column_id = max(int(state.metadata.get("last-column-id", 0)), highest)
    schemas = state.items("schemas")
    for known in schemas:
        if same_schema(known, schema):
            found = state.put(last_column_id=last_column_id)
            return replace(found, last_schema_id=known["schema-id"])
    schema_id = max((known["schema-id"] for known in schemas), default=-1) + 1
    added = state.put(
        schemas=[*schemas, {**schema, "schema-id": schema_id}], last_column_id=last_column_id
    )
    return replace(added, last_schema_id=schema_id)


def set_current_schema(state: State, update: Json) -> State:
    """Makes a schema the current one; the partition spec and sort order must still fit it."""
    schema_id = read_int(update, "schema-id")
    if schema_id == LAST_ADDED:
        if state.last_schema_id is None:
            raise refuse("set-current-schema -1", "this commit has added no schema")
        schema_id = state.last_schema_id
    if schema_id not in {schema["schema-id"] for schema in state.items("schemas")}:
        raise refuse(f"set-current-schema {schema_id}", "there is no schema with that id")
    return state.put(current_schema_id=schema_id)


def remove_schemas(state: State, update: Json) -> State:
    """Removes schemas that are not current; ids that are not there are passed over."""
    doomed = set(read_ints(update, "schema-ids"))
    if state.metadata.get("current-schema-id") in doomed:
        raise refuse("remove-schemas", "one of them is the current schema")
    kept = [schema for schema in state.items("schemas") if schema["schema-id"] not in doomed]
    return state.put(schemas=kept)


def same_schema(one: Json, other: Json) -> bool:
    """Whether two schemas have the same columns and identifier fields, whatever their ids."""
    same_keys = set(_identifiers(one)) == set(_identifiers(other))
    return same_keys and bool(one["fields"] == other["fields"])


def _identifiers(schema: Json) -> list[int]:
    return read_ints(schema, "identifier-field-ids") if schema.get("identifier-field-ids") else []


def current_schema(metadata: Json) -> Json | None:
    """The current schema, if there is one."""
    for schema in metadata.get("schemas") or []:
        if schema["schema-id"] == metadata.get("current-schema-id"):
            return as_object(schema, what="a schema")
    return None


def field_ids(schema: Json) -> Iterator[int]:
    """Every field id of a schema, nested ones included."""
    for field in read_objects(schema, "fields"):
        yield read_int(field, "id")
        yield from _ids_of_type(field.get("type"))


def _ids_of_type(kind: Any) -> Iterator[int]:
    if isinstance(kind, str):
        return
    nested = as_object(kind, what="a column type")
    match read_str(nested, "type"):
        case "struct":
            yield from field_ids(nested)
        case "list":
            yield read_int(nested, "element-id")
            yield from _ids_of_type(nested.get("element"))
        case "map":
            yield read_int(nested, "key-id")
            yield read_int(nested, "value-id")
            yield from _ids_of_type(nested.get("key"))
            yield from _ids_of_type(nested.get("value"))
        case other:
            raise MalformedRequest(what="a column type", reason=f"{other!r} is not a nested type")


def check_schema(schema: Json, format_version: int) -> None:
    """Refuses a schema whose ids or names clash, or that needs a newer format version."""
    ids = list(field_ids(schema))
    if len(set(ids)) != len(ids):
        raise refuse("add-schema", "two fields have the same id")
    _check_names(schema)
    missing = set(_identifiers(schema)) - set(ids)
    if missing:
        raise refuse("add-schema", f"identifier fields {sorted(missing)} are not in the schema")
    if format_version < 3:
        _check_before_v3(schema)


def _check_names(schema: Json) -> None:
    names = [read_str(field, "name") for field in read_objects(schema, "fields")]
    if len(set(names)) != len(names):
        raise refuse("add-schema", "two columns of one struct have the same name")


def _check_before_v3(kind: Any) -> None:
    if isinstance(kind, str):
        if kind.startswith(_SINCE_V3):
            raise refuse("add-schema", f"type {kind} needs format version 3")
        return
    for field in kind.get("fields") or []:
        if field.get("initial-default") is not None:
            raise refuse("add-schema", "a column's initial default needs format version 3")
        _check_before_v3(field["type"])
    for part in ("element", "key", "value"):
        if part in kind:
            _check_before_v3(kind[part])
