"""Minimum cost of a durable change on a catalog: its driver alone, one row, one commit."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

import psycopg

from bench.cases import Timed
from headgate.catalog.database import Database

_INSERT = "INSERT INTO store (\"key\", value) VALUES ('bench', '0')"
# A different value each time: a database may skip an update that changes nothing.
_UPDATE = "UPDATE store SET value = '{}' WHERE \"key\" = 'bench'"


@contextmanager
def floor_of(database: Database) -> Iterator[Timed]:
    """Yield a change that can be repeated, as durable as those of the catalog."""
    if database.dialect == "sqlite":
        with closing(sqlite3.connect(str(database.path), isolation_level=None)) as connection:
            connection.execute("PRAGMA busy_timeout = 30000")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute(_INSERT)
            yield _sqlite_change(connection)
    else:
        url = database.url.set(drivername="postgresql").render_as_string(hide_password=False)
        with psycopg.connect(url, autocommit=True) as session:
            session.execute(_INSERT)
            yield _postgres_change(session)


def _sqlite_change(connection: sqlite3.Connection) -> Timed:
    values = itertools.count(1)

    def change() -> None:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(_UPDATE.format(next(values)))
        connection.execute("COMMIT")

    return change


def _postgres_change(session: psycopg.Connection) -> Timed:
    values = itertools.count(1)

    def change() -> None:
        session.execute("BEGIN")
        session.execute(_UPDATE.format(next(values)).encode())
        session.execute("COMMIT")

    return change
