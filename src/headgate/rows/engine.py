"""The SQL engine of writes: an in-memory DuckDB without access to anything outside it.

Also the SQL fragments that its callers share, conversions between its types and a table's, and
the size from which Spark is the better engine.
"""

import functools
import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import Invalid, WorkFailed, find_quoted_failure
from headgate.tables.scan import AMONG_LIMIT, Among, Condition, Within

_SETTINGS = (
    "SET enable_external_access = false",
    "SET autoinstall_known_extensions = false",
    "SET autoload_known_extensions = false",
    "SET TimeZone = 'UTC'",
    # Without it, an unknown table name is looked up among Python's variables.
    "SET python_enable_replacements = false",
    "SET lock_configuration = true",
)


# Set before the first use, in a process that has limits.
_limits: list[str] = []


@functools.cache
def _database(process: int) -> duckdb.DuckDBPyConnection:
    """Return the process's one database: a write creates only temporary tables, all its own."""
    database = duckdb.connect(":memory:")
    for setting in (*_limits, *_SETTINGS):
        database.execute(setting)
    return database


def limit_memory(size_bytes: int) -> None:
    """Let the engine of this process use so much memory, and no disk in place of it."""
    _limits[:] = [f"SET memory_limit = '{size_bytes}B'", "SET temp_directory = ''"]
    # Opened now, because it takes longer than a small statement.
    Engine().close()


class EngineError(Exception):
    """The engine's message for a statement that it could not execute."""


class Engine:
    """Evaluates SQL over Arrow tables and temporary tables."""

    def __init__(self) -> None:
        self._connection = _database(os.getpid()).cursor()
        self._names = 0

    def new_name(self, prefix: str) -> str:
        self._names += 1
        return f"__{prefix}{self._names}"

    def register(self, rows: Any, prefix: str = "arrow", *, name: str | None = None) -> str:
        """Return a name under which SQL reads an Arrow table, or a stream of Arrow."""
        name = name or self.new_name(prefix)
        self._connection.register(name, rows)
        return name

    def insert(self, table: str, rows: pa.RecordBatch | pa.Table, columns: str) -> None:
        """Insert these columns of rows into a table, by position; the rows are not kept."""
        source = self.register(rows)
        self.execute(f"INSERT INTO {table} SELECT {columns} FROM {source}")
        self._connection.unregister(source)

    def execute(self, sql: str) -> None:
        with _engine_errors():
            self._connection.execute(sql)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with _engine_errors():
            found: list[tuple[Any, ...]] = self._connection.execute(sql).fetchall()
            return found

    def value(self, sql: str) -> Any:
        return self.rows(sql)[0][0]

    def arrow(self, sql: str) -> pa.Table:
        with _engine_errors():
            return self._connection.sql(sql).to_arrow_table()

    @contextmanager
    def reading(self, sql: str) -> Iterator[pa.RecordBatchReader]:
        """Yield the rows of a query as they are computed."""
        with _engine_errors():
            yield self._connection.sql(sql).to_arrow_reader()

    def close(self) -> None:
        self._connection.close()


@contextmanager
def _engine_errors() -> Iterator[None]:
    try:
        yield
    except duckdb.OutOfMemoryException as error:
        if _limits:
            raise MemoryError(str(error)) from error
        raise WorkFailed(
            "the statement does not fit into this machine's memory; nothing was changed. Use "
            "`headgate load` or `sql` with --engine spark, or do it in parts."
        ) from error
    except duckdb.Error as error:
        raise find_quoted_failure(str(error)) or EngineError(str(error)) from error


def quote(name: str) -> str:
    """Return a name as a quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def columns_sql(columns: Sequence[str], alias: str = "") -> str:
    prefix = f"{alias}." if alias else ""
    return ", ".join(f"{prefix}{quote(column)}" for column in columns)


def same_sql(columns: Sequence[str], one: str, other: str) -> str:
    """Return a condition that two rows agree in these columns, where NULL equals NULL."""
    return " AND ".join(
        f"{one}.{quote(c)} IS NOT DISTINCT FROM {other}.{quote(c)}" for c in columns
    )


def equal_sql(columns: Sequence[str], one: str, other: str) -> str:
    """Like `same_sql`, for columns without NULL; joins on it are faster."""
    return " AND ".join(f"{one}.{quote(c)} = {other}.{quote(c)}" for c in columns)


def literal(value: Any) -> str:
    """Return a value of a schema file as an SQL literal."""
    match value:
        case None:
            return "NULL"
        case bool():
            return "TRUE" if value else "FALSE"
        case int() | float():
            return repr(value)
        case str():
            return "'" + value.replace("'", "''") + "'"
    raise Invalid(f"{value!r} cannot be a default or an enum's value: use text or a number.")


def from_engine(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the rows with exactly the schema's columns and types; nothing is rounded or cut."""
    columns = [_cast(rows.column(field.name), field) for field in schema]
    # The validator reports missing values, with their row.
    open_schema = pa.schema([field.with_nullable(True) for field in schema])
    return pa.table(columns, schema=open_schema)


def _cast(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    if column.type == field.type:
        return column
    try:
        return uuids(column) if isinstance(field.type, pa.UuidType) else column.cast(field.type)
    except pa.ArrowInvalid as error:
        # The engine has no binary type of a fixed length, so a wrong length is found here.
        raise Invalid(
            f"column {field.name!r} cannot hold one of its values: {error}. Nothing was changed.",
            column=field.name,
        ) from error


def uuids(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert UUIDs from text."""
    values = [None if v is None else uuid.UUID(str(v)).bytes for v in column.to_pylist()]
    storage = pa.array(values, pa.binary(16))
    return pa.chunked_array([pa.ExtensionArray.from_storage(pa.uuid(), storage)])


# The first and last day of the years 1 to 9999, in days from 1970: the statistics of a file
# cannot hold others.
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
_UNITS_IN_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}


def has_year_out_of_range(column: pa.ChunkedArray) -> bool:
    """Return whether a date or timestamp is outside the years 1 to 9999."""
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


def conditions_of(engine: Engine, relation: str, column: str) -> Condition:
    """Return the values themselves while they are few, else the least and the greatest."""
    name = quote(column)
    found = engine.rows(
        f"SELECT DISTINCT {name} FROM {relation} WHERE {name} IS NOT NULL LIMIT {AMONG_LIMIT + 1}"
    )
    if len(found) <= AMONG_LIMIT:
        return Among(column=column, values=frozenset(row[0] for row in found))
    [(low, high)] = engine.rows(f"SELECT min({name}), max({name}) FROM {relation}")
    return Within(column=column, low=low, high=high)


# From this size on, Spark is the better engine.
ARROW_BYTES = 2 * 1024**3
_GIB = 1024**3
_ADVICE = "`--engine spark` does the same work in parts, on a cluster if there is one."


def advice_on_load(size_bytes: int) -> str | None:
    """Return the advice to load by Spark; None where Arrow is right."""
    if size_bytes < ARROW_BYTES:
        return None
    return f"{size_bytes / _GIB:.1f} GiB are loaded in this machine's memory. {_ADVICE}"


def advice_on_optimize(dataset: str, size_bytes: int) -> str | None:
    """Return the advice to rewrite by Spark; None where Arrow is right."""
    if size_bytes < ARROW_BYTES:
        return None
    return (
        f"{dataset} holds {size_bytes / _GIB:.1f} GiB, which are rewritten in this machine's "
        f"memory, a partition at a time. {_ADVICE}"
    )
