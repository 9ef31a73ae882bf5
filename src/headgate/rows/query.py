"""Queries answered by DuckDB over the tables that a context shows, without a JVM.

The tables are streamed into the engine, one file in memory at a time: only the columns that the
statement names, and only the files and row groups that its conditions leave.
"""

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol, TypeVar

import orjson
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from headgate.errors import Invalid, find_quoted_failure, storage_error
from headgate.model.names import DatasetName
from headgate.rows.engine import ARROW_BYTES, Engine, EngineError
from headgate.rows.spark_sql import Unlisted, translate
from headgate.spark.sql import distinct_names
from headgate.tables.inspect import columns_of
from headgate.tables.scan import Conditions, TableScan, json_rows
from headgate.tables.versions import StoredVersion

_BATCH_ROWS = 65_536
T = TypeVar("T")


class ContextTables(Protocol):
    """The tables of one context, read with the rights of the caller."""

    @property
    def options(self) -> Mapping[str, str]:
        """AWS_* variables by name."""

    def find(self, name: DatasetName) -> StoredVersion | None:
        """Return the version that the context shows; None for a table that it does not show."""

    def has_view(self, name: DatasetName) -> bool:
        """Return whether the context shows a view of this name."""


class TableRows:
    """Rows of one version as a stream of Arrow that can be read more than once."""

    def __init__(
        self, scan: TableScan, columns: Sequence[str] | None = None, where: Conditions = ()
    ) -> None:
        self._scan, self._columns, self._where = scan, columns, where
        self.files = scan.plan(where)
        self.schema = scan.schema
        if columns is not None:
            fields = [scan.schema.field(name) for name in columns]
            # A relation has a column even where only its rows are counted.
            self.schema = pa.schema(fields or [pa.field("__row", pa.null())])

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows; those that no condition could match are left out."""
        if self._columns is None or self._columns:
            yield from self._scan.batches(self.files, columns=self._columns, where=self._where)
            return
        left = self._scan.count(self.files)
        while left > 0:
            rows = min(left, _BATCH_ROWS)
            yield pa.record_batch([pa.nulls(rows)], schema=self.schema)
            left -= rows

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        found = pa.RecordBatchReader.from_batches(self.schema, self.batches())
        return found.__arrow_c_stream__(requested_schema)


# What becomes of an answer, from its columns and its rows as a stream.
Consume = Callable[[pa.Schema, Iterable[pa.RecordBatch]], T]


def run_query(
    text: str, tables: ContextTables, consume: Consume[T], *, only_listed: bool = True
) -> T:
    """Answer a SELECT by DuckDB, and return what `consume` makes of the answer.

    Raises `Unlisted` for a statement that Spark may answer differently, and `EngineError` for one
    that fails.
    """
    versions: dict[DatasetName, StoredVersion] = {}

    def find_columns(name: DatasetName) -> Mapping[str, Any] | None:
        if name not in versions:
            found = tables.find(name)
            if found is None:
                return None
            versions[name] = found
        return {one.name: one.type for one in columns_of(versions[name].metadata)}

    translation = translate(text, find_columns, only_listed=only_listed)
    columns = distinct_names(translation.columns)
    with closing(Engine()) as engine:
        size = 0
        for mention in translation.mentions:
            scan = TableScan(versions[mention.dataset], tables.options)
            rows = TableRows(scan, mention.columns, mention.where)
            size += sum(file.size_bytes for file in rows.files)
            engine.register(rows, name=mention.relation)
        if only_listed and size > ARROW_BYTES:
            raise Unlisted(f"files of {size / 1024**3:.1f} GiB")
        with engine.reading(translation.sql) as found:
            schema = pa.schema([f.with_name(n) for f, n in zip(found.schema, columns, strict=True)])
            return consume(schema, _computed(found, schema))


def _computed(found: pa.RecordBatchReader, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows under these names; Arrow passes errors of the engine on as its own."""
    try:
        for batch in found:
            yield pa.record_batch(batch.columns, schema=schema)
    except (OSError, pa.ArrowException) as error:
        raise find_quoted_failure(str(error)) or EngineError(str(error)) from error


class _JsonLines(io.FileIO):
    def write_batch(self, batch: pa.RecordBatch) -> None:
        self.write(b"".join(orjson.dumps(row) + b"\n" for row in json_rows(batch)))


_WRITERS: Mapping[str, Callable[[Path, pa.Schema], Any]] = {
    ".parquet": pyarrow.parquet.ParquetWriter,
    ".csv": pyarrow.csv.CSVWriter,
    ".arrow": pa.ipc.new_file,
    ".jsonl": lambda path, _: _JsonLines(path, "wb"),
}


def check_suffix(path: Path) -> None:
    """Raise for a file whose format is not known by its suffix."""
    if path.suffix not in _WRITERS:
        raise Invalid(
            f"the format of {path} is not known: end its name in {', '.join(_WRITERS)}.",
            file=str(path),
        )


def write_rows(path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> int:
    """Write rows in the format of the path's suffix, and return their number.

    The file appears when it is complete.
    """
    check_suffix(path)
    part, count = path.with_name(f".{path.name}.part"), 0
    try:
        with closing(_WRITERS[path.suffix](part, schema)) as writer:
            for batch in batches:
                writer.write_batch(batch)
                count += batch.num_rows
        part.replace(path)
    except OSError as error:
        raise storage_error(error, path) from error
    finally:
        part.unlink(missing_ok=True)
    return count
