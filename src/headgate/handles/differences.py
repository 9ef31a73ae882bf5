"""The difference between two versions as JSON: the document of `headgate diff`."""

from __future__ import annotations

from collections.abc import Callable

from headgate.files.difference import Change
from headgate.handles.comparing import FilesDifference, compare_sides
from headgate.handles.nouns import Json, file_json
from headgate.handles.parts import StoreParts
from headgate.handles.reading import Sides, find_dataset_of, list_differing, load_sides
from headgate.model.names import parse_dataset_name
from headgate.tables.comparing import Comparing, TableDifference
from headgate.tables.schema_changes import Field, SchemaChanges

Difference = TableDifference | FilesDifference


def find_differences(
    store: StoreParts,
    dataset: str | None,
    before: str,
    after: str,
    *,
    rows: int,
    key: tuple[str, ...],
    on_large: Callable[[int, int], None],
) -> Json | list[Json]:
    """Of one dataset a document; without one, of every dataset that differs, from metadata."""
    options = store.settings.environ
    name = parse_dataset_name(dataset) if dataset else find_dataset_of(store, (before, after))
    if name is None:
        how = Comparing(options=options, samples=0, reads_files=False)
        return [
            difference_json(sides, compare_sides(store, sides, how))
            for sides in list_differing(store, before, after)
        ]
    sides = load_sides(store, name, before, after)
    how = Comparing(options=options, key=key, samples=rows, on_large=on_large)
    return difference_json(sides, compare_sides(store, sides, how))


def difference_json(sides: Sides, found: Difference) -> Json:
    """The shape that `headgate diff --help` documents."""
    head: Json = {
        "dataset": str(sides.dataset.name),
        "kind": sides.dataset.kind.value,
        "from": sides.before.id if sides.before else None,
        "to": sides.after.id if sides.after else None,
    }
    body = _table_json(found) if isinstance(found, TableDifference) else _files_json(found)
    return head | body


def _table_json(found: TableDifference) -> Json:
    rows = found.rows
    return {
        "identical": found.is_identical,
        "schema": _schema_json(found.schema),
        "counts": {
            "from": found.before_count,
            "to": found.after_count,
            "added": None if rows is None else rows.added,
            "removed": None if rows is None else rows.removed,
            "changed": None if rows is None else rows.changed,
        },
        "samples": {
            "added": rows.added_rows if rows else [],
            "removed": rows.removed_rows if rows else [],
            "changed": [
                {"key": changed.key, "from": changed.before, "to": changed.after}
                for changed in (rows.changed_rows if rows else ())
            ],
        },
        "key": list(found.key),
        "basis": found.basis.value,
    }


def _schema_json(changes: SchemaChanges) -> Json:
    def field(found: Field) -> Json:
        return {"name": found.path, "type": found.type, "required": found.required}

    return {
        "added": [field(found) for found in changes.added],
        "removed": [field(found) for found in changes.removed],
        "renamed": [{"from": old.path, "to": new.path} for old, new in changes.renamed],
        "retyped": [
            {"name": new.path, "from": old.type, "to": new.type} for old, new in changes.retyped
        ],
        "required": [
            {"name": new.path, "from": old.required, "to": new.required}
            for old, new in changes.required
        ],
    }


def _files_json(found: FilesDifference) -> Json:
    return {
        "identical": not any(found.counts.values()),
        "schema": {},
        "counts": {
            "from": found.before_count,
            "to": found.after_count,
            **{kind.value: count for kind, count in found.counts.items()},
        },
        "samples": {
            kind.value: [_change_json(change) for change in changes]
            for kind, changes in found.samples.items()
        },
        "key": ["path"],
        "basis": "files",
    }


def _change_json(change: Change) -> Json:
    before = file_json(change.before) if change.before else None
    after = file_json(change.after) if change.after else None
    if before and after:
        return {"path": after["path"], "from": before, "to": after}
    return before or after or {}
