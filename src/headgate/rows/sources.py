"""Sources of a load as rows: Parquet, Arrow, CSV and JSON lines, from files, pipes or memory.

Each source finds the file and line of a row, so that errors can name it.
"""

import csv as plain_csv
import hashlib
import io
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import orjson
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.ipc as ipc
import pyarrow.parquet as parquet

from headgate.errors import HeadgateError, InvalidRows, InvalidSource, find_quoted_failure
from headgate.files.objects import StoredContent
from headgate.model.names import DatasetName

STDIN = "-"
_PARQUET_MAGIC = b"PAR1"
_ARROW_MAGIC = b"ARROW1"
# The name of a source's file, in the metadata of an Arrow schema.
FILE_METADATA = b"headgate.file"
# Beside it: the columns are text, as in CSV.
TEXT_METADATA = b"headgate.text"
# And for lines of JSON: the column that says which rows have a column, as JSON by column.
GIVEN_METADATA = b"headgate.given"
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
_GZIP = b"\x1f\x8b"
LINE_LIMIT_BYTES = 64 * 1024 * 1024
_LINE_TOO_LONG = "the line is over 64 MiB"
_BLOCK = 16 * 1024 * 1024
ROWS_SHOWN = 100
ROWS_IN_PART = 100_000
BYTE_ORDERS = (b"\xff\xfe", b"\xfe\xff")
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# The field size limit of Python's CSV reader.
_NO_LIMIT = 2**31 - 1

SourceLike: TypeAlias = str | Path | bytes | pa.Table | StoredContent
SourcesByTable: TypeAlias = Mapping[DatasetName, Sequence[SourceLike]]


def row_number(row: int) -> int:
    """Return the place of a row in a file without lines."""
    return row + 1


@dataclass(frozen=True, kw_only=True)
class Source:
    """Rows with their file; `line_of` returns the line of a row."""

    file: str
    rows: pa.Table
    line_of: Callable[[int], int] = row_number
    # Every column is text, whatever its values mean.
    is_text: bool = False
    # For a column that some rows do not have at all: whether each row has it.
    given: Mapping[str, pa.ChunkedArray] = field(default_factory=dict)


class StdinBytes(bytes):
    """The content of stdin, which can be read only once."""


def read_sources(where: SourceLike) -> Iterator[Source]:
    """Read every source of an argument; a directory gives its files in the order of their names."""
    if isinstance(where, pa.Table):
        yield Source(file="(rows)", rows=where)
        return
    if isinstance(where, StoredContent):
        where = where.read()
    if isinstance(where, bytes):
        name = STDIN if isinstance(where, StdinBytes) else "(rows)"
        yield _read(name, format_of_content(where), where)
        return
    if str(where) == STDIN:
        content = sys.stdin.buffer.read()
        yield _read(STDIN, format_of_content(content), content)
        return
    for file in files_of(Path(where)):
        yield _read(str(file), format_of_file(file), file)


def files_of(path: Path) -> list[Path]:
    """Return the file itself, or the data files of a directory in the order of their names."""
    if not path.is_dir():
        return [path]
    files = sorted(
        p
        for p in path.rglob("*")
        if p.is_file() and not p.name.startswith((".", "_")) and p.suffix.lower() in _SUFFIXES
    )
    if not files:
        raise InvalidSource(file=str(path), reason="the directory has no data file")
    return files


def stream_file(path: Path, format: str, *, file: str) -> Iterator[Source]:
    """Read a file's rows in parts that fit into memory; errors name it as `file`."""
    match format:
        case "csv":
            yield from stream_csv(file, path)
        case "jsonl":
            yield from stream_jsonl(file, path, rows_at_most=ROWS_IN_PART)
        case "arrow":
            with read_arrow_batches(path) as (schema, batches):
                yield from in_parts(file, schema, batches)
        case _:
            yield from stream_parquet(file, path)


def stream_parquet(
    file: str, path: Path, *, columns: Sequence[str] | None = None
) -> Iterator[Source]:
    """Read the rows of a Parquet file in parts, or some columns of them."""
    with parquet.ParquetFile(path) as parts:
        batches = parts.iter_batches(batch_size=ROWS_IN_PART, columns=columns)
        schema = parts.schema_arrow
        if columns is not None:
            schema = pa.schema([schema.field(name) for name in columns])
        yield from in_parts(file, schema, map(_validated, batches))


def in_parts(
    file: str,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    line_of: Callable[[int], int] = row_number,
) -> Iterator[Source]:
    """Yield batches as parts of a file, after a part without rows that has the columns."""
    yield Source(file=file, rows=pa.Table.from_batches([], schema), line_of=line_of)
    first = 0
    for batch in batches:
        rows = pa.Table.from_batches([batch])
        yield Source(file=file, rows=rows, line_of=_lines_from(first, line_of))
        first += rows.num_rows


def _lines_from(first: int, line_of: Callable[[int], int]) -> Callable[[int], int]:
    """Return the lines of a part of a file that starts at this row."""
    return lambda row: line_of(first + row)


def line_finder(path: Path, format: str) -> Callable[[int], int]:
    """Return a function from the number of a row in the file to its line."""
    match format:
        case "csv":
            return CsvLines(path).of
        case "jsonl":
            return lambda row: line_of_object(path, row)
    return row_number


def format_of_file(path: Path) -> str:
    """Return the format by the file's first bytes, or else by its name."""
    try:
        with path.open("rb") as raw:
            start = raw.read(8)
    except OSError as error:
        raise rejected(str(path), error, error.strerror or str(error)) from error
    if start.startswith(_PARQUET_MAGIC):
        return "parquet"
    if start.startswith(_ARROW_MAGIC):
        return "arrow"
    found = _SUFFIXES.get(path.suffix.lower())
    if found is None:
        raise InvalidSource(
            file=str(path),
            reason=f"its name has none of the known suffixes ({', '.join(sorted(_SUFFIXES))})",
        )
    return found


def _read(file: str, format: str, where: Path | bytes) -> Source:
    try:
        match format:
            case "parquet":
                with open_for_arrow(where) as raw, parquet.ParquetFile(raw) as parts:
                    rows = parts.read()
                rows.validate(full=True)
            case "arrow":
                with read_arrow_batches(where) as (schema, batches):
                    rows = pa.Table.from_batches(batches, schema)
                if isinstance(where, bytes):
                    return _sent_by_client(file, rows)
            case "csv":
                return read_csv(file, where)
            case _:
                [source] = stream_jsonl(file, where)
                return source
        _check_names(list(rows.schema))
    except MemoryError:
        # Arrow's own is an `ArrowException` too, but no fault of the file.
        raise
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise not_of_format(file, format, error) from error
    return Source(file=file, rows=rows)


def _check_names(fields: Sequence[pa.Field]) -> None:
    """Raise `UnicodeDecodeError` for a name that is not UTF-8: Arrow decodes it only when read."""
    for one in fields:
        _ = one.name
        kind = one.type
        if pa.types.is_nested(kind):
            _check_names([kind.field(at) for at in range(kind.num_fields)])


def not_of_format(file: str, format: str, error: Exception) -> HeadgateError:
    """Return the error of a file that the reader of its format rejects."""
    reason = str(error).split("\n", 1)[0]
    return rejected(file, error, f"it is not a readable {format} file: {reason}")


def rejected(file: str, error: Exception, reason: str) -> HeadgateError:
    """Return `InvalidSource`, unless the machine failed, for which the file is not to blame."""
    return find_quoted_failure(str(error), file) or InvalidSource(file=file, reason=reason)


def _sent_by_client(file: str, rows: pa.Table) -> Source:
    """Return rows with the facts about their file that a client adds as metadata."""
    _check_names(list(rows.schema))
    facts = rows.schema.metadata or {}
    file = facts[FILE_METADATA].decode(errors="replace") if FILE_METADATA in facts else file
    try:
        marks = {
            str(n): str(mark) for n, mark in orjson.loads(facts.get(GIVEN_METADATA, b"{}")).items()
        }
        given = {name: rows.column(mark).cast(pa.bool_()) for name, mark in marks.items()}
        rows = rows.drop_columns(list(marks.values()))
        if unknown := marks.keys() - set(rows.column_names):
            raise KeyError(*unknown)
    except (orjson.JSONDecodeError, AttributeError, KeyError, pa.ArrowException) as error:
        reason = f"the metadata {GIVEN_METADATA.decode()!r} of its schema is not valid: {error}"
        raise InvalidSource(file=file, reason=reason) from error
    return Source(file=file, rows=rows, is_text=TEXT_METADATA in facts, given=given)


def as_sent(source: Source) -> pa.Table:
    """Return the rows with the facts about their file as metadata, for `_sent_by_client`."""
    facts = {FILE_METADATA: source.file.encode()}
    if source.is_text:
        facts[TEXT_METADATA] = b"1"
    rows, marks = source.rows, {}
    for number, (name, given) in enumerate(source.given.items()):
        marks[name] = f"{GIVEN_METADATA.decode()}.{number}"
        rows = rows.append_column(marks[name], given)
    if marks:
        facts[GIVEN_METADATA] = orjson.dumps(marks)
    return rows.replace_schema_metadata(facts)


def format_of_content(content: bytes) -> str:
    """Return the format of bytes that came without a file name."""
    if content.startswith(_PARQUET_MAGIC):
        return "parquet"
    if content.startswith((_ARROW_MAGIC, b"\xff\xff\xff\xff")):
        return "arrow"
    text = content.removeprefix(BYTE_ORDER_MARK).lstrip()
    return "jsonl" if text[:1] in {b"{", b"["} else "csv"


@contextmanager
def read_arrow_batches(where: Path | bytes) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
    """Read an Arrow file or stream, a batch at a time.

    Arrow's reader takes offsets and lengths as they are sent, so a forged one would read memory of
    this process beyond the batch, or crash it. Each batch is validated before any of it is used.
    """
    with open_for_arrow(where) as raw:
        is_file = raw.read(len(_ARROW_MAGIC)) == _ARROW_MAGIC
        raw.seek(0)
        if is_file:
            reader = ipc.open_file(raw)
            batches = (reader.get_batch(at) for at in range(reader.num_record_batches))
            yield reader.schema, map(_validated, batches)
        else:
            stream = ipc.open_stream(raw)
            yield stream.schema, map(_validated, stream)


def _validated(batch: pa.RecordBatch) -> pa.RecordBatch:
    batch.validate(full=True)
    return batch


def read_lines(file: str, stream: BinaryIO) -> Iterator[bytes]:
    """Read line by line; raise for a line that would not fit into memory."""
    number = 0
    while line := stream.readline(LINE_LIMIT_BYTES):
        number += 1
        if len(line) == LINE_LIMIT_BYTES and not line.endswith(b"\n"):
            raise InvalidSource(file=f"{file}:{number}", reason=_LINE_TOO_LONG)
        if number == 1 and line.startswith(BYTE_ORDERS):
            raise InvalidSource(file=file, reason="it is UTF-16; save it as UTF-8")
        yield line


def opened(where: Path | bytes) -> BinaryIO:
    return io.BytesIO(where) if isinstance(where, bytes) else where.open("rb")


def open_for_arrow(where: Path | bytes) -> pa.NativeFile:
    """Open the bytes of a source for Arrow's readers, as a file that is not a Python object.

    Arrow reads ahead in threads of its own, which may still run when the process exits because the
    source is rejected. A thread that then needs Python's lock, to read from a Python object, aborts
    the process.
    """
    return pa.BufferReader(where) if isinstance(where, bytes) else pa.OSFile(str(where))


def stream_csv(file: str, path: Path) -> Iterator[Source]:
    """Read the rows in parts that fit into memory, all columns as text."""
    _check_quotes_closed(file, path)
    with _csv_options(file, path) as options:
        reader = csv.open_csv(path, **options)
        yield from in_parts(file, reader.schema, reader, CsvLines(path).of)


def read_csv(file: str, where: Path | bytes) -> Source:
    """Read all columns as text: the table's schema decides their types."""
    _check_quotes_closed(file, where)
    lines = CsvLines(where)
    with _csv_options(file, where) as options:
        rows = csv.read_csv(open_for_arrow(where), **options)
    return Source(file=file, rows=rows, line_of=lines.of, is_text=True)


@contextmanager
def _csv_options(file: str, where: Path | bytes) -> Iterator[dict[str, Any]]:
    """Return the options of the CSV reader; bad rows are raised together at the end."""
    delimiter = _delimiter(file)
    header = _header(file, where, delimiter)
    bad: list[dict[str, Any]] = []

    def skip(row: Any) -> str:
        values = "1 value" if row.actual_columns == 1 else f"{row.actual_columns} values"
        reason = f"{values}, the header has {row.expected_columns} columns"
        bad.append({"file": file, "line": row.number or 0, "reason": reason})
        return "skip" if len(bad) < ROWS_SHOWN else "error"

    try:
        yield {
            "read_options": csv.ReadOptions(use_threads=False, block_size=_BLOCK),
            "parse_options": csv.ParseOptions(
                delimiter=delimiter, newlines_in_values=True, invalid_row_handler=skip
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


def _check_quotes_closed(file: str, where: Path | bytes) -> None:
    """Raise where a quoted value never ends.

    Arrow silently ends such a value with the file, and loses all rows behind it. An even count of
    quotes proves nothing, since a quote within a value is just a character; so a file with any
    quote is parsed once more.
    """
    with opened(where) as stream:
        if not any(b'"' in block for block in iter(lambda: stream.read(_BLOCK), b"")):
            return
    limit = plain_csv.field_size_limit(_NO_LIMIT)
    try:
        with io.TextIOWrapper(opened(where), "utf-8", errors="replace", newline="") as text:
            rows = plain_csv.reader(text, delimiter=_delimiter(file), strict=True)
            line = 1
            try:
                for _ in rows:
                    line = rows.line_num + 1
            except plain_csv.Error as error:
                if "end of data" in str(error):
                    reason = "a quoted value begins here and never ends"
                    raise InvalidSource(file=f"{file}:{line}", reason=reason) from error
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
        raise InvalidSource(file=file, reason="it is compressed; decompress it first")
    if b"\0" in first:
        raise InvalidSource(file=file, reason="it has zero bytes, like UTF-16; save it as UTF-8")
    if not first.strip():
        raise InvalidSource(file=f"{file}:1", reason="it has no header line")
    try:
        names = csv.read_csv(
            open_for_arrow(first if first.endswith(b"\n") else first + b"\n"),
            parse_options=csv.ParseOptions(delimiter=delimiter),
        ).column_names
    except UnicodeDecodeError as error:
        raise InvalidSource(file=f"{file}:1", reason="its header is not UTF-8") from error
    except pa.ArrowInvalid as error:
        raise InvalidSource(file=f"{file}:1", reason="its header cannot be parsed") from error
    repeated = {name for name in names if names.count(name) > 1}
    if repeated:
        raise InvalidSource(file=f"{file}:1", reason=f"column {min(repeated)!r} occurs twice")
    return [str(name) for name in names]


def _csv_error(file: str, where: Path | bytes, error: pa.ArrowInvalid) -> InvalidSource:
    """Return the error with the line that the parser failed on, found by its bytes."""
    with opened(where) as stream:
        for number, line in enumerate(read_lines(file, stream), start=1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as decoding:
                return InvalidSource(
                    file=f"{file}:{number}",
                    reason=f"byte {decoding.start + 1} of the line is not UTF-8",
                )
    return InvalidSource(file=file, reason=str(error).split("\n", 1)[0])


class CsvLines:
    """Finds the line on which a row begins; quoted values may span several lines.

    Rows are mostly looked up in order, so a search continues from the last row found.
    """

    def __init__(self, where: Path | bytes) -> None:
        self._where = where
        # The last row found, its line and its offset.
        self._found = (-1, 1, 0)

    def of(self, row: int) -> int:
        found, line, at = self._found if self._found[0] <= row else (-1, 1, 0)
        quoted = False
        # Counts the lines on which rows begin.
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


def line_of_object(path: Path, row: int) -> int:
    """Return the line of an object by the number of objects before it."""
    with path.open("rb") as stream:
        held = (number for number, line in enumerate(stream, start=1) if line.strip())
        return next(islice(held, row, None))


def stream_jsonl(
    file: str, where: Path | bytes, *, rows_at_most: int | None = None
) -> Iterator[Source]:
    """Read one object from each line, in parts; blank lines are skipped."""
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
    counts = Counter(chain.from_iterable(found))
    given = {
        name: pa.chunked_array([[name in row for row in found]])
        for name, count in counts.items()
        if count < len(found)
    }
    if found and not counts:
        raise InvalidSource(file=f"{file}:{places[0]}", reason="its objects have no column")
    rows = _table(found, list(counts))
    return Source(file=file, rows=rows, line_of=lambda row: places[row], given=given)


def _object(line: bytes) -> tuple[dict[str, Any], str]:
    try:
        value = orjson.loads(line.removeprefix(BYTE_ORDER_MARK))
    except orjson.JSONDecodeError as error:
        return {}, f"it is not JSON: {str(error).split(':')[0]}"
    if not isinstance(value, dict):
        return {}, 'it is not a JSON object, such as {"id": 1}'
    return value, ""


def _table(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> pa.Table:
    arrays = []
    for column in columns:
        values = [row.get(column) for row in rows]
        try:
            if {bool} < {type(value) for value in values if value is not None}:
                # Arrow reads true among numbers as a number.
                raise pa.ArrowTypeError("true and false among other values")
            arrays.append(pa.array(values))
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            # Lines differ in type: as text, which is cast to the table's type row by row.
            arrays.append(pa.array([_text(value) for value in values], pa.string()))
    return pa.table(dict(zip(columns, arrays, strict=True)))


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else orjson.dumps(value).decode()


# The identity of a load, by which a repeated request is recognized.


def with_stdin_read(sources: SourcesByTable) -> dict[DatasetName, list[Any]]:
    """Return the sources with the content of stdin in place of `-`."""
    return {
        name: [StdinBytes(sys.stdin.buffer.read()) if str(one) == STDIN else one for one in each]
        for name, each in sources.items()
    }


def names_of(sources: SourcesByTable) -> dict[str, list[str]]:
    """Return the names of files, and digests of sources without a name."""
    return {str(name): [_name(one) for one in each] for name, each in sources.items()}


def contents_of(sources: SourcesByTable) -> str | None:
    """Return a digest of the files' contents; None where one is missing or is a pipe."""
    found = hashlib.sha256()
    for _, each in sorted(sources.items(), key=lambda item: str(item[0])):
        for one in each:
            if not isinstance(one, str | Path):
                continue
            if str(one) == STDIN:
                return None
            try:
                for file in files_of(Path(one)):
                    with file.open("rb") as raw:
                        found.update(hashlib.file_digest(raw, "sha256").digest())
            except (OSError, InvalidSource):
                # The reader raises it; a finished load needs its files no more.
                return None
    return found.hexdigest()


def _name(one: Any) -> str:
    if isinstance(one, StoredContent):
        return one.digest
    if isinstance(one, str | Path):
        return str(one)
    if isinstance(one, bytes):
        return hashlib.sha256(one).hexdigest()
    digest = hashlib.sha256(str(one.schema).encode())
    for column in one.columns:
        for chunk in column.chunks:
            for buffer in chunk.buffers():
                digest.update(buffer or b"-")
    return digest.hexdigest()
