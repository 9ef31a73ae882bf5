"""Rows dealt out by their keys, so that a table of any size is compared a part at a time."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

# The columns behind a table's own: a row's key, and all of it that is compared.
KEY, ROW = -2, -1


class Parts(Protocol):
    """The parts of one side; part n of the one side has the keys of part n of the other."""

    def load(self, part: int) -> pa.Table:
        """The rows of a part, their keys and encodings in the last two columns."""
        ...


class OnePart:
    """All rows in memory."""

    def __init__(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> None:
        self._rows = pa.Table.from_batches(list(batches), schema)

    def load(self, part: int) -> pa.Table:
        return self._rows


class SpilledParts:
    """Rows in one file per part below a directory, written once and then mapped into memory."""

    def __init__(
        self, batches: Iterable[pa.RecordBatch], schema: pa.Schema, directory: Path, parts: int
    ) -> None:
        directory.mkdir()
        self._files = [directory / f"{part}.arrow" for part in range(parts)]
        with ExitStack() as open_files:
            writers = [
                open_files.enter_context(pa.ipc.new_file(str(file), schema)) for file in self._files
            ]
            for batch in batches:
                for part, rows in _deal(batch, parts):
                    writers[part].write_batch(rows)

    def load(self, part: int) -> pa.Table:
        with pa.memory_map(str(self._files[part])) as source:
            return pa.ipc.open_file(source).read_all()


def with_marks(schema: pa.Schema) -> pa.Schema:
    """A table's schema with the columns for key and row behind it; they need no names."""
    return schema.append(pa.field("", pa.large_binary())).append(pa.field("", pa.large_binary()))


def _deal(batch: pa.RecordBatch, parts: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The batch cut into parts, by a hash that is the same in every process."""
    keys: list[Any] = batch.column(batch.num_columns + KEY).to_pylist()
    places = pa.array([zlib.crc32(key) % parts for key in keys], pa.int32())
    order = pc.sort_indices(places)
    sorted_rows = batch.take(order)
    start = 0
    for count in sorted(pc.value_counts(places).to_pylist(), key=lambda found: found["values"]):
        yield count["values"], sorted_rows.slice(start, count["counts"])
        start += count["counts"]
