"""What is in a dataset at a transaction: a table's columns and rows, or files."""

from __future__ import annotations

import itertools

from headgate.catalog.database import Connection
from headgate.catalog.find import list_branches, load_dataset
from headgate.catalog.showing import find_shown, load_shown
from headgate.files.writing import root_of
from headgate.handles.nouns import Json, dataset_json, file_json, transaction_json
from headgate.handles.parts import StoreParts
from headgate.model.contexts import parse_context
from headgate.model.names import DatasetName
from headgate.model.nouns import Branch, Dataset, DatasetKind, Transaction
from headgate.model.options import check_limit
from headgate.tables.reading import columns_of, find_row_count, partitioning_of, read_rows


def show_dataset(store: StoreParts, name: DatasetName, *, context: str | None, rows: int) -> Json:
    """The document of `headgate dataset show`: the noun, what a context shows, its content.

    Where nobody named one it is the primary branch, also of a dataset that has none of the name.
    """
    check_limit(rows)
    where = parse_context(context or store.settings.builds.branch)
    find = load_shown if context else find_shown

    def read(connection: Connection) -> tuple[Dataset, list[Branch], Transaction | None]:
        found = load_dataset(connection, name)
        branches = list_branches(connection, found.id)
        return found, branches, find(connection, where, found)

    dataset, branches, shown = store.database.read(read)
    noun = dataset_json(dataset, branches) | {
        "context": str(where),
        "transaction": shown.id if shown else None,
        "shown": transaction_json(shown) if shown else None,
    }
    return noun | look_inside(store, dataset, shown, rows=rows)


def look_inside(
    store: StoreParts, dataset: Dataset, shown: Transaction | None, *, rows: int
) -> Json:
    """A table's `{"schema", "partitioning", "properties", "row_count", "rows"}`; `row_count` is
    null where only Spark can tell. A tree's `{"files", "bytes", "paths"}`.
    """
    if dataset.kind is DatasetKind.FILES:
        return _look_into_files(store, shown, paths=rows)
    if shown is None or shown.version is None:
        return {"schema": [], "partitioning": [], "properties": {}, "row_count": 0, "rows": []}
    version = store.contents.tables.read(shown.version.location)
    options = store.settings.environ
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


def _look_into_files(store: StoreParts, shown: Transaction | None, *, paths: int) -> Json:
    root = root_of(shown.version if shown else None)
    size = store.trees.measure(root)
    entries = itertools.islice(store.trees.walk(root), paths) if paths else ()
    return {
        "files": size.entries,
        "bytes": size.bytes,
        "paths": [file_json(entry)["path"] for entry in entries],
    }
