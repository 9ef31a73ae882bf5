"""Catalogs for tests: made once, and then copied."""

from __future__ import annotations

from headgate.catalog.database import Database
from headgate.catalog.migrate import ensure_schema


def make_catalog(url: str) -> None:
    """Gives an empty database the catalog's tables."""
    database = Database(url)
    ensure_schema(database, create=True)
    database.close()
