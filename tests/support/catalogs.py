"""Catalogs for tests: created once, then copied."""

from __future__ import annotations

from headgate.catalog.database import Database
from headgate.catalog.migrate import ensure_schema


def make_catalog(url: str) -> None:
    """Create the tables of the catalog in an empty database."""
    database = Database(url)
    ensure_schema(database, create=True)
    database.close()
