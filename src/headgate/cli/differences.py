"""The difference between two versions as a person reads it, from the document of `diff`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headgate.cli.formatting import count_text
from headgate.cli.output import show_line, show_table
from headgate.handles.nouns import Json
from headgate.tables.reading import type_text

_MARKS = {"added": "+", "removed": "-", "changed": "~"}


def show_difference(found: Json) -> None:
    """Schema, counts and samples, of which what is empty is left out."""
    show_line(f"{found['dataset']}: {_id(found['from'])} → {_id(found['to'])}")
    if _is_files(found):
        show_line(_files_text(found))
        for kind, changes in found["samples"].items():
            for change in changes:
                show_line(f"{_MARKS[kind]} {change['path']}")
        return
    for line in _schema_lines(found["schema"]):
        show_line(line)
    show_line(_rows_text(found))
    _show_rows("added", found["samples"]["added"])
    _show_rows("removed", found["samples"]["removed"])
    _show_changed(found)


def summary_row(found: Json) -> tuple[str, ...]:
    """One line about one dataset."""
    if _is_files(found):
        text = _files_text(found)
    else:
        text = "; ".join([*_schema_lines(found["schema"]), _rows_text(found)])
    return found["dataset"], found["kind"], _id(found["from"]), _id(found["to"]), text


def _is_files(found: Json) -> bool:
    return bool(found["basis"] == "files" and found["kind"] == "files")


def _id(transaction: str | None) -> str:
    return transaction or "nothing"


def _schema_lines(changes: Mapping[str, Any]) -> list[str]:
    lines = [f"+ column {new['name']} {type_text(new['type'])}" for new in changes["added"]]
    lines += [f"- column {old['name']} {type_text(old['type'])}" for old in changes["removed"]]
    lines += [f"~ column {one['from']} is now {one['to']}" for one in changes["renamed"]]
    lines += [
        f"~ column {one['name']} {type_text(one['from'])} → {type_text(one['to'])}"
        for one in changes["retyped"]
    ]
    lines += [
        f"~ column {one['name']} is {'now' if one['to'] else 'no longer'} required"
        for one in changes["required"]
    ]
    return lines


def _rows_text(found: Json) -> str:
    counts = found["counts"]
    text = f"{_count(counts['from'])} → {_count(counts['to'])} rows"
    if counts["added"] is None:
        return text
    if not (counts["added"] or counts["removed"] or counts["changed"]):
        return f"{text}, the same"
    text = f"{text}: {counts['added']} added, {counts['removed']} removed"
    if not found["key"]:
        return text
    return f"{text}, {counts['changed']} changed by {', '.join(found['key'])}"


def _files_text(found: Json) -> str:
    counts = found["counts"]
    changes = ", ".join(f"{counts[kind]} {kind}" for kind in _MARKS)
    return f"{counts['from']} → {count_text(counts['to'], 'file')}: {changes}"


def _count(count: int | None) -> str:
    return "?" if count is None else str(count)


def _show_rows(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    if not rows:
        return
    show_line(f"\n{title}:")
    names = list(rows[0])
    show_table(names, ([row[name] for name in names] for row in rows), empty="")


def _show_changed(found: Json) -> None:
    rows = found["samples"]["changed"]
    if not rows:
        return
    show_line("\nchanged:")
    lines: list[Sequence[Any]] = [
        (*changed["key"].values(), new, changed["from"][old], changed["to"][new])
        for changed in rows
        for old, new in zip(changed["from"], changed["to"], strict=True)
    ]
    show_table((*found["key"], "COLUMN", "FROM", "TO"), lines, empty="")
