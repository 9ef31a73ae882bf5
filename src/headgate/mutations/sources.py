"""Files as rows: Parquet, Arrow, CSV and JSON lines, from a file, a directory or stdin.

Each row knows its file and line, so that a bad one can be named.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as parquet

from headgate.errors import InvalidSource
from headgate.mutations.source import BYTE_ORDER_MARK, ROWS_IN_PART, Source, lines_from, opened
from headgate.mutations.source_csv import CsvLines, read_csv, stream_csv
from headgate.mutations.source_jsonl import line_of_object, read_jsonl, stream_jsonl

STDIN = "-"
_PARQUET_MAGIC = b"PAR1"
_ARROW_MAGIC = b"ARROW1"
# In the metadata of an Arrow schema.
FILE_METADATA = b"headgate.file"
_SUFFIXES = {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".ipc": "arrow",
    ".feather": "arrow",
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "jsonl",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}


class Piped(bytes):
    """What came through stdin, read once."""


Place: TypeAlias = str | Path | bytes | pa.Table


def read_sources(where: Place) -> Iterator[Source]:
    """Every source behind an argument; a directory gives its files in the order of their names."""
    if isinstance(where, pa.Table):
        yield Source(file="(rows)", rows=where, is_text=False, line_of=lambda row: row + 1)
        return
    if isinstance(where, bytes):
        yield _read(STDIN if isinstance(where, Piped) else "(rows)", None, where)
        return
    if str(where) == STDIN:
        yield _read(STDIN, None, sys.stdin.buffer.read())
        return
    for file in files_of(Path(where)):
        yield _read_file(file)


def files_of(path: Path) -> list[Path]:
    """The file itself, or those of a directory that hold rows, in the order of their names."""
    if not path.is_dir():
        return [path]
    files = sorted(p for p in path.rglob("*") if p.is_file() and _is_data(p))
    if not files:
        raise InvalidSource(file=str(path), reason="there is no file with rows in it")
    return files


def stream_file(path: Path, format: str, *, file: str) -> Iterator[Source]:
    """A file's rows in parts that fit into memory, whatever its size; `file` is how it is named."""
    match format:
        case "csv":
            return stream_csv(file, path)
        case "jsonl":
            return stream_jsonl(file, path)
    return _stream_parquet(file, path)


def _stream_parquet(file: str, path: Path) -> Iterator[Source]:
    first = 0
    with parquet.ParquetFile(path) as parts:
        for batch in parts.iter_batches(batch_size=ROWS_IN_PART):
            rows = pa.Table.from_batches([batch])
            line_of = lines_from(first + 1, lambda row: row)
            yield Source(file=file, rows=rows, is_text=False, line_of=line_of)
            first += rows.num_rows


def line_finder(path: Path, format: str) -> Callable[[int], int]:
    """The line of a row, by how many rows stand before it in the file."""
    match format:
        case "csv":
            return CsvLines(path).of
        case "jsonl":
            return lambda row: line_of_object(path, row)
    return lambda row: row + 1


def _is_data(path: Path) -> bool:
    return not path.name.startswith((".", "_")) and path.suffix.lower() in _SUFFIXES


def _read_file(path: Path) -> Source:
    return _read(str(path), format_of_file(path), path)


def format_of_file(path: Path) -> str:
    """What a file holds, by how it begins, or else by its name."""
    try:
        with path.open("rb") as raw:
            start = raw.read(8)
    except OSError as error:
        raise InvalidSource(file=str(path), reason=error.strerror or str(error)) from error
    if start.startswith(_PARQUET_MAGIC):
        return "parquet"
    if start.startswith(_ARROW_MAGIC):
        return "arrow"
    found = _SUFFIXES.get(path.suffix.lower())
    if found is None:
        raise InvalidSource(
            file=str(path),
            reason=f"its name says no format; the endings are {', '.join(sorted(_SUFFIXES))}",
        )
    return found


def _read(file: str, format: str | None, where: Path | bytes) -> Source:
    if format is None:
        assert isinstance(where, bytes)
        format = format_of_content(where)
    try:
        match format:
            case "parquet":
                with opened(where) as raw, parquet.ParquetFile(raw) as parts:
                    rows = parts.read()
            case "arrow":
                rows = _read_arrow(where)
                if isinstance(where, bytes):
                    file = _file_named_in(rows) or file
            case "csv":
                return read_csv(file, where)
            case _:
                return read_jsonl(file, where)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).split("\n", 1)[0]
        raise InvalidSource(file=file, reason=f"it is no {format} file: {reason}") from error
    return Source(file=file, rows=rows, is_text=False, line_of=lambda row: row + 1)


def _file_named_in(rows: pa.Table) -> str | None:
    """The file that rows were read from elsewhere, where they came with its name."""
    named = (rows.schema.metadata or {}).get(FILE_METADATA)
    return named.decode(errors="replace") if named else None


def format_of_content(content: bytes) -> str:
    """What came through a pipe has no name to tell its format."""
    if content.startswith(_PARQUET_MAGIC):
        return "parquet"
    if content.startswith((_ARROW_MAGIC, b"\xff\xff\xff\xff")):
        return "arrow"
    text = content.removeprefix(BYTE_ORDER_MARK).lstrip()
    return "jsonl" if text[:1] in {b"{", b"["} else "csv"


def _read_arrow(where: Path | bytes) -> pa.Table:
    raw = where if isinstance(where, bytes) else where.read_bytes()
    if raw.startswith(_ARROW_MAGIC):
        return ipc.open_file(io.BytesIO(raw)).read_all()
    return ipc.open_stream(io.BytesIO(raw)).read_all()


@contextmanager
def read_arrow_batches(path: Path) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
    """The rows of a file or a stream of Arrow's own format, a batch at a time."""
    with path.open("rb") as raw:
        is_file = raw.read(len(_ARROW_MAGIC)) == _ARROW_MAGIC
        raw.seek(0)
        if is_file:
            reader = ipc.open_file(raw)
            batches = (reader.get_batch(at) for at in range(reader.num_record_batches))
            yield reader.schema, batches
        else:
            stream = ipc.open_stream(raw)
            yield stream.schema, iter(stream)
