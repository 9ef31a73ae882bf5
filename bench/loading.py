"""Bulk load of rows into a catalog, by the fastest method of each database."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager

import psycopg
from psycopg import sql

from bench.filling import COLUMNS, Filled, Row, Sink
from headgate.catalog.database import Database
from headgate.catalog.migrate import ensure_schema


def load(database: Database, make: Callable[[Sink], Filled]) -> Filled:
    """Create the schema and fill it; indexes are built afterwards, over all rows at once."""
    ensure_schema(database, create=True)
    database.close()
    loading = _into_sqlite if database.dialect == "sqlite" else _into_postgres
    with loading(database) as (sink, finish):
        filled = make(sink)
        finish(filled)
    return filled


Finish = Callable[[Filled], None]
_COUNTER = "UPDATE log_counter SET number = {}, last_at = {} WHERE id = 1"


class _Sqlite:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def add(self, table: str, rows: Sequence[Row]) -> None:
        columns = COLUMNS[table]
        marks = ", ".join("?" for _ in columns)
        statement = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})"
        self._connection.executemany(statement, rows)


@contextmanager
def _into_sqlite(database: Database) -> Iterator[tuple[Sink, Finish]]:
    with closing(sqlite3.connect(str(database.path), isolation_level=None)) as connection:
        # No other connection exists yet, and a failed fill is discarded.
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA cache_size = -200000")
        indexes = connection.execute(
            "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
        ).fetchall()
        for name, _ in indexes:
            connection.execute(f'DROP INDEX "{name}"')
        connection.execute("BEGIN")

        def finish(filled: Filled) -> None:
            connection.execute(_COUNTER.format(filled.publications, filled.last_at))
            for _, statement in indexes:
                connection.execute(statement)
            connection.execute("COMMIT")
            connection.execute("PRAGMA journal_mode = WAL")

        yield _Sqlite(connection), finish


class _Postgres:
    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection

    def add(self, table: str, rows: Sequence[Row]) -> None:
        statement = sql.SQL("COPY {} ({}) FROM STDIN").format(
            sql.Identifier(table), sql.SQL(", ").join(map(sql.Identifier, COLUMNS[table]))
        )
        with self._connection.cursor() as cursor, cursor.copy(statement) as copy:
            for row in rows:
                copy.write_row(row)


@contextmanager
def _into_postgres(database: Database) -> Iterator[tuple[Sink, Finish]]:
    url = database.url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET maintenance_work_mem = '256MB'")
        # Indexes that implement a constraint stay.
        indexes = connection.execute(
            "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = current_schema()"
            " AND indexname NOT IN (SELECT conname FROM pg_constraint)"
        ).fetchall()
        for name, _ in indexes:
            connection.execute(sql.SQL("DROP INDEX {}").format(sql.Identifier(name)))

        def finish(filled: Filled) -> None:
            connection.execute(_COUNTER.format(filled.publications, filled.last_at).encode())
            for _, statement in indexes:
                connection.execute(statement.encode())
            # Autovacuum does this over time: plans are then those of a store in use.
            connection.execute("VACUUM ANALYZE")

        yield _Postgres(connection), finish
