"""Rows of one file, each of which knows its line, so that a bad one can be named."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from headgate.errors import InvalidSource

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
