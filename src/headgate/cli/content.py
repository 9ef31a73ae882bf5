"""What is in a dataset, as a person reads it."""

from __future__ import annotations

from headgate.cli.formatting import count_text, size_text
from headgate.cli.output import note, show_table
from headgate.handles.nouns import Json
from headgate.tables.reading import type_text


def show_content(content: Json, *, rows: int) -> None:
    """A table's columns and rows, or files, from the document of `dataset show`."""
    if "files" in content:
        note(f"{count_text(content['files'], 'file')}, {size_text(content['bytes'])}")
        if rows:
            show_table(("PATH",), ([path] for path in content["paths"]), empty="no files.")
        return
    show_table(
        ("COLUMN", "TYPE", ""),
        ((c["name"], type_text(c["type"]), "required" * c["required"]) for c in content["schema"]),
        empty="the table was dropped here.",
    )
    if content["partitioning"]:
        note(f"partitioned by {', '.join(content['partitioning'])}")
    for name, value in sorted(content["properties"].items()):
        note(f"{name} = {value}")
    if content["schema"]:
        known = content["row_count"] is not None
        note(count_text(content["row_count"], "row") if known else "only Spark can count its rows")
    if rows and content["schema"]:
        names = [column["name"] for column in content["schema"]]
        values = ([row.get(name) for name in names] for row in content["rows"])
        show_table(names, values, empty="no rows")
