"""The evaluating engine: an in-memory DuckDB that can reach nothing outside itself."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import duckdb
import pyarrow as pa

from headgate.errors import Invalid, WorkFailed

_SETTINGS = (
    "SET enable_external_access = false",
    "SET autoinstall_known_extensions = false",
    "SET autoload_known_extensions = false",
    "SET TimeZone = 'UTC'",
    # Else a name that is no table's would be looked for among Python's variables.
    "SET python_enable_replacements = false",
    "SET lock_configuration = true",
)


@functools.cache
def _database_of(process: int) -> duckdb.DuckDBPyConnection:
    database = duckdb.connect(":memory:")
    for setting in _SETTINGS:
        database.execute(setting)
    return database


def _database() -> duckdb.DuckDBPyConnection:
    """One for the process: all that a mutation makes in it is temporary and its own."""
    return _database_of(os.getpid())


class EngineRefused(Exception):
    """The engine's own words for a statement that it could not carry out."""


class Engine:
    """Evaluates SQL over Arrow tables and tables of its own."""

    def __init__(self) -> None:
        self._connection = _database().cursor()
        self._made = 0

    def new_name(self, prefix: str) -> str:
        self._made += 1
        return f"__{prefix}{self._made}"

    def register(self, rows: pa.Table, prefix: str = "arrow") -> str:
        """A name under which SQL sees these rows."""
        name = self.new_name(prefix)
        self._connection.register(name, rows)
        return name

    def do(self, sql: str) -> None:
        with _said():
            self._connection.execute(sql)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with _said():
            found: list[tuple[Any, ...]] = self._connection.execute(sql).fetchall()
            return found

    def value(self, sql: str) -> Any:
        return self.rows(sql)[0][0]

    def arrow(self, sql: str) -> pa.Table:
        with _said():
            relation = self._connection.sql(sql)
            return relation.to_arrow_table()

    def close(self) -> None:
        self._connection.close()


@contextmanager
def _said() -> Iterator[None]:
    try:
        yield
    except duckdb.OutOfMemoryException as error:
        raise WorkFailed(
            "the change does not fit into this machine's memory; nothing was changed. Bring it "
            "with `headgate load --engine spark`, or in parts."
        ) from error
    except duckdb.Error as error:
        raise EngineRefused(str(error)) from error


def quote(name: str) -> str:
    """A name as SQL takes it whatever is in it."""
    return '"' + name.replace('"', '""') + '"'


def columns_sql(columns: Sequence[str], alias: str = "") -> str:
    prefix = f"{alias}." if alias else ""
    return ", ".join(f"{prefix}{quote(column)}" for column in columns)


def same_sql(columns: Sequence[str], one: str, other: str) -> str:
    """Whether two rows agree in these columns, where nothing equals nothing."""
    return " AND ".join(
        f"{one}.{quote(c)} IS NOT DISTINCT FROM {other}.{quote(c)}" for c in columns
    )


def equal_sql(columns: Sequence[str], one: str, other: str) -> str:
    """As `same_sql`, for columns that always have a value; joins by it are quick."""
    return " AND ".join(f"{one}.{quote(c)} = {other}.{quote(c)}" for c in columns)


def literal(value: Any) -> str:
    """A value of a schema file as SQL writes it."""
    match value:
        case None:
            return "NULL"
        case bool():
            return "TRUE" if value else "FALSE"
        case int() | float():
            return repr(value)
        case str():
            return "'" + value.replace("'", "''") + "'"
    raise Invalid(f"{value!r} cannot be a default or an enum's value: write text or a number.")
