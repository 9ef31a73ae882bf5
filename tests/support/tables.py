"""Tables without a JVM: PyIceberg writes them through a store's own endpoint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.rest import RestCatalog

from headgate.spark.workplace import EmbeddedEndpoint
from headgate.store.embedded import Store
from headgate.tables.scan import file_properties


@contextmanager
def iceberg_client(store: Store, context: str) -> Iterator[RestCatalog]:
    """Open a PyIceberg catalog on one context of the store."""
    endpoint = EmbeddedEndpoint(store.database, store.tables, store.rules, store.settings.environ)
    try:
        yield RestCatalog(
            "headgate",
            uri=endpoint.url,
            warehouse=context,
            token=endpoint.tokens.issue(store.settings.actor),
            **file_properties(store.settings.environ),
        )
    finally:
        endpoint.stop()


def create_tables(store: Store, branch: str, **rows: list[dict[str, Any]]) -> None:
    """Create tables `shop.<name>` on a branch, each with its rows."""
    with iceberg_client(store, branch) as client:
        client.create_namespace_if_not_exists("shop")
        for name, content in rows.items():
            data = pa.Table.from_pylist(content)
            client.create_table(f"shop.{name}", data.schema).append(data)


def read_table(store: Store, context: str, name: str) -> list[dict[str, Any]]:
    """Return all rows that a context shows of a table."""
    with iceberg_client(store, context) as client:
        found: list[dict[str, Any]] = client.load_table(name).scan().to_arrow().to_pylist()
        return found
