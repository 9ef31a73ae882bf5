"""Sources of a load as files of Parquet, which Spark reads in the types of their table.

All other sources are cast by the rules of a load by Arrow, and written as such files: text, Arrow's
own format, rows from memory or a pipe, and Parquet with columns of other types.
"""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet

from headgate.errors import HeadgateError, InvalidRows, InvalidSource
from headgate.files.objects import StoredContent
from headgate.rows import cast, sources
from headgate.rows.sources import Source, SourceLike
from headgate.spark.load import LoadFile, mark_of

# Characters of a glob pattern, which Spark would expand in a path.
_PATTERN = re.compile(r"[\\*?\[\]{}]")
_PIPE_BLOCK = 16 * 1024 * 1024


class TableFormat:
    """The columns of a table, as rows are cast to them and as Spark reads them."""

    def __init__(self, dataset: str, schema: pa.Schema, defaults: Mapping[str, Any]) -> None:
        self.dataset = dataset
        self.schema = schema
        self._defaults = defaults
        self._kinds = {field.name: _for_spark(field.type) for field in schema}
        marks = {mark_of(name): pa.bool_() for name in self._kinds}
        self.written = pa.schema(list({**self._kinds, **marks}.items()))

    def reads(self, given: pa.Schema) -> bool:
        """Return whether a file of Parquet with these columns needs no cast.

        Its types are those of the table and those that Spark reads; a UUID is never both.
        """
        stored = _as_stored(given)
        for wanted in map(_as_stored, (self.schema, self.written)):
            types = {field.name.lower(): field.type for field in wanted}
            if any(types.get(f.name.lower(), f.type) != f.type for f in stored):
                return False
        return True

    def complete(self, rows: pa.Table, given: Mapping[str, pa.ChunkedArray]) -> pa.Table:
        """Return rows with all columns, and with marks that say which rows have a column."""
        marks = dict(given)
        for name, kind in zip(self.schema.names, self.schema.types, strict=True):
            if name not in rows.column_names:
                rows = rows.append_column(name, pa.nulls(rows.num_rows, kind))
                marks[name] = pa.chunked_array([pa.repeat(False, rows.num_rows)])
        filled = cast.with_defaults(rows, marks, self._defaults)
        every = pa.repeat(True, rows.num_rows)
        columns = {name: _cast(filled.column(name), kind) for name, kind in self._kinds.items()}
        columns |= {mark_of(name): marks.get(name, every) for name in self._kinds}
        return pa.table(columns, schema=self.written)


class Converter:
    """Turns the sources of one load into files, in a directory that Spark reads too."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._count = 0
        self._rejected: HeadgateError | None = None

    def files(self, given: Sequence[SourceLike], table: TableFormat) -> list[LoadFile]:
        """Return the sources of a table as files; raise for a source that cannot be read."""
        found = [file for source in given for file in self._files(source, table)]
        # Lines of JSON without a line have no columns either.
        return [file for file in found if file.columns]

    def raise_if_rejected(self) -> None:
        """Raise for the first rows that do not fit their table, after all sources were read."""
        if self._rejected is not None:
            raise self._rejected

    def _files(self, source: SourceLike, table: TableFormat) -> Iterator[LoadFile]:
        if isinstance(source, pa.Table):
            parts = sources.in_parts("(rows)", source.schema, source.to_batches())
            yield self._write("(rows)", parts, table, sources.row_number, source.nbytes)
        elif isinstance(source, bytes):
            yield self._from_bytes("(rows)", [source], table)
        elif isinstance(source, StoredContent):
            yield self._from_bytes("(rows)", source.objects.stream(source.digest), table)
        elif str(source) == sources.STDIN:
            blocks = iter(lambda: sys.stdin.buffer.read(_PIPE_BLOCK), b"")
            yield self._from_bytes(sources.STDIN, blocks, table)
        else:
            for path in sources.files_of(Path(source)):
                yield self._from_path(str(path), path, sources.format_of_file(path), table)

    def _from_bytes(self, file: str, blocks: Iterable[bytes], table: TableFormat) -> LoadFile:
        path = self._next()
        with path.open("wb") as out:
            out.writelines(blocks)
        with path.open("rb") as opened:
            format = sources.format_of_content(opened.read(4096))
        return self._from_path(file, path, format, table)

    def _from_path(self, file: str, path: Path, format: str, table: TableFormat) -> LoadFile:
        size, line_of = path.stat().st_size, sources.line_finder(path, format)
        with _format_errors(file, format):
            if format == "parquet" and table.reads(schema := parquet.read_schema(path)):
                columns = self._check_columns(file, path, schema, table)
                readable = str(self._readable(path.absolute()))
                return LoadFile(
                    name=file, path=readable, columns=columns, size_bytes=size, line_of=line_of
                )
            parts = sources.stream_file(path, format, file=file)
            return self._write(file, parts, table, line_of, size)

    def _check_columns(
        self, file: str, path: Path, schema: pa.Schema, table: TableFormat
    ) -> tuple[str, ...]:
        """Return the table's columns in a file that needs no cast; reject impossible years."""
        try:
            names = cast.match_columns(file, schema.names, table.schema, table.dataset)
        except InvalidSource as error:
            self._reject(error)
            return ()
        timed = [
            name for column, name in names.items() if cast.has_temporal(schema.field(name).type)
        ]
        if timed:
            for _ in self._cast(sources.stream_parquet(file, path, columns=timed), table):
                pass
        return tuple(names)

    def _write(
        self,
        file: str,
        parts: Iterable[Source],
        table: TableFormat,
        line_of: Callable[[int], int],
        size_bytes: int,
    ) -> LoadFile:
        path, columns = self._next(), dict[str, None]()
        ragged: set[str] = set()
        with parquet.ParquetWriter(path, table.written) as writer:
            for rows, given in self._cast(parts, table):
                columns |= dict.fromkeys(rows.column_names)
                if rows.num_rows:
                    ragged |= given.keys() | (set(table.schema.names) - set(rows.column_names))
                    writer.write_table(table.complete(rows, given))
        return LoadFile(
            name=file,
            path=str(path),
            columns=tuple(columns),
            ragged=frozenset(ragged & columns.keys()),
            size_bytes=size_bytes,
            line_of=line_of,
        )

    def _cast(
        self, parts: Iterable[Source], table: TableFormat
    ) -> Iterator[tuple[pa.Table, dict[str, pa.ChunkedArray]]]:
        """Yield the rows of each part that fits the table, and which rows have a column."""
        bad: list[dict[str, Any]] = []
        for part in parts:
            if not part.rows.column_names:
                continue
            try:
                rows = cast.cast_rows(part, table.schema, table.dataset)
            except InvalidRows as error:
                bad += error.facts["rows"]
            except InvalidSource as error:
                self._reject(error)
            else:
                yield rows, cast.given_columns(part, rows)
        if bad:
            self._reject(InvalidRows(rows=bad[: sources.ROWS_SHOWN], limit=sources.ROWS_SHOWN))

    def _reject(self, error: HeadgateError) -> None:
        """Keep the first error: a source that cannot be read at all is more important."""
        self._rejected = self._rejected or error

    def _readable(self, path: Path) -> Path:
        """Return a link to a path that Spark would read as a pattern, or skip."""
        if not _PATTERN.search(str(path)) and not path.name.startswith((".", "_")):
            return path
        link = self._next().with_suffix(path.suffix)
        link.symlink_to(path)
        return link

    def _next(self) -> Path:
        self._count += 1
        return self._home / f"{self._count}.rows"


@contextmanager
def _format_errors(file: str, format: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise sources.not_of_format(file, format, error) from error


def check_readable(files: Iterable[LoadFile]) -> None:
    """Raise for a damaged file: Spark's own error does not always name it."""
    for file in files:
        with _format_errors(file.name, "parquet"):
            for _ in sources.stream_parquet(file.name, Path(file.path)):
                pass


def _as_stored(schema: pa.Schema) -> pa.Schema:
    """Return the types that Parquet itself stores, which has one type for all kinds of strings."""
    out = pa.BufferOutputStream()
    parquet.ParquetWriter(out, schema, store_schema=False).close()
    return parquet.read_schema(pa.BufferReader(out.getvalue()))


def _for_spark(kind: pa.DataType) -> pa.DataType:
    """Return the type in which Spark reads a column of a table: it reads UUIDs as text."""
    if isinstance(kind, pa.UuidType):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_for_spark(field.type)) for field in kind])
    if pa.types.is_map(kind):
        key, item = kind.key_field, kind.item_field
        return pa.map_(key.with_type(_for_spark(key.type)), item.with_type(_for_spark(item.type)))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(kind.value_field.with_type(_for_spark(kind.value_type)))
    return kind


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    return column if column.type == kind else cast.cast_column(column, kind)
