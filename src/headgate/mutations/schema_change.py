"""What a schema file makes of one table: the next metadata, in steps that a person can review."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from headgate.errors import ImpossibleSchemaChange
from headgate.model.constraints import Constraints
from headgate.mutations.schema_file import ColumnSpec, DatasetSpec
from headgate.tables import constraints as stored
from headgate.tables.creation import create_metadata
from headgate.tables.reading import type_text
from headgate.tables.schema_changes import widest
from headgate.tables.schemas import current_schema
from headgate.tables.shape import Json, Metadata
from headgate.tables.type_names import parse_type
from headgate.tables.updates import apply_updates

DEFAULT_BUCKETS = 8


@dataclass(frozen=True, kw_only=True)
class SchemaChange:
    """The metadata a table gets, how it differs, and which new columns old rows need values in."""

    metadata: Metadata
    steps: tuple[str, ...]
    filled: dict[str, Any] = field(default_factory=dict)


def create_table(spec: DatasetSpec, *, location: str, now_ms: int) -> SchemaChange:
    """A table without rows; a keyed one is laid out in buckets of its key."""
    ids = _Ids(0)
    fields = [_new_field(column, ids) for column in spec.columns]
    by_name = {f["name"]: f for f in fields}
    request: Json = {
        "schema": {
            "type": "struct",
            "fields": fields,
            "identifier-field-ids": [by_name[name]["id"] for name in spec.constraints.key],
        },
        "partition-spec": {"fields": _buckets(spec, by_name)},
        "properties": {},
    }
    metadata = create_metadata(request, location=location, now_ms=now_ms)
    schema = current_schema(metadata)
    assert schema is not None
    text = stored.constraints_property(schema, spec.constraints)
    metadata = {**metadata, "properties": {stored.PROPERTY: text}}
    columns = ", ".join(f"{c.name} {c.type}" for c in spec.columns)
    return SchemaChange(metadata=metadata, steps=(f"create ({columns})",))


def change_table(
    spec: DatasetSpec, base: Metadata, *, base_location: str, now_ms: int
) -> SchemaChange:
    """The table as the file has it: fields keep their ids, also under another name."""
    schema = current_schema(base)
    assert schema is not None
    olds = {f["name"]: f for f in schema["fields"]}
    ids = _Ids(int(base["last-column-id"]))
    steps: list[str] = []
    filled: dict[str, Any] = {}
    fields = [_match(spec, column, olds, ids, steps, filled) for column in spec.columns]
    kept = {f["id"] for f in fields}
    steps += [f"drop column {f['name']}" for f in schema["fields"] if f["id"] not in kept]
    by_name = {f["name"]: f for f in fields}
    key = [by_name[name]["id"] for name in spec.constraints.key]
    changed = {**schema, "fields": fields, "identifier-field-ids": key}
    updates: list[Json] = [
        {"action": "add-schema", "schema": changed},
        {"action": "set-current-schema", "schema-id": -1},
    ]
    if set(key) != set(schema.get("identifier-field-ids") or []):
        steps.append(f"key ({', '.join(spec.constraints.key)})" if key else "drop key")
        updates += _laid_out(spec, by_name)
    steps += _constraint_steps(stored.constraints_of(base), spec.constraints)
    text = stored.constraints_property(changed, spec.constraints)
    updates.append({"action": "set-properties", "updates": {stored.PROPERTY: text}})
    metadata = apply_updates(base, updates, now_ms=now_ms, base_location=base_location)
    return SchemaChange(metadata=metadata, steps=tuple(steps), filled=filled)


class _Ids:
    def __init__(self, last: int) -> None:
        self.last = last

    def __call__(self) -> int:
        self.last += 1
        return self.last


def _new_field(column: ColumnSpec, ids: _Ids) -> Json:
    id = ids()
    made: Json = {"id": id, "name": column.name, "required": column.required}
    made["type"] = parse_type(column.type, ids)
    return {**made, "doc": column.doc} if column.doc else made


def _match(
    spec: DatasetSpec,
    column: ColumnSpec,
    olds: dict[str, Json],
    ids: _Ids,
    steps: list[str],
    filled: dict[str, Any],
) -> Json:
    """The field that a column is by now: the old one, perhaps renamed or widened, or a new one."""
    was = column.renamed_from if column.renamed_from in olds else None
    old = olds.get(column.name) or (olds[was] if was else None)
    if old is None:
        made = _new_field(column, ids)
        default = spec.constraints.defaults.get(column.name)
        steps.append(f"add column {column.name} {column.type}")
        if column.required and default is None:
            filled[column.name] = None
        elif column.required:
            filled[column.name] = default
        return made
    if old["name"] != column.name:
        steps.append(f"rename column {old['name']} to {column.name}")
    kind = _widened(spec, column, old, steps)
    if bool(old.get("required")) != column.required:
        steps.append(f"column {column.name}: {'required' if column.required else 'optional'}")
    if (column.doc or old.get("doc")) != old.get("doc"):
        steps.append(f"column {column.name}: its description")
    new = {**old, "name": column.name, "type": kind, "required": column.required}
    return {**new, "doc": column.doc} if column.doc else new


def _widened(spec: DatasetSpec, column: ColumnSpec, old: Json, steps: list[str]) -> Any:
    wanted = parse_type(column.type, _Ids(0))
    if type_text(wanted) == type_text(old["type"]):
        return old["type"]
    is_plain = isinstance(wanted, str) and isinstance(old["type"], str)
    if not is_plain or widest(_flat(old["type"]), _flat(wanted)) != _flat(wanted):
        raise ImpossibleSchemaChange(
            dataset=str(spec.name),
            reason=f"column {column.name!r} is {type_text(old['type'])} and cannot become "
            f"{column.type}",
            remedy="Types can only widen (int to long, float to double, more decimal digits): add "
            "a column of the new type and fill it by `headgate mutate`.",
        )
    steps.append(f"column {column.name}: {type_text(old['type'])} to {column.type}")
    return wanted


def _flat(kind: str) -> str:
    return kind.replace(" ", "")


def _buckets(spec: DatasetSpec, by_name: dict[str, Json]) -> list[Json]:
    if not spec.constraints.key:
        return []
    first = spec.constraints.key[0]
    return [
        {
            "source-id": by_name[first]["id"],
            "field-id": 1000,
            "name": f"{first}_bucket",
            "transform": f"bucket[{spec.buckets or DEFAULT_BUCKETS}]",
        }
    ]


def _laid_out(spec: DatasetSpec, by_name: dict[str, Json]) -> list[Json]:
    fields = [{k: v for k, v in f.items() if k != "field-id"} for f in _buckets(spec, by_name)]
    return [
        {"action": "add-spec", "spec": {"fields": fields}},
        {"action": "set-default-spec", "spec-id": -1},
    ]


def _constraint_steps(old: Constraints, new: Constraints) -> list[str]:
    steps = []
    for what in ("unique", "references", "cardinality"):
        before: Sequence[Any] = getattr(old, what)
        after: Sequence[Any] = getattr(new, what)
        steps += [f"demand {_words(item)}" for item in after if item not in before]
        steps += [f"no longer demand {_words(item)}" for item in before if item not in after]
    for name in sorted({*old.enums, *new.enums}):
        if old.enums.get(name) != new.enums.get(name):
            values = new.enums.get(name)
            steps.append(
                f"column {name}: one of {', '.join(map(str, values))}"
                if values
                else f"column {name}: any value"
            )
    for name in sorted({*old.defaults, *new.defaults}):
        if old.defaults.get(name) != new.defaults.get(name):
            steps.append(f"column {name}: default {new.defaults.get(name)!r}")
    return steps


def _words(item: Any) -> str:
    if isinstance(item, tuple):
        return f"unique ({', '.join(item)})"
    if hasattr(item, "per"):
        return f"at most {item.max} rows per {item.per}"
    return f"{item.column} refers to {item.dataset} ({item.on_delete})"
