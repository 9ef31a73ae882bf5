"""JSON lines as rows: an object on each line; blank lines are passed over."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from headgate.errors import InvalidRows
from headgate.mutations.source import (
    BYTE_ORDER_MARK,
    ROWS_IN_PART,
    ROWS_SHOWN,
    Source,
    opened,
    read_lines,
)

_BLOCK = 16 * 1024 * 1024
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
