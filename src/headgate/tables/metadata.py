"""Table metadata and rows as JSON: their types, checked reads of values, and schema lookups."""

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from headgate.errors import ImpossibleTableChange, MalformedRequest

Json: TypeAlias = dict[str, Any]
# Table metadata as the Iceberg specification writes it, unknown fields included.
Metadata: TypeAlias = dict[str, Any]
# Values by column name, as JSON has them.
Row: TypeAlias = dict[str, Any]

# The ref that a table's readers follow.
MAIN = "main"


def impossible(change: str, reason: str) -> ImpossibleTableChange:
    """Return the error for a change that no version of the table could take."""
    return ImpossibleTableChange(change=change, reason=reason)


def read_int(source: Mapping[str, Any], key: str) -> int:
    """Return the integer at a key; a boolean, a float or a missing key is malformed."""
    value = _present(source, key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise MalformedRequest(what=f"field {key!r}", reason="it must be an integer")
    if not -(2**63) <= value < 2**63:
        raise MalformedRequest(what=f"field {key!r}", reason="it does not fit in 64 bits")
    return value


def read_str(source: Mapping[str, Any], key: str) -> str:
    value = _present(source, key)
    if not isinstance(value, str):
        raise MalformedRequest(what=f"field {key!r}", reason="it must be a string")
    return value


def read_bool(source: Mapping[str, Any], key: str) -> bool:
    value = _present(source, key)
    if not isinstance(value, bool):
        raise MalformedRequest(what=f"field {key!r}", reason="it must be true or false")
    return value


def read_object(source: Mapping[str, Any], key: str) -> Json:
    return as_object(_present(source, key), what=f"field {key!r}")


def read_objects(source: Mapping[str, Any], key: str) -> list[Json]:
    return [as_object(item, what=f"an item of {key!r}") for item in _read_list(source, key)]


def read_ints(source: Mapping[str, Any], key: str) -> list[int]:
    """Return the array of integers at a key."""
    return [read_int({key: item}, key) for item in _read_list(source, key)]


def read_strings(source: Mapping[str, Any], key: str) -> list[str]:
    return [read_str({key: item}, key) for item in _read_list(source, key)]


def read_properties(source: Mapping[str, Any], key: str) -> dict[str, str]:
    """Return the object of strings at a key; a missing or null one is empty."""
    if source.get(key) is None:
        return {}
    found = read_object(source, key)
    return {name: read_str(found, name) for name in found}


def as_object(value: Any, *, what: str) -> Json:
    """Return the value, if it is a JSON object."""
    if not isinstance(value, dict):
        raise MalformedRequest(what=what, reason="it must be an object")
    return value


# Values of one document, and how deep they may be nested: far more than a request needs, and few
# enough to be parsed in a moment and to be encoded again inside a reply.
_MOST_VALUES = 250_000
_MOST_DEPTH = 100
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_ONE_KIND = bytes.maketrans(b"{}", b"[]")
_PART_BYTES = 256 * 1024


def check_document(body: bytes) -> None:
    """Raise if a JSON text has too many values or is nested too deeply, without parsing it.

    The parsers hold Python's lock for all of a text. Each of these steps takes under a
    millisecond, so that other threads go on.
    """
    brackets, values, in_string, rest = [], 0, False, b""
    for start in range(0, len(body), _PART_BYTES):
        part = rest + body[start : start + _PART_BYTES]
        # An escape may be cut in two.
        is_cut = (len(part) - len(part.rstrip(b"\\"))) % 2 == 1
        part, rest = (part[:-1], b"\\") if is_cut else (part, b"")
        pieces = part.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        outside = b"".join(pieces[int(in_string) :: 2])
        in_string ^= len(pieces) % 2 == 0
        brackets.append(outside.translate(_ONE_KIND, _NO_BRACKETS))
        values += sum(map(outside.count, (b",", b"[", b"{")))
        if values > _MOST_VALUES:
            raise MalformedRequest(
                what="the request body", reason=f"it has more than {_MOST_VALUES} values"
            )
    nested = b"".join(brackets)
    for _ in range(_MOST_DEPTH):
        inner = nested.replace(b"[]", b"")
        if len(inner) == len(nested):
            # Empty, or unbalanced: the parser rejects it.
            return
        nested = inner
    if nested:
        raise too_deep()


def too_deep() -> MalformedRequest:
    reason = f"it is nested more than {_MOST_DEPTH} levels deep"
    return MalformedRequest(what="the request body", reason=reason)


def not_finite(value: float) -> str:
    """Return the SQL spelling of a number that JSON does not have."""
    if value != value:
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _read_list(source: Mapping[str, Any], key: str) -> list[Any]:
    value = _present(source, key)
    if not isinstance(value, list):
        raise MalformedRequest(what=f"field {key!r}", reason="it must be an array")
    return value


def _present(source: Mapping[str, Any], key: str) -> Any:
    if source.get(key) is None:
        raise MalformedRequest(what=f"field {key!r}", reason="it is missing")
    return source[key]


def current_schema(metadata: Json) -> Json | None:
    """Return the current schema, if there is one."""
    for schema in metadata.get("schemas") or []:
        if schema["schema-id"] == metadata.get("current-schema-id"):
            return as_object(schema, what="a schema")
    return None


_NESTED_PARTS = {"list": ("element",), "map": ("key", "value")}


def field_ids(schema: Json) -> Iterator[int]:
    """Yield every field id of a schema, nested ones included."""
    return _ids_of(read_objects(schema, "fields"))


def _ids_of(fields: list[Json]) -> Iterator[int]:
    for field in fields:
        yield read_int(field, "id")
        yield from _ids_of(fields_in(field.get("type")))


def fields_in(kind: Any) -> list[Json]:
    """Return the fields of a nested type; those of lists and maps have no names of their own."""
    if isinstance(kind, str):
        return []
    nested = as_object(kind, what="a column type")
    if nested.get("type") == "struct":
        return read_objects(nested, "fields")
    return [
        {
            "id": read_int(nested, f"{part}-id"),
            "name": part,
            "type": nested.get(part),
            "required": part == "key" or nested.get(f"{part}-required"),
        }
        for part in nested_parts(nested)
    ]


def nested_parts(kind: Json) -> tuple[str, ...]:
    """Return the parts of a list or map type: `element`, or `key` and `value`."""
    name = read_str(kind, "type")
    if name not in _NESTED_PARTS:
        raise MalformedRequest(what="a column type", reason=f"{name!r} is not a nested type")
    return _NESTED_PARTS[name]
