"""Sources as files that Spark can read, each with the name that whoever loads it knows."""

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

from headgate.errors import InvalidRows, InvalidSource
from headgate.model.names import DatasetName
from headgate.rows.cast import fit
from headgate.rows.sources import (
    ROWS_IN_PART,
    ROWS_SHOWN,
    STDIN,
    Place,
    Source,
    files_of,
    format_of_content,
    format_of_file,
    line_finder,
    lines_from,
    read_arrow_batches,
    refuse_arrays,
    refuse_endless_lines,
    refuse_unclosed,
    stream_file,
)

# Types of Arrow that Spark does not read from a Parquet file, and what it reads in their place.


def schema_for_spark(schema: pa.Schema) -> pa.Schema:
    """The same columns in types that Spark reads; the same schema where it reads all of them."""
    return pa.schema([_field(field) for field in schema], schema.metadata)


def _field(field: pa.Field) -> pa.Field:
    return field.with_type(_kind(field.type))


def _kind(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        # As data frames write their moments. A value that has more digits is refused by its row.
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
        # In a file it is a list like any other, and these are often most of it.
        inside = _field(kind.value_field)
        return kind if inside.type == kind.value_type else pa.list_(inside)
    if pa.types.is_list(kind):
        return pa.list_(_field(kind.value_field))
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        return pa.large_list(_field(kind.value_field))
    if pa.types.is_run_end_encoded(kind):
        return _kind(kind.value_type)
    return kind


_PATTERN = re.compile(r"[\\*?\[\]{}]")
_PIPE_BLOCK = 16 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class SparkFile:
    """A file of Parquet, CSV or JSON lines."""

    # As it was given; what came without a file has a name all the same.
    file: str
    path: Path
    format: str
    # What it was made of, where Spark would not read that as it is: its rows have their lines.
    source: tuple[Path, str] | None = None

    @property
    def origin(self) -> tuple[Path, str]:
        return self.source or (self.path, self.format)


Given = Mapping[DatasetName, Sequence[SparkFile]]


@contextmanager
def as_files(given: Mapping[DatasetName, Sequence[Place]]) -> Iterator[Given]:
    """Every source as files; what Spark does not read is written as such for the time of a load."""
    with tempfile.TemporaryDirectory(prefix="headgate-load-") as home:
        spool = _Spool(Path(home))
        yield {
            name: [file for place in places for file in spool.files(place)]
            for name, places in given.items()
        }


class _Spool:
    """A directory for what came through a pipe, from memory, or as Arrow's own format."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._count = 0

    def files(self, place: Place) -> list[SparkFile]:
        if isinstance(place, pa.Table):
            return [self._table("(rows)", place.schema, place.to_batches())]
        if isinstance(place, bytes):
            return [self._bytes("(rows)", [place])]
        if str(place) == STDIN:
            return [self._bytes(STDIN, iter(lambda: sys.stdin.buffer.read(_PIPE_BLOCK), b""))]
        return [self._file(path) for path in files_of(Path(place))]

    def _file(self, path: Path) -> SparkFile:
        format = format_of_file(path)
        if format == "arrow":
            with _naming(str(path)), read_arrow_batches(path) as (schema, batches):
                return self._table(str(path), schema, batches)
        return self._text_or_parquet(str(path), self._readable(path.absolute()), format)

    def _text_or_parquet(self, file: str, path: Path, format: str) -> SparkFile:
        """What Spark would choke on, or swallow without a word, is found by a look at the bytes."""
        if format in ("csv", "jsonl"):
            refuse_endless_lines(file, path)
        if format == "jsonl":
            refuse_arrays(file, path)
        if format == "csv" and refuse_unclosed(file, path):
            # Spark would make other line ends of those within values.
            parts = stream_file(path, format, file=file)
            first = next(parts)
            batches = chain.from_iterable(p.rows.to_batches() for p in chain([first], parts))
            made = self._table(file, first.rows.schema, batches)
            return replace(made, source=(path, format))
        if format == "parquet" and (rewritten := self._rewritten(file, path)):
            return replace(rewritten, source=(path, format))
        return SparkFile(file=file, path=path, format=format)

    def _rewritten(self, file: str, path: Path) -> SparkFile | None:
        """Another file for one with columns of types that Spark does not read; else none."""
        with _naming(file, "parquet"), parquet.ParquetFile(path) as given:
            schema = given.schema_arrow
            if schema_for_spark(schema) == schema:
                return None
            try:
                return self._table(file, schema, given.iter_batches(batch_size=ROWS_IN_PART))
            except InvalidRows:
                # Spark will not read it, and what is wrong in which row is found then.
                return None

    def _readable(self, path: Path) -> Path:
        """Another name for a path that Spark would take for a pattern, or would pass over."""
        if not _PATTERN.search(str(path)) and not path.name.startswith((".", "_")):
            return path
        link = self._next().with_suffix(path.suffix)
        link.symlink_to(path)
        return link

    def _bytes(self, file: str, blocks: Any) -> SparkFile:
        path = self._next()
        with path.open("wb") as out:
            for block in blocks:
                out.write(block)
        with path.open("rb") as opened:
            format = format_of_content(opened.read(4096))
        if format != "arrow":
            return self._text_or_parquet(file, path, format)
        with _naming(file), read_arrow_batches(path) as (schema, batches):
            return self._table(file, schema, batches)

    def _table(self, file: str, schema: pa.Schema, batches: Any) -> SparkFile:
        path, wanted, first = self._next(), schema_for_spark(schema), 0
        # What Spark reads as it is stays as it is, however much there is of it.
        changed = [n for n, field in enumerate(wanted) if field.type != schema.field(n).type]
        with _naming(file), parquet.ParquetWriter(path, wanted) as writer:
            for batch in batches:
                rows = pa.Table.from_batches([batch], schema)
                if changed:
                    line_of = lines_from(first + 1, lambda row: row)
                    part = Source(
                        file=file, rows=rows.select(changed), is_text=False, line_of=line_of
                    )
                    fitted = fit(part, pa.schema([wanted.field(n) for n in changed]), file)
                    for n, column in zip(changed, fitted.columns, strict=True):
                        rows = rows.set_column(n, wanted.field(n), column)
                writer.write_table(rows)
                first += rows.num_rows
        return SparkFile(file=file, path=path, format="parquet")

    def _next(self) -> Path:
        self._count += 1
        return self._home / f"{self._count}.rows"


@contextmanager
def _naming(file: str, format: str = "arrow") -> Iterator[None]:
    try:
        yield
    except pa.ArrowException as error:
        reason = str(error).split("\n", 1)[0]
        raise InvalidSource(file=file, reason=f"it is no {format} file: {reason}") from error


def refuse_misfits(files: Given, schema_of: Callable[[DatasetName], pa.Schema]) -> None:
    """Raises what a load without Spark would of files that cannot be read or do not fit, if any."""
    for several in files.values():
        for one in several:
            for _ in _parts(one):
                pass
    for name, several in files.items():
        for one in several:
            _refuse_misfits_of(one, schema_of(name), str(name))


def _refuse_misfits_of(one: SparkFile, schema: pa.Schema, dataset: str) -> None:
    bad: list[dict[str, Any]] = []
    for part in _parts(one):
        try:
            fit(part, schema, dataset)
        except InvalidRows as error:
            bad += error.facts["rows"]
        if len(bad) >= ROWS_SHOWN:
            break
    if bad:
        raise InvalidRows(rows=bad[:ROWS_SHOWN], limit=ROWS_SHOWN)


def _parts(one: SparkFile) -> Iterator[Any]:
    try:
        yield from stream_file(*one.origin, file=one.file)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).split("\n", 1)[0]
        raise InvalidSource(
            file=one.file, reason=f"it is no {one.format} file: {reason}"
        ) from error


class Places:
    """Where rows are that have to be named: file and line, by the number of a row in its file."""

    def __init__(self, files: Sequence[SparkFile]) -> None:
        self._files = files
        self._finders: dict[int, Callable[[int], int]] = {}

    def of(self, file: int, row: int) -> dict[str, Any]:
        one = self._files[file]
        if file not in self._finders:
            self._finders[file] = line_finder(*one.origin)
        return {"file": one.file, "line": self._finders[file](row)}
