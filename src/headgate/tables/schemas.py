"""Updates of a table's schemas."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from headgate.errors import MalformedRequest
from headgate.tables.shape import (
    LAST_ADDED,
    Json,
    State,
    as_object,
    read_int,
    read_ints,
    read_object,
    read_objects,
    read_str,
    refuse,
)

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


# Column types by their Iceberg names, as schema files write them: `list<struct<a: int>>`.

PRIMITIVES = (
    "boolean",
    "int",
    "long",
    "float",
    "double",
    "date",
    "time",
    "timestamp",
    "timestamptz",
    "string",
    "uuid",
    "binary",
)
# Types whose values can tell rows apart and be put into buckets.
KEY_TYPES = frozenset(PRIMITIVES) - {"boolean", "float", "double"}
_DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(\d+)\s*\)\Z")
_FIXED = re.compile(r"fixed\[\s*(\d+)\s*\]\Z")
_NESTED = re.compile(r"(list|map|struct)<(.*)>\Z", re.DOTALL)
_DECIMAL_DIGITS = 38


class UnknownType(ValueError):
    """The text is no type; the message says what was probably meant."""


def parse_type(text: str, next_id: Callable[[], int]) -> Any:
    """A primitive's name, or the JSON object of a nested type with fresh ids."""
    word = text.strip()
    if word in PRIMITIVES:
        return word
    if found := _DECIMAL.match(word):
        precision, scale = int(found[1]), int(found[2])
        if not 0 < precision <= _DECIMAL_DIGITS or scale > precision:
            raise UnknownType(f"{word!r}: a decimal has 1 to 38 digits, and not more after the dot")
        return f"decimal({precision}, {scale})"
    if found := _FIXED.match(word):
        return f"fixed[{int(found[1])}]"
    if found := _NESTED.match(word):
        return _nested(found[1], found[2], next_id)
    near = difflib.get_close_matches(word, [*PRIMITIVES, *_FOREIGN], n=1)
    meant = _FOREIGN.get(near[0], near[0]) if near else None
    hint = f"did you mean {meant!r}?" if meant else f"the types are {', '.join(PRIMITIVES)}"
    raise UnknownType(f"{word!r} is not an Iceberg type; {hint}")


_FOREIGN = {
    "bigint": "long",
    "integer": "int",
    "varchar": "string",
    "text": "string",
    "bool": "boolean",
    "real": "float",
    "datetime": "timestamp",
    "blob": "binary",
    "bytes": "binary",
    "str": "string",
    "array": "list<...>",
}


def _nested(kind: str, inside: str, next_id: Callable[[], int]) -> Any:
    parts = _split(inside)
    if kind == "list" and len(parts) == 1:
        element = next_id()
        return {
            "type": "list",
            "element-id": element,
            "element": parse_type(parts[0], next_id),
            "element-required": False,
        }
    if kind == "map" and len(parts) == 2:
        key, value = next_id(), next_id()
        return {
            "type": "map",
            "key-id": key,
            "key": parse_type(parts[0], next_id),
            "value-id": value,
            "value": parse_type(parts[1], next_id),
            "value-required": False,
        }
    if kind == "struct" and parts:
        return {"type": "struct", "fields": [_field(part, next_id) for part in parts]}
    raise UnknownType(f"{kind}<{inside}> has the wrong number of parts")


def _field(part: str, next_id: Callable[[], int]) -> Any:
    name, colon, kind = part.partition(":")
    if not colon or not name.strip():
        raise UnknownType(f"{part.strip()!r} is no field; write `name: type`")
    id = next_id()
    return {
        "id": id,
        "name": name.strip(),
        "required": False,
        "type": parse_type(kind, next_id),
    }


def _split(text: str) -> list[str]:
    """The parts between commas that are inside no bracket."""
    parts, depth, current = [], 0, ""
    for character in text:
        depth += character in "<(["
        depth -= character in ">)]"
        if character == "," and depth == 0:
            parts.append(current)
            current = ""
        else:
            current += character
    return [part for part in [*parts, current] if part.strip()]
