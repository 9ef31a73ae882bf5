"""A table's constraints in properties of its metadata: they branch, merge and reset with it.

Columns are stored by field id, so that a renamed column keeps its constraints. A table also
lists the datasets that refer to it: without the list, a delete would have to read the
constraints of every table of the branch. See ADR 0029.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import orjson

from headgate.errors import Invalid
from headgate.model.constraints import Cardinality, Constraints, Enforce, OnDelete, Reference
from headgate.tables.metadata import Json, Metadata, current_schema, impossible

PROPERTY = "headgate.constraints"
REFERRING_PROPERTY = "headgate.referred-to-by"
ENFORCE_PROPERTY = "headgate.enforce"
# A commit to a table without any of these is not validated.
RULE_PROPERTIES = frozenset({PROPERTY, REFERRING_PROPERTY, ENFORCE_PROPERTY})


@contextmanager
def _reading(property: str) -> Iterator[None]:
    """Raise `Invalid` if the property is malformed: clients may set any property of a table."""
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Invalid(
            f"the table property {property} is malformed ({error!r:.200}): only Headgate writes "
            "it. Remove it, and declare the constraints with `headgate schema apply`.",
            property=property,
        ) from error


@_reading(PROPERTY)
def constraints_of(metadata: Metadata) -> Constraints:
    """Return the constraints of a version; its key is the schema's identifier columns."""
    schema = current_schema(metadata) or {"fields": []}
    names = {field["id"]: str(field["name"]) for field in schema["fields"]}
    key = tuple(names[id] for id in schema.get("identifier-field-ids") or [] if id in names)
    text = (metadata.get("properties") or {}).get(PROPERTY)
    stored: Json = orjson.loads(text) if text else {}
    return Constraints(
        key=key,
        unique=tuple(
            tuple(names[id] for id in ids)
            for ids in stored.get("unique", [])
            if all(id in names for id in ids)
        ),
        references=tuple(
            Reference(
                column=names[item["column"]],
                dataset=str(item["dataset"]),
                on_delete=OnDelete(item["on_delete"]),
            )
            for item in stored.get("references", [])
            if item["column"] in names
        ),
        cardinality=tuple(
            Cardinality(per=names[item["per"]], max=int(item["max"]))
            for item in stored.get("cardinality", [])
            if item["per"] in names
        ),
        enums={
            names[int(id)]: tuple(values)
            for id, values in stored.get("enums", {}).items()
            if int(id) in names
        },
        defaults={
            names[int(id)]: value
            for id, value in stored.get("defaults", {}).items()
            if int(id) in names
        },
    )


def constraints_property(schema: Json, constraints: Constraints) -> str:
    """Return the property that stores all constraints but the key, which is in the schema."""
    ids = {str(field["name"]): int(field["id"]) for field in schema["fields"]}

    def id_of(name: str) -> int:
        if name not in ids:
            raise impossible(f"a constraint on column {name!r}", "the table has no such column")
        return ids[name]

    stored: dict[str, Any] = {
        "unique": [[id_of(name) for name in names] for names in constraints.unique],
        "references": [
            {"column": id_of(r.column), "dataset": r.dataset, "on_delete": r.on_delete}
            for r in constraints.references
        ],
        "cardinality": [{"per": id_of(c.per), "max": c.max} for c in constraints.cardinality],
        "enums": {str(id_of(name)): list(values) for name, values in constraints.enums.items()},
        "defaults": {str(id_of(name)): value for name, value in constraints.defaults.items()},
    }
    kept = {name: value for name, value in stored.items() if value}
    return orjson.dumps(kept, option=orjson.OPT_SORT_KEYS).decode()


@_reading(REFERRING_PROPERTY)
def referring_datasets(metadata: Metadata) -> list[str]:
    """Return the names of datasets with a reference to this table."""
    text = (metadata.get("properties") or {}).get(REFERRING_PROPERTY)
    return sorted(map(str, orjson.loads(text))) if text else []


def is_ruled(metadata: Metadata) -> bool:
    """Return whether commits to the table can break constraints, of its own or of others."""
    return not RULE_PROPERTIES.isdisjoint(metadata.get("properties") or {})


def enforcement_of(metadata: Metadata) -> Enforce:
    """Return the treatment of a commit of an engine that violates the constraints.

    The default is `reject` where a schema file declared them. A key that an engine declared does
    not bind: to Iceberg, identifier fields are a hint.
    """
    # A commit that makes them malformed is rejected: the next writer could not read them.
    constraints_of(metadata), referring_datasets(metadata)
    properties = metadata.get("properties") or {}
    if ENFORCE_PROPERTY not in properties:
        return Enforce.REJECT if PROPERTY in properties else Enforce.OFF
    try:
        return Enforce(properties[ENFORCE_PROPERTY])
    except ValueError as error:
        raise Invalid(
            f"the table property {ENFORCE_PROPERTY} is {properties[ENFORCE_PROPERTY]!r}: set it "
            f"to {', '.join(Enforce)}.",
            property=ENFORCE_PROPERTY,
        ) from error


def keeps_rules(before: Metadata, after: Metadata) -> bool:
    """Return whether rows that satisfied all constraints before satisfy those after, too."""
    if enforcement_of(before) is not Enforce.REJECT and enforcement_of(after) is Enforce.REJECT:
        # Until now, commits to other tables may have broken references of this one.
        return False
    (text, key, required), (new_text, new_key, new_required) = map(_rules, (before, after))
    return text == new_text and key == new_key and new_required <= required


def _rules(metadata: Metadata) -> tuple[str | None, frozenset[int], frozenset[int]]:
    """Return the stored constraints, and the ids of the key's and of required columns."""
    schema = current_schema(metadata) or {"fields": []}
    return (
        (metadata.get("properties") or {}).get(PROPERTY),
        frozenset(schema.get("identifier-field-ids") or ()),
        frozenset(field["id"] for field in schema["fields"] if field["required"]),
    )


def referring_property(names: Iterable[str]) -> str:
    return orjson.dumps(sorted(set(names))).decode()
