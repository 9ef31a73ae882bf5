"""Column types by their Iceberg names, as schema files write them: `list<struct<a: int>>`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from typing import Any

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
