"""What is in a dataset at a transaction: a table's columns and rows, or files."""

from __future__ import annotations

import itertools
from typing import Any

from headgate.cli.formatting import count_text, size_text
from headgate.cli.nouns import file_json
from headgate.cli.output import note, show_table
from headgate.files.writing import root_of
from headgate.model.nouns import Dataset, DatasetKind, Transaction
from headgate.store import Store
from headgate.tables.reading import (
    columns_of,
    find_row_count,
    partitioning_of,
    read_rows,
    type_text,
)

Content = dict[str, Any]


def look_inside(store: Store, dataset: Dataset, shown: Transaction | None, *, rows: int) -> Content:
    """A table's `{"schema", "partitioning", "properties", "row_count", "rows"}`; `row_count` is
    null where only Spark can tell. A tree's `{"files", "bytes", "paths"}`.
    """
    if dataset.kind is DatasetKind.FILES:
        return _look_into_files(store, shown, paths=rows)
    if shown is None or shown.version is None:
        return {"schema": [], "partitioning": [], "properties": {}, "row_count": 0, "rows": []}
    version, options = store.tables.read(shown.version.location), store.settings.environ
    return {
        "schema": [
            {"name": column.name, "type": column.type, "required": column.required}
            for column in columns_of(version.metadata)
        ],
        "partitioning": partitioning_of(version.metadata),
        "properties": version.metadata.get("properties") or {},
        "row_count": find_row_count(version, options=options),
        "rows": read_rows(version, limit=rows, options=options),
    }


def _look_into_files(store: Store, shown: Transaction | None, *, paths: int) -> Content:
    root = root_of(shown.version if shown else None)
    size = store.trees.measure(root)
    entries = itertools.islice(store.trees.walk(root), paths) if paths else ()
    return {
        "files": size.entries,
        "bytes": size.bytes,
        "paths": [file_json(entry)["path"] for entry in entries],
    }


def show_content(content: Content, *, rows: int) -> None:
    """The same for a person."""
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
