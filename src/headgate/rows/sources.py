"""Files as rows: Parquet, Arrow, CSV and JSON lines, from a file, a directory or stdin.

Each row knows its file and line, so that a bad one can be named.
"""

from __future__ import annotations

import csv as plain_csv
import hashlib
import io
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import orjson
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.ipc as ipc
import pyarrow.parquet as parquet

from headgate.errors import InvalidRows, InvalidSource
from headgate.model.names import DatasetName

# Rows of one file, each of which knows its line, so that a bad one can be named.

LINE_LIMIT_BYTES = 64 * 1024 * 1024
_ENDLESS = "the line is over 64 MiB"
_BLOCK = 16 * 1024 * 1024
ROWS_SHOWN = 100
ROWS_IN_PART = 100_000
BYTE_ORDERS = (b"\xff\xfe", b"\xfe\xff")
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, kw_only=True)
class Source:
    """Rows with their file; `line_of` finds the line of a row that has to be named."""

    file: str
    rows: pa.Table
    # Text that has to be understood by the table's types, rather than values with types.
    is_text: bool
    line_of: Callable[[int], int]


def lines_from(first: int, line_of: Callable[[int], int]) -> Callable[[int], int]:
    """The lines of a part of a file, of which so many rows stand before it."""
    return lambda row: line_of(first + row)


def read_lines(file: str, stream: BinaryIO) -> Iterator[bytes]:
    """Line by line, but never one that would not fit into memory."""
    number = 0
    while line := stream.readline(LINE_LIMIT_BYTES):
        number += 1
        if len(line) == LINE_LIMIT_BYTES and not line.endswith(b"\n"):
            raise InvalidSource(file=f"{file}:{number}", reason=_ENDLESS)
        if number == 1 and line.startswith(BYTE_ORDERS):
            raise InvalidSource(file=file, reason="it is UTF-16; save it as UTF-8")
        yield line


def refuse_endless_lines(file: str, where: Path | bytes) -> None:
    """Raises as `read_lines` does, without a look at the lines themselves."""
    number, length = 1, 0
    with opened(where) as stream:
        for block in iter(lambda: stream.read(_BLOCK), b""):
            first, last = block.find(b"\n"), block.rfind(b"\n")
            length += len(block) if first < 0 else first
            if length >= LINE_LIMIT_BYTES:
                raise InvalidSource(file=f"{file}:{number}", reason=_ENDLESS)
            number += block.count(b"\n")
            length = length if first < 0 else len(block) - last - 1


def opened(where: Path | bytes) -> BinaryIO:
    """The bytes of a source, from their beginning."""
    return io.BytesIO(where) if isinstance(where, bytes) else where.open("rb")


# CSV as rows: all columns as text, since which type they have is the table's to say.

_GZIP = b"\x1f\x8b"
_NO_LIMIT = 2**31 - 1


def stream_csv(file: str, path: Path) -> Iterator[Source]:
    """The rows in parts that fit into memory."""
    refuse_unclosed(file, path)
    lines, first = CsvLines(path), 0
    with _csv_options(file, path) as options:
        for batch in csv.open_csv(path, **options):
            rows = pa.Table.from_batches([batch])
            line_of = lines_from(first, lines.of)
            yield Source(file=file, rows=rows, is_text=True, line_of=line_of)
            first += rows.num_rows


def read_csv(file: str, where: Path | bytes) -> Source:
    """All columns as text: which type they have is the table's to say."""
    refuse_unclosed(file, where)
    lines = CsvLines(where)
    with _csv_options(file, where) as options:
        rows = csv.read_csv(io.BytesIO(where) if isinstance(where, bytes) else where, **options)
    return Source(file=file, rows=rows, is_text=True, line_of=lines.of)


@contextmanager
def _csv_options(file: str, where: Path | bytes) -> Iterator[dict[str, Any]]:
    """How a CSV file is read; rows that cannot be are told together when it has been."""
    delimiter = _delimiter(file)
    header = _header(file, where, delimiter)
    bad: list[dict[str, Any]] = []

    def note(row: Any) -> str:
        values = "1 value" if row.actual_columns == 1 else f"{row.actual_columns} values"
        found = f"{values}, the header has {row.expected_columns} columns"
        bad.append({"file": file, "line": row.number or 0, "reason": found})
        return "skip" if len(bad) < ROWS_SHOWN else "error"

    try:
        yield {
            "read_options": csv.ReadOptions(use_threads=False, block_size=_BLOCK),
            "parse_options": csv.ParseOptions(
                delimiter=delimiter, newlines_in_values=True, invalid_row_handler=note
            ),
            "convert_options": csv.ConvertOptions(
                column_types=dict.fromkeys(header, pa.string()),
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                null_values=[""],
            ),
        }
    except pa.ArrowInvalid as error:
        if not bad:
            raise _csv_error(file, where, error) from error
        raise InvalidRows(rows=bad, limit=ROWS_SHOWN) from error
    if bad:
        raise InvalidRows(rows=bad, limit=ROWS_SHOWN)


def refuse_unclosed(file: str, where: Path | bytes) -> bool:
    """Raises where a quoted value never ends: all rows behind it would be taken for a part of it.

    Both engines end it with the file, and say nothing. That quotes are even proves nothing, since
    one within a value is just a character; so a file with any is read once more. Tells whether a
    value runs over lines that end as on Windows.
    """
    with opened(where) as stream:
        if not any(b'"' in block for block in iter(lambda: stream.read(_BLOCK), b"")):
            return False
    limit = plain_csv.field_size_limit(_NO_LIMIT)
    try:
        with io.TextIOWrapper(opened(where), "utf-8", errors="replace", newline="") as text:
            rows = plain_csv.reader(text, delimiter=_delimiter(file), strict=True)
            line, returns = 1, False
            try:
                for row in rows:
                    line = rows.line_num + 1
                    returns = returns or any("\r" in value for value in row)
            except plain_csv.Error as error:
                if "end of data" in str(error):
                    reason = "a quoted value begins here and never ends"
                    raise InvalidSource(file=f"{file}:{line}", reason=reason) from error
            return returns
    finally:
        plain_csv.field_size_limit(limit)


def _delimiter(file: str) -> str:
    return "\t" if file.lower().endswith(".tsv") else ","


def _header(file: str, where: Path | bytes, delimiter: str) -> list[str]:
    with opened(where) as stream:
        first = stream.readline(LINE_LIMIT_BYTES)
    if first.startswith(BYTE_ORDERS):
        raise InvalidSource(file=file, reason="it is UTF-16; save it as UTF-8")
    if len(first) == LINE_LIMIT_BYTES:
        raise InvalidSource(file=f"{file}:1", reason="its first line is over 64 MiB")
    if first.startswith(_GZIP):
        raise InvalidSource(file=file, reason="it is compressed; unpack it first")
    if b"\0" in first:
        raise InvalidSource(
            file=file, reason="it holds zero bytes, as UTF-16 does; it must be UTF-8"
        )
    if not first.strip():
        raise InvalidSource(file=f"{file}:1", reason="it has no header line")
    try:
        names = csv.read_csv(
            io.BytesIO(first if first.endswith(b"\n") else first + b"\n"),
            parse_options=csv.ParseOptions(delimiter=delimiter),
        ).column_names
    except UnicodeDecodeError as error:
        raise InvalidSource(file=f"{file}:1", reason="its header is not UTF-8") from error
    except pa.ArrowInvalid as error:
        raise InvalidSource(file=f"{file}:1", reason="its header cannot be read") from error
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise InvalidSource(file=f"{file}:1", reason=f"column {min(twice)!r} is there twice")
    return [str(name) for name in names]


def _csv_error(file: str, where: Path | bytes, error: pa.ArrowInvalid) -> InvalidSource:
    """The line of what the parser choked on, found by looking at the bytes."""
    with opened(where) as stream:
        for number, line in enumerate(read_lines(file, stream), start=1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as broken:
                return InvalidSource(
                    file=f"{file}:{number}",
                    reason=f"byte {broken.start + 1} of the line is not UTF-8",
                )
    return InvalidSource(file=file, reason=str(error).split("\n", 1)[0])


class CsvLines:
    """The lines on which rows begin: quoted values may run over several.

    Rows are mostly asked for in order, so the look goes on from where the last one ended.
    """

    def __init__(self, where: Path | bytes) -> None:
        self._where = where
        # Of the last row found: the row, its line, and where that begins.
        self._found = (-1, 1, 0)

    def of(self, row: int) -> int:
        found, line, at = self._found if self._found[0] <= row else (-1, 1, 0)
        quoted = False
        # Of a row's own line, not of those that it runs over.
        number = found - 1
        with opened(self._where) as stream:
            stream.seek(at)
            for text in stream:
                if not quoted and text.strip():
                    number += 1
                    if number == row:
                        self._found = (row, line, at)
                        return line
                quoted ^= text.count(b'"') % 2 == 1
                line += 1
                at += len(text)
        return line


# JSON lines as rows: an object on each line; blank lines are passed over.

# So much white space may stand before what begins a line.
_OVERLAP = 256
_ARRAY = re.compile(rb"\n\s*\[")


def stream_jsonl(file: str, path: Path) -> Iterator[Source]:
    """The rows in parts that fit into memory."""
    return _parts(file, path, rows_at_most=ROWS_IN_PART)


def refuse_arrays(file: str, path: Path) -> None:
    """Raises as the reader does where a line begins like an array, which Spark takes for rows."""
    before = b"\n"
    with path.open("rb") as stream:
        for block in iter(lambda: stream.read(_BLOCK), b""):
            if _ARRAY.search(before + block):
                for _ in stream_jsonl(file, path):
                    pass
            before = block[-_OVERLAP:]


def line_of_object(path: Path, row: int) -> int:
    """The line of an object, by how many stand before it."""
    with path.open("rb") as stream:
        held = (number for number, line in enumerate(stream, start=1) if line.strip())
        return next(islice(held, row, None))


def read_jsonl(file: str, where: Path | bytes) -> Source:
    """One object on each line; blank lines are passed over."""
    [source] = _parts(file, where)
    return source


def _parts(file: str, where: Path | bytes, *, rows_at_most: int | None = None) -> Iterator[Source]:
    found: list[dict[str, Any]] = []
    places: list[int] = []
    bad: list[dict[str, Any]] = []
    with opened(where) as stream:
        for number, line in enumerate(read_lines(file, stream), start=1):
            if not line.strip():
                continue
            value, reason = _object(line)
            if reason:
                bad.append({"file": file, "line": number, "reason": reason})
                if len(bad) >= ROWS_SHOWN:
                    break
                continue
            if rows_at_most is not None and len(found) == rows_at_most:
                if not bad:
                    yield _objects(file, found, places)
                found, places = [], []
            found.append(value)
            places.append(number)
    if bad:
        raise InvalidRows(rows=bad, limit=ROWS_SHOWN)
    yield _objects(file, found, places)


def _objects(file: str, found: list[dict[str, Any]], places: list[int]) -> Source:
    columns = dict.fromkeys(name for row in found for name in row)
    rows = _table(found, list(columns))
    return Source(file=file, rows=rows, is_text=False, line_of=lambda row: places[row])


def _object(line: bytes) -> tuple[dict[str, Any], str]:
    try:
        value = orjson.loads(line.removeprefix(BYTE_ORDER_MARK))
    except orjson.JSONDecodeError as error:
        return {}, f"it is not JSON: {str(error).split(':')[0]}"
    if not isinstance(value, dict):
        return {}, 'it is not an object: each line is one, as in {"id": 1}'
    return value, ""


def _table(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> pa.Table:
    arrays = []
    for column in columns:
        values = [row.get(column) for row in rows]
        try:
            if {bool} < {type(value) for value in values if value is not None}:
                # Arrow would take true among numbers for one.
                raise pa.ArrowTypeError("true and false among other values")
            arrays.append(pa.array(values))
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            # Lines differ in type: as text, which the table's type then judges row by row.
            arrays.append(pa.array([_text(value) for value in values], pa.string()))
    return pa.table(dict(zip(columns, arrays, strict=True)))


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else orjson.dumps(value).decode()


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


# What makes a repeated load the same request: what it names, and what was in that.

Given = Mapping[DatasetName, Sequence[Any]]


def with_stdin_read(given: Given) -> dict[DatasetName, list[Any]]:
    """The same with what comes through stdin, which can be read only once."""
    return {name: [_with_content(place) for place in places] for name, places in given.items()}


def names_of(given: Given) -> dict[str, list[str]]:
    """What a load says: names of files, and digests of what has none."""
    return {str(name): [_name(place) for place in places] for name, places in given.items()}


def contents_of(given: Given) -> str | None:
    """A digest of what the files hold; None where one is gone, or is a pipe."""
    found = hashlib.sha256()
    for _, places in sorted(given.items(), key=lambda item: str(item[0])):
        for place in places:
            if not isinstance(place, str | Path):
                continue
            if str(place) == STDIN:
                return None
            try:
                for file in files_of(Path(place)):
                    with file.open("rb") as opened:
                        found.update(hashlib.file_digest(opened, "sha256").digest())
            except (OSError, InvalidSource):
                # Told by whoever reads it; a load that is done already needs its files no more.
                return None
    return found.hexdigest()


def _with_content(place: Any) -> Any:
    return Piped(sys.stdin.buffer.read()) if str(place) == STDIN else place


def _name(place: Any) -> str:
    if isinstance(place, str | Path):
        return str(place)
    if isinstance(place, bytes):
        return hashlib.sha256(place).hexdigest()
    digest = hashlib.sha256(str(place.schema).encode())
    for column in place.columns:
        for chunk in column.chunks:
            for buffer in chunk.buffers():
                digest.update(buffer or b"-")
    return digest.hexdigest()
