"""CSV as rows: all columns as text, since which type they have is the table's to say."""

from __future__ import annotations

import csv as plain_csv
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as csv

from headgate.errors import InvalidRows, InvalidSource
from headgate.mutations.source import (
    BYTE_ORDERS,
    LINE_LIMIT_BYTES,
    ROWS_SHOWN,
    Source,
    lines_from,
    opened,
    read_lines,
)

_BLOCK = 16 * 1024 * 1024
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
