"""Reading typed values out of JSON objects that a client sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from headgate.errors import ImpossibleTableChange, MalformedRequest

Json: TypeAlias = dict[str, Any]
# Table metadata as the specification writes it, unknown fields included.
Metadata: TypeAlias = dict[str, Any]

MAIN = "main"
LAST_ADDED = -1


def read_int(source: Mapping[str, Any], key: str) -> int:
    """The integer at a key; a boolean, a float and a missing key are refused."""
    value = _present(source, key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise MalformedRequest(what=f"field {key!r}", reason="it must be an integer")
    if not -(2**63) <= value < 2**63:
        raise MalformedRequest(what=f"field {key!r}", reason="it does not fit in 64 bits")
    return value


def read_str(source: Mapping[str, Any], key: str) -> str:
    """The text at a key."""
    value = _present(source, key)
    if not isinstance(value, str):
        raise MalformedRequest(what=f"field {key!r}", reason="it must be a string")
    return value


def read_object(source: Mapping[str, Any], key: str) -> Json:
    """The JSON object at a key."""
    return as_object(_present(source, key), what=f"field {key!r}")


def read_list(source: Mapping[str, Any], key: str) -> list[Any]:
    """The JSON array at a key."""
    value = _present(source, key)
    if not isinstance(value, list):
        raise MalformedRequest(what=f"field {key!r}", reason="it must be an array")
    return value


def read_objects(source: Mapping[str, Any], key: str) -> list[Json]:
    """The array of JSON objects at a key."""
    return [as_object(item, what=f"an item of {key!r}") for item in read_list(source, key)]


def read_ints(source: Mapping[str, Any], key: str) -> list[int]:
    """The array of integers at a key."""
    return [read_int({key: item}, key) for item in read_list(source, key)]


def read_strings(source: Mapping[str, Any], key: str) -> list[str]:
    """The array of texts at a key."""
    return [read_str({key: item}, key) for item in read_list(source, key)]


def read_properties(source: Mapping[str, Any], key: str) -> dict[str, str]:
    """The object of texts at a key; a missing or null one is empty."""
    if source.get(key) is None:
        return {}
    found = read_object(source, key)
    return {name: read_str(found, name) for name in found}


def as_object(value: Any, *, what: str) -> Json:
    """The value, if it is a JSON object."""
    if not isinstance(value, dict):
        raise MalformedRequest(what=what, reason="it must be an object")
    return value


def _present(source: Mapping[str, Any], key: str) -> Any:
    if source.get(key) is None:
        raise MalformedRequest(what=f"field {key!r}", reason="it is missing")
    return source[key]


# The state that table updates are applied to: metadata, and what this commit has added so far.


@dataclass(frozen=True, kw_only=True)
class State:
    """Metadata in the making; -1 in an update refers to the `last_…` that this commit added."""

    metadata: Metadata
    now_ms: int
    last_schema_id: int | None = None
    last_spec_id: int | None = None
    last_order_id: int | None = None
    added_snapshots: frozenset[int] = frozenset()

    def put(self, **fields: Any) -> State:
        """The same state with metadata fields set; `_` in a name stands for `-`."""
        changed = {name.replace("_", "-"): value for name, value in fields.items()}
        return replace(self, metadata={**self.metadata, **changed})

    def drop(self, *names: str) -> State:
        """The same state without those metadata fields."""
        kept = {name: value for name, value in self.metadata.items() if name not in names}
        return replace(self, metadata=kept)

    def items(self, name: str) -> list[Json]:
        """A list field of the metadata; a missing one is empty."""
        return list(self.metadata.get(name) or [])

    @property
    def format_version(self) -> int:
        return int(self.metadata.get("format-version", 2))


def refuse(change: str, reason: str) -> ImpossibleTableChange:
    """The error for an update that no version of the table could take."""
    return ImpossibleTableChange(change=change, reason=reason)
