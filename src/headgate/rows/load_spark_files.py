"""Sources of a load as files that Spark reads, and the errors of their rows by file and line."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet

from headgate.errors import InvalidRows
from headgate.files.objects import StoredContent
from headgate.model.names import DatasetName
from headgate.rows import sources
from headgate.rows.cast import cast_rows
from headgate.rows.sources import Source, SourceLike, SourcesByTable

# Characters of a glob pattern, which Spark would expand in a path.
_PATTERN = re.compile(r"[\\*?\[\]{}]")
_PIPE_BLOCK = 16 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class SparkFile:
    """A file of Parquet, CSV or JSON lines."""

    # As given by the caller; a source without a file has a name as well.
    file: str
    path: Path
    format: str
    # The original file and format, where this is a conversion: rows have the original's lines.
    source: tuple[Path, str] | None = None

    @property
    def origin(self) -> tuple[Path, str]:
        return self.source or (self.path, self.format)


FilesByTable = Mapping[DatasetName, Sequence[SparkFile]]


@contextmanager
def as_files(given: SourcesByTable) -> Iterator[FilesByTable]:
    """Return every source as files; others are converted in a temporary directory."""
    with tempfile.TemporaryDirectory(prefix="headgate-load-") as home:
        spool = _Spool(Path(home))
        yield {
            name: [file for source in each for file in spool.files(source)]
            for name, each in given.items()
        }


class _Spool:
    """A directory for sources from a pipe, from memory, or in Arrow's own format."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._count = 0

    def files(self, source: SourceLike) -> list[SparkFile]:
        if isinstance(source, pa.Table):
            return [self._write("(rows)", source.schema, source.to_batches())]
        if isinstance(source, bytes):
            return [self._from_bytes("(rows)", [source])]
        if isinstance(source, StoredContent):
            return [self._from_bytes("(rows)", source.objects.stream(source.digest))]
        if str(source) == sources.STDIN:
            return [
                self._from_bytes(
                    sources.STDIN, iter(lambda: sys.stdin.buffer.read(_PIPE_BLOCK), b"")
                )
            ]
        return [self._from_file(path) for path in sources.files_of(Path(source))]

    def _from_file(self, path: Path) -> SparkFile:
        format = sources.format_of_file(path)
        if format == "arrow":
            with _format_errors(str(path)), sources.read_arrow_batches(path) as (schema, batches):
                return self._write(str(path), schema, batches)
        return self._text_or_parquet(str(path), self._readable(path.absolute()), format)

    def _text_or_parquet(self, file: str, path: Path, format: str) -> SparkFile:
        """Return the file; check its bytes for what Spark fails on, or silently misreads."""
        if format in ("csv", "jsonl"):
            sources.check_line_lengths(file, path)
        if format == "jsonl":
            sources.check_no_arrays(file, path)
        if format == "csv" and sources.check_quotes_closed(file, path):
            # Spark would change the line ends within values.
            parts = sources.stream_file(path, format, file=file)
            first = next(parts)
            batches = chain.from_iterable(p.rows.to_batches() for p in chain([first], parts))
            made = self._write(file, first.rows.schema, batches)
            return replace(made, source=(path, format))
        if format == "parquet" and (rewritten := self._rewritten(file, path)):
            return replace(rewritten, source=(path, format))
        return SparkFile(file=file, path=path, format=format)

    def _rewritten(self, file: str, path: Path) -> SparkFile | None:
        """Return another file for one with columns of types that Spark does not read; else None."""
        with _format_errors(file, "parquet"), parquet.ParquetFile(path) as given:
            schema = given.schema_arrow
            if schema_for_spark(schema) == schema:
                return None
            try:
                return self._write(
                    file, schema, given.iter_batches(batch_size=sources.ROWS_IN_PART)
                )
            except InvalidRows:
                # Spark will fail on it as well; the bad rows are named then.
                return None

    def _readable(self, path: Path) -> Path:
        """Return a link to a path that Spark would read as a pattern, or skip."""
        if not _PATTERN.search(str(path)) and not path.name.startswith((".", "_")):
            return path
        link = self._next().with_suffix(path.suffix)
        link.symlink_to(path)
        return link

    def _from_bytes(self, file: str, blocks: Any) -> SparkFile:
        path = self._next()
        with path.open("wb") as out:
            for block in blocks:
                out.write(block)
        with path.open("rb") as opened:
            format = sources.format_of_content(opened.read(4096))
        if format != "arrow":
            return self._text_or_parquet(file, path, format)
        with _format_errors(file), sources.read_arrow_batches(path) as (schema, batches):
            return self._write(file, schema, batches)

    def _write(self, file: str, schema: pa.Schema, batches: Any) -> SparkFile:
        path, wanted, first = self._next(), schema_for_spark(schema), 0
        # Only columns of other types are cast, however large the rest is.
        changed = [n for n, field in enumerate(wanted) if field.type != schema.field(n).type]
        with _format_errors(file), parquet.ParquetWriter(path, wanted) as writer:
            for batch in batches:
                rows = pa.Table.from_batches([batch], schema)
                if changed:
                    line_of = sources.lines_from(first + 1, lambda row: row)
                    part = Source(file=file, rows=rows.select(changed), line_of=line_of)
                    cast = cast_rows(part, pa.schema([wanted.field(n) for n in changed]), file)
                    for n, column in zip(changed, cast.columns, strict=True):
                        rows = rows.set_column(n, wanted.field(n), column)
                writer.write_table(rows)
                first += rows.num_rows
        return SparkFile(file=file, path=path, format="parquet")

    def _next(self) -> Path:
        self._count += 1
        return self._home / f"{self._count}.rows"


@contextmanager
def _format_errors(file: str, format: str = "arrow") -> Iterator[None]:
    try:
        yield
    except pa.ArrowException as error:
        raise sources.not_of_format(file, format, error) from error


def check_files(files: FilesByTable, schemas: Mapping[DatasetName, pa.Schema]) -> None:
    """Raise the error that a load without Spark raises for these files, if any."""
    for several in files.values():
        for file in several:
            for _ in _parts(file):
                pass
    for name, several in files.items():
        for file in several:
            _check_rows(file, schemas[name], str(name))


def _check_rows(file: SparkFile, schema: pa.Schema, dataset: str) -> None:
    bad: list[dict[str, Any]] = []
    for part in _parts(file):
        try:
            cast_rows(part, schema, dataset)
        except InvalidRows as error:
            bad += error.facts["rows"]
        if len(bad) >= sources.ROWS_SHOWN:
            break
    if bad:
        raise InvalidRows(rows=bad[: sources.ROWS_SHOWN], limit=sources.ROWS_SHOWN)


def _parts(file: SparkFile) -> Iterator[Source]:
    try:
        yield from sources.stream_file(*file.origin, file=file.file)
    except (pa.ArrowException, OSError) as error:
        raise sources.not_of_format(file.file, file.format, error) from error


class RowPlaces:
    """Finds the file and line of a row by its number in the file."""

    def __init__(self, files: Sequence[SparkFile]) -> None:
        self._files = files
        self._finders: dict[int, Callable[[int], int]] = {}

    def of(self, file: int, row: int) -> dict[str, Any]:
        one = self._files[file]
        if file not in self._finders:
            self._finders[file] = sources.line_finder(*one.origin)
        return {"file": one.file, "line": self._finders[file](row)}


# Arrow types that Spark does not read from Parquet, and their replacements.


def schema_for_spark(schema: pa.Schema) -> pa.Schema:
    """Return the columns in types that Spark reads; the same schema where it reads all."""
    return pa.schema([_field(field) for field in schema], schema.metadata)


def _field(field: pa.Field) -> pa.Field:
    return field.with_type(_kind(field.type))


def _kind(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        # Data frames write these. A value with more digits is rejected by its row.
        return pa.timestamp("us", tz=kind.tz)
    if pa.types.is_time(kind):
        return pa.string()
    if pa.types.is_float16(kind):
        return pa.float32()
    if pa.types.is_struct(kind):
        return pa.struct([_field(field) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_field(kind.key_field), _field(kind.item_field))
    if pa.types.is_large_list(kind):
        return pa.large_list(_field(kind.value_field))
    if pa.types.is_fixed_size_list(kind):
        # Parquet stores it as a list, so it stays: such columns are often most of a file.
        inside = _field(kind.value_field)
        return kind if inside.type == kind.value_type else pa.list_(inside)
    if pa.types.is_list(kind):
        return pa.list_(_field(kind.value_field))
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        return pa.large_list(_field(kind.value_field))
    if pa.types.is_run_end_encoded(kind):
        return _kind(kind.value_type)
    return kind
