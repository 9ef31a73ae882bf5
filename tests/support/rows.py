"""Stores with a small graph in them, and its rows as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headgate.catalog.log import list_publications
from headgate.catalog.records import find_transaction
from headgate.model.nouns import Publication
from headgate.rows.outcome import AppliedSchema
from headgate.settings import Settings
from headgate.store.embedded import Store
from headgate.tables.inspect import read_rows

GRAPH = """
[dataset."graph.person"]
columns = {id = "string", name = "string", age = {type = "int", default = 7}}
key = ["id"]
buckets = 2

[dataset."graph.knows"]
columns = {id = "long", src = "string", dst = "string"}
key = ["id"]
buckets = 2
references = [
    {column = "src", dataset = "graph.person", on_delete = "cascade"},
    {column = "dst", dataset = "graph.person"},
]
unique = [["src", "dst"]]
cardinality = [{per = "src", max = 3}]
"""
PERSON, KNOWS = "graph.person", "graph.knows"
_ALL = 1_000_000


def apply_text(store: Store, text: str, *, branch: str = "master") -> AppliedSchema:
    """Apply a schema given as text."""
    path = store.settings.root / "schema.toml"
    path.write_text(text)
    return store.rows.apply_schema(path, branch=branch)


def made_settings(catalog_url: str, root: Path, *, actor: str = "ana") -> Settings:
    """Return the settings of a store whose catalog already has its tables."""
    return Settings(
        root=root,
        catalog=catalog_url,
        warehouse=str(root / "warehouse"),
        actor=actor,
        cache=root / "cache",
    )


def graph_store(catalog_url: str, root: Path, *people: str) -> Store:
    """Create a store with the graph's tables on master, and these people."""
    store = Store(made_settings(catalog_url, root))
    apply_text(store, GRAPH)
    if people:
        store.mutate("master", insert_people(*people))
    return store


def table_store(catalog_url: str, root: Path, name: str, columns: Mapping[str, str]) -> Store:
    """Create a store with one empty table on master: a key `id`, and columns by their types."""
    store = Store(made_settings(catalog_url, root))
    typed = ", ".join(f'{column} = "{kind}"' for column, kind in columns.items())
    apply_text(store, f'[dataset."{name}"]\ncolumns = {{id = "long", {typed}}}\nkey = ["id"]')
    return store


def insert_people(*ids: str) -> str:
    values = ", ".join(f"('{id}', '{id.upper()}')" for id in ids)
    return f"insert into graph.person (id, name) values {values}"


def rows_of(store: Store, name: str, branch: str = "master") -> list[dict[str, Any]]:
    """Return all rows that a branch shows of a table, in a fixed order."""
    view = store.dataset(name).branch(branch).load().view
    shown = store.database.read(lambda c: find_transaction(c, view)) if view else None
    if shown is None or shown.version is None:
        return []
    found = read_rows(store.tables.read(shown.version.location), limit=_ALL, options={})
    return sorted(found, key=repr)


def ids_of(store: Store, name: str, branch: str = "master") -> list[Any]:
    return sorted(row["id"] for row in rows_of(store, name, branch))


def publications(store: Store) -> list[Publication]:
    """Return all publications, newest first."""
    return store.database.read(lambda c: list_publications(c, limit=10_000))
