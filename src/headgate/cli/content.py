"""What is in a dataset at a transaction: columns and rows, or how many files."""

from __future__ import annotations

from typing import Any

import orjson

from headgate.cli.formatting import count_text, size_text
from headgate.cli.output import note, show_table
from headgate.errors import Invalid
from headgate.files.writing import root_of
from headgate.model.nouns import Dataset, DatasetKind, Transaction
from headgate.store import Store
from headgate.tables.rows import columns_of, read_rows

Content = dict[str, Any]


def look_inside(
    store: Store, dataset: Dataset, shown: Transaction | None, *, rows: int | None
) -> Content:
    """`{"columns", "rows"}` of a table, `{"files", "bytes"}` of a tree of files."""
    if dataset.kind is DatasetKind.FILES:
        if rows is not None:
            raise Invalid(
                f"dataset {dataset.name} is a tree of files and has no rows. "
                f"`headgate files ls {dataset.name}` lists its files.",
                dataset=str(dataset.name),
            )
        size = store.trees.measure(root_of(shown.version)) if shown else None
        return {"files": size.entries if size else 0, "bytes": size.bytes if size else 0}
    if shown is None or shown.version is None:
        return {"columns": [], "rows": []} if rows is not None else {"columns": []}
    location = shown.version.location
    columns = columns_of(store.tables.read(location).metadata)
    content: Content = {
        "columns": [{"name": c.name, "type": c.type, "required": c.required} for c in columns]
    }
    if rows is not None:
        content["rows"] = read_rows(location, limit=rows, options=store.settings.environ)
    return content


def show_content(content: Content) -> None:
    """The same for a person."""
    if "files" in content:
        note(f"{count_text(content['files'], 'file')}, {size_text(content['bytes'])}")
        return
    show_table(
        ("COLUMN", "TYPE", ""),
        ((c["name"], _type(c["type"]), "required" * c["required"]) for c in content["columns"]),
        empty="the table was dropped here.",
    )
    if "rows" in content:
        names = [column["name"] for column in content["columns"]]
        values = ([row.get(name) for name in names] for row in content["rows"])
        show_table(names, values, empty="no rows")


def _type(type: Any) -> str:
    return type if isinstance(type, str) else orjson.dumps(type).decode()
