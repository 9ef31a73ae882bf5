"""Answers from the tables of a context: by DuckDB or Spark, and whole tables as data frames."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headgate import errors
from headgate.catalog.database import Database
from headgate.iceberg.table_catalog import TableCatalog
from headgate.model.contexts import Context
from headgate.model.names import DatasetName, parse_member
from headgate.model.nouns import DatasetKind
from headgate.spark.sql import SqlResult, arrow_of, run_sql
from headgate.tables.inspect import Column, columns_of
from headgate.tables.versions import StoredVersion, TableVersions

if TYPE_CHECKING:
    import duckdb
    import pandas
    import polars
    import pyarrow

    from headgate.rows.query import ContextTables, TableRows
    from headgate.spark.session import SparkSession


class SqlEngine(enum.StrEnum):
    """Engine of a query. `auto`: DuckDB where its answers are known to equal Spark's."""

    AUTO = "auto"
    DUCKDB = "duckdb"
    SPARK = "spark"


@dataclass(frozen=True, kw_only=True)
class ShownTables:
    """The tables of a context of an embedded store, resolved as for its Iceberg clients."""

    database: Database
    versions: TableVersions
    context: Context
    options: Mapping[str, str]

    def find(self, name: DatasetName) -> StoredVersion | None:
        served = TableCatalog(self.database).resolve(self.context, name)
        return self.versions.read(served.location) if served is not None else None

    def has_view(self, name: DatasetName) -> bool:
        found = TableCatalog(self.database).resolve(self.context, name, DatasetKind.VIEW)
        return found is not None


@dataclass(frozen=True, kw_only=True)
class SqlAnswer:
    """The answer to a statement: rows as JSON values, or the number written to a file."""

    engine: SqlEngine
    # The reason why `auto` took Spark.
    reason: str | None = None
    result: SqlResult
    written: int | None = None


# Spark's words for a table of a namespace; one without is a view or another name of the statement.
_UNKNOWN_TABLE = re.compile(
    r"\[TABLE_OR_VIEW_NOT_FOUND\] The table or view ((?:`[^`]+`\.)+`[^`]+`)"
)


class _Refused(Exception):
    """DuckDB did not answer, and Spark may; the message has the reason."""


def answer_sql(
    text: str,
    tables: ContextTables,
    session: Callable[[], SparkSession],
    *,
    engine: str,
    file: Path | None,
    missing: Callable[[str], errors.TableNotFound],
) -> SqlAnswer:
    """Run a statement by the engine, and return or write its rows."""
    chosen = parse_member(SqlEngine, engine, what="engine")
    if file is not None:
        with _needing("'headgate[mutations]'"):
            from headgate.rows.query import check_suffix, write_rows  # noqa: PLC0415  (an extra)
        check_suffix(file)
    reason = None
    if chosen is not SqlEngine.SPARK:
        try:
            return _by_duckdb(text, tables, file, only_listed=chosen is SqlEngine.AUTO)
        except _Refused as refusal:
            reason = str(refusal)
            if chosen is SqlEngine.DUCKDB:
                told = f"DuckDB cannot run this statement: {reason}. Use --engine spark."
                raise errors.Invalid(told, reason=reason) from refusal
    try:
        if file is None:
            result = run_sql(session(), text)
            return SqlAnswer(engine=SqlEngine.SPARK, reason=reason, result=result)
        rows = arrow_of(session(), text)
    except errors.UnknownInStatement as error:
        found = _UNKNOWN_TABLE.match(error.facts["reason"])
        if found is None:
            raise
        raise missing(found[1].replace("`", "").removeprefix("headgate.")) from error
    written = write_rows(file, rows.schema, rows.to_batches())
    result = SqlResult(columns=tuple(rows.column_names), rows=[])
    return SqlAnswer(engine=SqlEngine.SPARK, reason=reason, result=result, written=written)


def _by_duckdb(
    text: str, tables: ContextTables, file: Path | None, *, only_listed: bool
) -> SqlAnswer:
    try:
        from headgate.rows import query  # noqa: PLC0415  (an extra)
        from headgate.rows.engine import EngineError  # noqa: PLC0415  (an extra)
        from headgate.rows.spark_sql import Unlisted  # noqa: PLC0415  (an extra)
        from headgate.tables.scan import json_rows  # noqa: PLC0415  (an extra)
    except ModuleNotFoundError as error:
        raise _Refused(f"the extra `mutations` is not installed ({error.name})") from error

    def consume(schema: pyarrow.Schema, batches: Iterable[pyarrow.RecordBatch]) -> SqlAnswer:
        written = query.write_rows(file, schema, batches) if file is not None else None
        rows = [row for batch in batches for row in json_rows(batch)] if file is None else []
        result = SqlResult(columns=tuple(schema.names), rows=rows)
        return SqlAnswer(engine=SqlEngine.DUCKDB, result=result, written=written)

    try:
        return query.run_query(text, tables, consume, only_listed=only_listed)
    except (Unlisted, EngineError, errors.WorkFailed) as error:
        raise _Refused(str(error).partition("\n")[0].rstrip(". ")) from error


@dataclass(frozen=True, kw_only=True)
class TableReader:
    """The rows of a table as a context shows them."""

    name: DatasetName
    tables: ContextTables
    missing: Callable[[str], errors.TableNotFound]

    def to_arrow(self) -> pyarrow.Table:
        """Return the rows as a PyArrow table."""
        import pyarrow  # noqa: PLC0415  (an extra)

        return pyarrow.table(self._rows())

    def to_pandas(self) -> pandas.DataFrame:
        """Return the rows as a pandas data frame."""
        with _needing("pandas"):
            import pandas  # noqa: F401, PLC0415  (optional)
        return self.to_arrow().to_pandas()

    def to_polars(self) -> polars.DataFrame:
        """Return the rows as a Polars data frame."""
        with _needing("polars"):
            import polars  # noqa: PLC0415  (optional)
        return polars.DataFrame(self.to_arrow())

    def to_duckdb(self) -> duckdb.DuckDBPyRelation:
        """Return the rows as a relation of a new DuckDB in memory, which reads them when used."""
        with _needing("duckdb"):
            import duckdb  # noqa: PLC0415  (optional)
        return duckdb.connect(":memory:").from_arrow(self._rows())

    def _rows(self) -> TableRows:
        with _needing("'headgate[mutations]'"):
            from headgate.rows.query import TableRows  # noqa: PLC0415  (an optional extra)
            from headgate.tables.scan import TableScan  # noqa: PLC0415  (an optional extra)
        return TableRows(TableScan(self._load(), self.tables.options))

    @property
    def columns(self) -> list[Column]:
        """The columns of the table, in order."""
        return columns_of(self._load().metadata)

    def _load(self) -> StoredVersion:
        version = self.tables.find(self.name)
        if version is None and self.tables.has_view(self.name):
            raise errors.ViewHasNoRows(view=str(self.name))
        if version is None:
            raise self.missing(str(self.name))
        return version


@contextmanager
def _needing(package: str) -> Iterator[None]:
    """Raise `Unavailable` with the line that installs a package, where it is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise errors.Unavailable(
            f"the package {error.name} is not installed: pip install {package}."
        ) from error
