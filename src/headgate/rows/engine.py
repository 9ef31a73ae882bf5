"""The evaluating engine: an in-memory DuckDB that can reach nothing outside itself."""

from __future__ import annotations

import functools
import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import Invalid, WorkFailed
from headgate.tables.scan import AMONG_LIMIT, Among, Condition, Within

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


# Rows between the engine and a table: the same values in the table's own Arrow types.


def from_engine(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows with exactly the schema's columns and types; nothing is rounded or cut."""
    columns = [_fitted(rows.column(field.name), field) for field in schema]
    # Whether a value is missing is the validator's question, and it names the row.
    open_schema = pa.schema([field.with_nullable(True) for field in schema])
    return pa.table(columns, schema=open_schema)


def _fitted(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    try:
        return _column(column, field.type)
    except pa.ArrowInvalid as error:
        # The engine knows no binary of a fixed length, so that one of another came as far as here.
        raise Invalid(
            f"column {field.name!r} cannot hold one of its values: {error}. Nothing was changed.",
            column=field.name,
        ) from error


def _column(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if column.type == kind:
        return column
    if isinstance(kind, pa.UuidType):
        return _uuids(column, kind)
    return column.cast(kind)


def _uuids(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """The engine hands UUIDs out as text."""
    values = [None if v is None else uuid.UUID(str(v)).bytes for v in column.to_pylist()]
    storage = pa.array(values, pa.binary(16))
    return pa.chunked_array([pa.ExtensionArray.from_storage(kind, storage)])


# The first and the last day that dates and moments can have, in days from 1970: outside of the
# years 1 to 9999 the statistics of a file cannot be written.
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
_UNITS_IN_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}


def is_beyond_years(column: pa.ChunkedArray) -> bool:
    """Whether a date or a moment is there that is not in the years 1 to 9999."""
    kind = column.type
    if pa.types.is_date32(kind):
        first, end = _FIRST_DAY, _LAST_DAY + 1
        numbers = column.cast(pa.int32())
    elif pa.types.is_timestamp(kind):
        day = _UNITS_IN_DAY[kind.unit]
        first, end = _FIRST_DAY * day, (_LAST_DAY + 1) * day
        numbers = column.cast(pa.int64())
    else:
        return False
    found = pc.min_max(numbers).as_py()
    return found["min"] is not None and not first <= found["min"] <= found["max"] < end


# What the values of some rows say of the rows of another table that may meet them.


def conditions_of(engine: Engine, relation: str, column: str) -> Condition:
    """The values themselves while they are few, else the least and the greatest."""
    name = quote(column)
    found = engine.rows(
        f"SELECT DISTINCT {name} FROM {relation} WHERE {name} IS NOT NULL LIMIT {AMONG_LIMIT + 1}"
    )
    if len(found) <= AMONG_LIMIT:
        return Among(column=column, values=frozenset(row[0] for row in found))
    [(low, high)] = engine.rows(f"SELECT min({name}), max({name}) FROM {relation}")
    return Within(column=column, low=low, high=high)


# When Arrow is the wrong engine: how much is too much for one machine's memory.

# Over so much the work is better done by Spark.
ARROW_BYTES = 2 * 1024**3
_GIB = 1024**3
_ELSEWHERE = "`--engine spark` does the same work in parts, on a cluster where there is one."


def advice_on_load(size_bytes: int) -> str | None:
    """A word for people whose files are better loaded by Spark; None where Arrow is right."""
    if size_bytes < ARROW_BYTES:
        return None
    return f"{size_bytes / _GIB:.1f} GiB are loaded on this machine, in memory. {_ELSEWHERE}"


def advice_on_optimize(dataset: str, size_bytes: int) -> str | None:
    """A word for people whose table is better rewritten by Spark; None where Arrow is right."""
    if size_bytes < ARROW_BYTES:
        return None
    return (
        f"{dataset} holds {size_bytes / _GIB:.1f} GiB, which are rewritten on this machine, in "
        f"memory, a partition at a time. {_ELSEWHERE}"
    )
