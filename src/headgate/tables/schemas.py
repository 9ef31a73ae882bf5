"""Schemas and column types of tables: fields, checks, and types as text."""

import difflib
import re
from collections.abc import Callable
from typing import Any

from headgate.tables.metadata import (
    Json,
    field_ids,
    fields_in,
    impossible,
    nested_parts,
    read_bool,
    read_ints,
    read_objects,
    read_str,
)

# Types that came with version 3 of the format.
_SINCE_V3 = ("variant", "unknown", "geometry", "geography", "timestamp_ns", "timestamptz_ns")


def identifier_ids(schema: Json) -> list[int]:
    return read_ints(schema, "identifier-field-ids") if schema.get("identifier-field-ids") else []


def same_schema(one: Json, other: Json) -> bool:
    """Return whether two schemas have the same columns and identifiers, whatever their ids."""
    same_keys = set(identifier_ids(one)) == set(identifier_ids(other))
    return same_keys and bool(one["fields"] == other["fields"])


def check_schema(schema: Json, format_version: int) -> None:
    """Raise if a field is incomplete, ids or names clash, or a newer format version is needed."""
    ids = list(field_ids(schema))
    if len(set(ids)) != len(ids):
        raise impossible("add-schema", "two fields have the same id")
    _check_fields({**schema, "type": "struct"})
    missing = set(identifier_ids(schema)) - set(ids)
    if missing:
        raise impossible("add-schema", f"identifier fields {sorted(missing)} are not in the schema")
    if format_version < 3:
        _check_before_v3(schema["fields"])


def _check_fields(kind: Any) -> None:
    """Raise for a field without a name or `required`, and for two of one name; also in types."""
    if isinstance(kind, str):
        return
    if kind.get("type") != "struct":
        for part in nested_parts(kind):
            _check_fields(kind[part])
        return
    fields = read_objects(kind, "fields")
    names = [read_str(field, "name") for field in fields]
    if len(set(names)) != len(names):
        raise impossible("add-schema", "two columns of one struct have the same name")
    for field in fields:
        read_bool(field, "required")
        _check_fields(field["type"])


def _check_before_v3(fields: list[Json]) -> None:
    for field in fields:
        kind = field["type"]
        if field.get("initial-default") is not None:
            raise impossible("add-schema", "a column's initial default needs format version 3")
        if isinstance(kind, str) and kind.startswith(_SINCE_V3):
            raise impossible("add-schema", f"type {kind} needs format version 3")
        _check_before_v3(fields_in(kind))


# --- column types by their Iceberg names, as in `list<struct<a: int>>` ----------------------

_PRIMITIVES = (
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
# Types whose values can identify rows and be put into buckets.
KEY_TYPES = frozenset(_PRIMITIVES) - {"boolean", "float", "double"}
_DECIMAL = re.compile(r"decimal\(\s*(\d{1,9})\s*,\s*(\d{1,9})\s*\)\Z")
_FIXED = re.compile(r"fixed\[\s*(\d{1,9})\s*\]\Z")
_NESTED = re.compile(r"(list|map|struct)<(.*)>\Z", re.DOTALL)
_DECIMAL_DIGITS = 38
# Of nested types: each level reads the text of all that it holds.
_MOST_LEVELS = 32
# Pairs of primitives of which the second holds every value of the first.
_WIDENED = {("int", "long"), ("float", "double")}
# Names of other systems, for a hint.
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


class UnknownType(ValueError):
    """The text is not a type; the message suggests the nearest one."""


def type_text(kind: Any) -> str:
    """Return a column type as SQL writes it: `struct<a: int, b: list<string>>`."""
    if isinstance(kind, str):
        return kind
    match kind["type"]:
        case "struct":
            fields = (f"{f['name']}: {type_text(f['type'])}" for f in kind["fields"])
            return f"struct<{', '.join(fields)}>"
        case "list":
            return f"list<{type_text(kind['element'])}>"
        case "map":
            return f"map<{type_text(kind['key'])}, {type_text(kind['value'])}>"
        case other:
            return str(other)


def widest(old: str, new: str) -> str | None:
    """Return the one of two primitive types that holds the values of both, or None."""
    if (old, new) in _WIDENED or _is_wider_decimal(new, old):
        return new
    if (new, old) in _WIDENED or _is_wider_decimal(old, new):
        return old
    return old if old == new else None


def _is_wider_decimal(wide: str, narrow: str) -> bool:
    one, other = _DECIMAL.match(wide), _DECIMAL.match(narrow)
    if one is None or other is None:
        return False
    return one[2] == other[2] and int(one[1]) > int(other[1])


def parse_type(text: str, next_id: Callable[[], int], *, levels: int = _MOST_LEVELS) -> Any:
    """Return a primitive's name, or the JSON object of a nested type with new ids."""
    word = text.strip()
    if word in _PRIMITIVES:
        return word
    if found := _DECIMAL.match(word):
        precision, scale = int(found[1]), int(found[2])
        if not 0 < precision <= _DECIMAL_DIGITS or scale > precision:
            raise UnknownType(f"{word!r}: a decimal has 1 to 38 digits, and not more after the dot")
        return f"decimal({precision}, {scale})"
    if found := _FIXED.match(word):
        return f"fixed[{int(found[1])}]"
    if found := _NESTED.match(word):
        if levels == 0:
            raise UnknownType(f"a type has over {_MOST_LEVELS} levels of nested types")
        return _nested(found[1], found[2], next_id, levels - 1)
    near = difflib.get_close_matches(word, [*_PRIMITIVES, *_FOREIGN], n=1)
    meant = _FOREIGN.get(near[0], near[0]) if near else None
    hint = f"did you mean {meant!r}?" if meant else f"the types are {', '.join(_PRIMITIVES)}"
    raise UnknownType(f"{word!r} is not an Iceberg type; {hint}")


def _nested(kind: str, inside: str, next_id: Callable[[], int], levels: int) -> Any:
    parts = _split(inside)
    if kind == "list" and len(parts) == 1:
        element = next_id()
        return {
            "type": "list",
            "element-id": element,
            "element": parse_type(parts[0], next_id, levels=levels),
            "element-required": False,
        }
    if kind == "map" and len(parts) == 2:
        key, value = next_id(), next_id()
        return {
            "type": "map",
            "key-id": key,
            "key": parse_type(parts[0], next_id, levels=levels),
            "value-id": value,
            "value": parse_type(parts[1], next_id, levels=levels),
            "value-required": False,
        }
    if kind == "struct" and parts:
        return {"type": "struct", "fields": [_field(part, next_id, levels) for part in parts]}
    raise UnknownType(f"{kind}<{inside}> has the wrong number of parts")


def _field(part: str, next_id: Callable[[], int], levels: int) -> Any:
    name, colon, kind = part.partition(":")
    if not colon or not name.strip():
        raise UnknownType(f"{part.strip()!r} is not a field; write `name: type`")
    id, type = next_id(), parse_type(kind, next_id, levels=levels)
    return {"id": id, "name": name.strip(), "required": False, "type": type}


def _split(text: str) -> list[str]:
    """Split at the commas that are outside of all brackets."""
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
