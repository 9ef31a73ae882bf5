"""The difference between two versions, as JSON and as a person reads it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headgate.cli.formatting import count_text
from headgate.cli.nouns import Json, file_json
from headgate.cli.output import show_line, show_table
from headgate.files.difference import Change, ChangeKind
from headgate.handles.comparing import FilesDifference
from headgate.handles.reading import Sides
from headgate.model.nouns import Transaction
from headgate.tables.comparing import TableDifference
from headgate.tables.reading import type_text
from headgate.tables.rows import Row
from headgate.tables.schema_changes import Field, SchemaChanges

Difference = TableDifference | FilesDifference

_MARKS = {ChangeKind.ADDED: "+", ChangeKind.REMOVED: "-", ChangeKind.CHANGED: "~"}


# --- JSON -----------------------------------------------------------------------------------


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


# --- for a person ---------------------------------------------------------------------------


def show_difference(sides: Sides, found: Difference) -> None:
    """Schema, counts and samples, of which what is empty is left out."""
    show_line(f"{sides.dataset.name}: {_moved(sides)}")
    if isinstance(found, FilesDifference):
        show_line(_files_text(found))
        for kind, changes in found.samples.items():
            for change in changes:
                show_line(f"{_MARKS[kind]} {change.path}")
        return
    for line in _schema_lines(found.schema):
        show_line(line)
    show_line(_rows_text(found))
    if found.rows is not None:
        _show_rows("added", found.rows.added_rows)
        _show_rows("removed", found.rows.removed_rows)
        _show_changed(found)


def summary_row(sides: Sides, found: Difference) -> tuple[str, ...]:
    """One line about one dataset."""
    if isinstance(found, FilesDifference):
        text = _files_text(found)
    else:
        text = "; ".join([*_schema_lines(found.schema), _rows_text(found)])
    before, after = _id(sides.before), _id(sides.after)
    return str(sides.dataset.name), sides.dataset.kind.value, before, after, text


def _moved(sides: Sides) -> str:
    return f"{_id(sides.before)} → {_id(sides.after)}"


def _id(transaction: Transaction | None) -> str:
    return transaction.id if transaction else "nothing"


def _schema_lines(changes: SchemaChanges) -> list[str]:
    lines = [f"+ column {found.path} {type_text(found.type)}" for found in changes.added]
    lines += [f"- column {found.path} {type_text(found.type)}" for found in changes.removed]
    lines += [f"~ column {old.path} is now {new.path}" for old, new in changes.renamed]
    lines += [
        f"~ column {new.path} {type_text(old.type)} → {type_text(new.type)}"
        for old, new in changes.retyped
    ]
    lines += [
        f"~ column {new.path} is {'now' if new.required else 'no longer'} required"
        for _, new in changes.required
    ]
    return lines


def _rows_text(found: TableDifference) -> str:
    counts = f"{_count(found.before_count)} → {_count(found.after_count)} rows"
    if found.rows is None:
        return counts
    if not found.rows:
        return f"{counts}, the same"
    text = f"{counts}: {found.rows.added} added, {found.rows.removed} removed"
    if not found.key:
        return text
    return f"{text}, {found.rows.changed} changed by {', '.join(found.key)}"


def _files_text(found: FilesDifference) -> str:
    changes = ", ".join(f"{count} {kind}" for kind, count in found.counts.items())
    return f"{found.before_count} → {count_text(found.after_count, 'file')}: {changes}"


def _count(count: int | None) -> str:
    return "?" if count is None else str(count)


def _show_rows(title: str, rows: Sequence[Row]) -> None:
    if not rows:
        return
    show_line(f"\n{title}:")
    names = list(rows[0])
    show_table(names, ([row[name] for name in names] for row in rows), empty="")


def _show_changed(found: TableDifference) -> None:
    rows = found.rows.changed_rows if found.rows else []
    if not rows:
        return
    show_line("\nchanged:")
    lines: list[Sequence[Any]] = [
        (*changed.key.values(), new, changed.before[old], changed.after[new])
        for changed in rows
        for old, new in zip(changed.before, changed.after, strict=True)
    ]
    show_table((*found.key, "COLUMN", "FROM", "TO"), lines, empty="")
