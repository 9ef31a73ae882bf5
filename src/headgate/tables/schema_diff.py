"""What differs between two schemas, and which columns of the one are columns of the other; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import orjson

from headgate.tables.schemas import current_schema, field_ids
from headgate.tables.shape import Json, Metadata

# Pairs of primitives of which the second holds every value of the first.
_WIDENED = {("int", "long"), ("float", "double")}


@dataclass(frozen=True, kw_only=True)
class Field:
    """A column, or a field inside one."""

    id: int
    name: str
    # The path of the field that it is inside; a column has none, and may have dots in its name.
    parent: str
    type: Any
    required: bool

    @property
    def kind(self) -> Any:
        """The type of this field itself; what is inside it are fields of their own."""
        return self.type if isinstance(self.type, str) else self.type["type"]

    @property
    def path(self) -> str:
        return f"{self.parent}.{self.name}" if self.parent else self.name


Pair: TypeAlias = tuple[Field, Field]


@dataclass(frozen=True, kw_only=True)
class SchemaChanges:
    """Fields that only one side has, and pairs that are the same field in another guise."""

    added: tuple[Field, ...] = ()
    removed: tuple[Field, ...] = ()
    renamed: tuple[Pair, ...] = ()
    retyped: tuple[Pair, ...] = ()
    # Made required, or no longer so.
    required: tuple[Pair, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.renamed or self.retyped or self.required)


def schema_changes(before: Metadata | None, after: Metadata | None) -> SchemaChanges:
    """The changes from one version's schema to the other's; no version has no fields."""
    olds, news = _fields(before), _fields(after)
    pairs = _match(before, after)
    paired_old = {old.path for old, _ in pairs}
    paired_new = {new.path for _, new in pairs}
    return SchemaChanges(
        added=_outermost(new for new in news if new.path not in paired_new),
        removed=_outermost(old for old in olds if old.path not in paired_old),
        renamed=tuple(p for p in pairs if p[0].name != p[1].name),
        retyped=tuple(p for p in pairs if p[0].kind != p[1].kind),
        required=tuple(p for p in pairs if p[0].required != p[1].required),
    )


def common_columns(before: Metadata, after: Metadata) -> list[Pair]:
    """The columns that both have and whose values can be compared, in the order of the later."""
    pairs = [p for p in _match(before, after) if not p[0].parent and not p[1].parent]
    return [p for p in pairs if _comparable(p[0].type, p[1].type)]


def identifier_columns(metadata: Metadata) -> list[str]:
    """The names of the columns that the table itself says identify a row."""
    ids = set((current_schema(metadata) or {}).get("identifier-field-ids") or [])
    return [field.path for field in _fields(metadata) if field.id in ids]


def _match(before: Metadata | None, after: Metadata | None) -> list[Pair]:
    """Fields by id where both sides mean the same one by it, else by path.

    Two branches that each add a column give it the same id, so an id alone says nothing.
    """
    if before is None or after is None:
        return []
    shared = _shared_ids(before, after)
    olds = _fields(before)
    by_id = {old.id: old for old in olds if old.id in shared}
    by_path = {old.path: old for old in olds if old.id not in shared}
    pairs = []
    for new in _fields(after):
        old = by_id.get(new.id) if new.id in shared else by_path.get(new.path)
        if old is not None:
            pairs.append((old, new))
    return pairs


def _shared_ids(before: Metadata, after: Metadata) -> set[int]:
    """Ids of a schema that both versions had, which are thus from before they parted."""
    if before["table-uuid"] != after["table-uuid"]:
        return set()
    known = {_canonical(schema) for schema in before.get("schemas") or []}
    return {
        id
        for schema in after.get("schemas") or []
        if _canonical(schema) in known
        for id in field_ids(schema)
    }


def _canonical(schema: Json) -> bytes:
    return orjson.dumps(schema["fields"], option=orjson.OPT_SORT_KEYS)


def _fields(metadata: Metadata | None) -> list[Field]:
    schema = current_schema(metadata) if metadata is not None else None
    return list(_walk(schema["fields"], "")) if schema is not None else []


def _walk(fields: list[Json], parent: str) -> Iterator[Field]:
    for field in fields:
        found = Field(
            id=field["id"],
            name=field["name"],
            parent=parent,
            type=field["type"],
            required=bool(field.get("required")),
        )
        yield found
        yield from _walk(list(_inside(found.type)), found.path)


def _inside(kind: Any) -> Iterator[Json]:
    """The fields of a nested type; those of lists and maps have no names of their own."""
    if isinstance(kind, str):
        return
    yield from kind.get("fields") or []
    for part in ("element", "key", "value"):
        if part in kind:
            yield {
                "id": kind[f"{part}-id"],
                "name": part,
                "type": kind[part],
                "required": part == "key" or kind.get(f"{part}-required"),
            }


def _outermost(fields: Iterator[Field]) -> tuple[Field, ...]:
    """A struct that came or went says it for all that is inside."""
    found = list(fields)
    paths = {field.path for field in found}
    return tuple(field for field in found if field.parent not in paths)


def _comparable(old: Any, new: Any) -> bool:
    if isinstance(old, str) and isinstance(new, str):
        return old == new or widest(old, new) is not None
    return bool(_shape(old) == _shape(new))


def widest(old: str, new: str) -> str | None:
    """The one of two primitive types that holds the values of both."""
    if (old, new) in _WIDENED or _is_wider_decimal(new, old):
        return new
    if (new, old) in _WIDENED or _is_wider_decimal(old, new):
        return old
    return old if old == new else None


def _is_wider_decimal(wide: str, narrow: str) -> bool:
    one, other = _decimal(wide), _decimal(narrow)
    return one is not None and other is not None and one[1] == other[1] and one[0] > other[0]


def _decimal(kind: str) -> tuple[int, int] | None:
    if not kind.startswith("decimal("):
        return None
    precision, _, scale = kind.removeprefix("decimal(").rstrip(")").partition(",")
    return int(precision), int(scale)


def _shape(kind: Any) -> Any:
    """A type without the ids and comments in it."""
    if isinstance(kind, str):
        return kind
    inside: Mapping[str, Any] = {f["name"]: _shape(f["type"]) for f in _inside(kind)}
    return kind["type"], list(inside.items())
