"""Which files two versions do not share, and what that says about their rows."""

from __future__ import annotations

import tempfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from headgate.tables.arrow import ArrowTable, DataFile, plain, plain_rows
from headgate.tables.rows import ChangedRow, Row, RowChanges, left_over
from headgate.tables.schema_diff import Pair, widest

# Rows as bytes that are equal exactly where the rows are, made by Arrow a batch at a time.

_BYTES = pa.large_binary()
# No number, date or truth value is written with these characters; texts say their length first.
_SEPARATOR = pa.scalar(b"\x1f", _BYTES)
_NULL = b"~"


def encode_rows(columns: Sequence[pa.Array]) -> pa.Array:
    """One value for each row of these columns; a null is equal to a null, NaN to NaN."""
    return pc.binary_join_element_wise(
        *(_encode(column) for column in columns),
        _SEPARATOR,
        null_handling="replace",
        null_replacement=_NULL,
    )


def _encode(column: pa.Array) -> pa.Array:
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        return _encode(column.storage)
    if pa.types.is_nested(kind):
        return _with_length(_written_out(column))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _with_length(column.cast(pa.large_string()).cast(_BYTES))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _with_length(column.cast(_BYTES))
    if pa.types.is_fixed_size_binary(kind):
        return _with_length(column.cast(pa.binary()).cast(_BYTES))
    if pa.types.is_temporal(kind):
        # By number: writing out a moment would need the machine's time zones.
        width = pa.int32() if kind.bit_width == 32 else pa.int64()
        return _text(column.cast(width))
    if pa.types.is_floating(kind):
        # Zero has two representations, and adding zero leaves one of them.
        return _text(pc.add(column, pa.scalar(0.0, kind)))
    return _text(column)


def _text(column: pa.Array) -> pa.Array:
    return column.cast(pa.large_string()).cast(_BYTES)


def _with_length(column: pa.Array) -> pa.Array:
    length = _text(pc.binary_length(column))
    return pc.binary_join_element_wise(length, column, pa.scalar(b":", _BYTES))


def _written_out(column: pa.Array) -> pa.Array:
    """Arrow has no text for nested values, so Python writes them, one by one."""
    values = [
        None if value is None else repr(plain(value, column.type)).encode()
        for value in column.to_pylist()
    ]
    return pa.array(values, _BYTES)


# Rows dealt out by their keys, so that a table of any size is compared a part at a time.

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


# Which rows two versions do not share: exact, and in bounded memory. Needs the extra `arrow`.

# What one part may hold of both sides together: some hundred MB while it is compared.
_PART_ROWS = 500_000
_PART_BYTES = 32 * 1024 * 1024
# Each part is an open file while rows are dealt out.
_MOST_PARTS = 256

# Told how many rows are to be compared and in how many parts, where they do not fit in one.
Large = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class ReadSide:
    """One side's rows, and which of its columns are compared as what types."""

    schema: pa.Schema
    batches: Iterable[pa.RecordBatch]
    # At most this many rows, in files of this size.
    row_count: int
    size_bytes: int
    columns: Sequence[str]
    types: Sequence[pa.DataType]
    # Positions among the columns; empty: rows have no key.
    key: Sequence[int]

    def marked(self) -> Iterator[pa.RecordBatch]:
        """All rows, with key and encoding in the last two columns."""
        for batch in self.batches:
            compared = [
                batch.column(name).cast(kind)
                for name, kind in zip(self.columns, self.types, strict=True)
            ]
            row = encode_rows(compared)
            key = encode_rows([compared[at] for at in self.key]) if self.key else row
            yield pa.RecordBatch.from_arrays(
                [*batch.columns, key, row], schema=with_marks(self.schema)
            )


def compare_rows(
    before: ReadSide,
    after: ReadSide,
    *,
    samples: int,
    on_large: Large,
    part_rows: int = _PART_ROWS,
) -> RowChanges:
    """The multiset difference of the rows; with a key, those left over are paired by it."""
    changes = RowChanges()
    parts = _part_count(before, after, part_rows)
    if parts > 1:
        on_large(before.row_count + after.row_count, parts)
    with tempfile.TemporaryDirectory(prefix="headgate-compare-") as directory:
        old = _part(before, Path(directory, "before"), parts)
        new = _part(after, Path(directory, "after"), parts)
        for part in range(parts):
            _compare_part(before, after, old.load(part), new.load(part), changes, samples)
    return changes


def _part_count(before: ReadSide, after: ReadSide, part_rows: int) -> int:
    rows = before.row_count + after.row_count
    size = before.size_bytes + after.size_bytes
    return min(max(rows // part_rows, size // _PART_BYTES) + 1, _MOST_PARTS)


def _part(side: ReadSide, directory: Path, parts: int) -> Parts:
    if parts == 1:
        return OnePart(side.marked(), with_marks(side.schema))
    return SpilledParts(side.marked(), with_marks(side.schema), directory, parts)


def _compare_part(
    before: ReadSide,
    after: ReadSide,
    old: pa.Table,
    new: pa.Table,
    changes: RowChanges,
    samples: int,
) -> None:
    gone, come = left_over(_values(old, ROW), _values(new, ROW))
    pairs: list[tuple[int, int]] = []
    if after.key:
        gone, come, pairs = _pair(gone, come, _values(old, KEY), _values(new, KEY))
    changes.removed += len(gone)
    changes.added += len(come)
    changes.changed += len(pairs)
    changes.removed_rows += _rows_at(old, gone[: samples - len(changes.removed_rows)])
    changes.added_rows += _rows_at(new, come[: samples - len(changes.added_rows)])
    shown = pairs[: samples - len(changes.changed_rows)]
    olds = _rows_at(old, [at for at, _ in shown])
    news = _rows_at(new, [at for _, at in shown])
    for one, other in zip(olds, news, strict=True):
        changes.changed_rows.append(_changed(before, after, one, other))


def _pair(
    gone: Iterable[int], come: Iterable[int], old_keys: list[bytes], new_keys: list[bytes]
) -> tuple[list[int], list[int], list[tuple[int, int]]]:
    """What has a key on both sides is changed; of a key that is there twice, each row once."""
    waiting: dict[bytes, list[int]] = defaultdict(list)
    for at in gone:
        waiting[old_keys[at]].append(at)
    added, pairs = [], []
    for at in come:
        same = waiting.get(new_keys[at])
        if same:
            pairs.append((same.pop(0), at))
        else:
            added.append(at)
    return sorted(at for left in waiting.values() for at in left), added, pairs


def _changed(before: ReadSide, after: ReadSide, old: Row, new: Row) -> ChangedRow:
    names = list(zip(before.columns, after.columns, strict=True))
    differing = [(one, other) for one, other in names if old[one] != new[other]]
    return ChangedRow(
        key={after.columns[at]: new[after.columns[at]] for at in after.key},
        before={one: old[one] for one, _ in differing},
        after={other: new[other] for _, other in differing},
    )


def _values(rows: pa.Table, column: int) -> list[bytes]:
    found: list[bytes] = rows.column(rows.num_columns + column).to_pylist()
    return found


def _rows_at(rows: pa.Table, positions: Sequence[int]) -> list[Row]:
    if not positions:
        return []
    own = rows.select(range(rows.num_columns + KEY))
    return plain_rows(own.take(pa.array(positions, pa.int64())))


def compare_files(
    before: ArrowTable | None,
    after: ArrowTable | None,
    *,
    pairs: Sequence[Pair],
    key: Sequence[int],
    samples: int,
    on_large: Callable[[int, int], None],
) -> tuple[bool, RowChanges]:
    """The changes, and whether rows had to be compared to know them.

    A file that both versions have, with the same deletes, holds no difference and is not read.
    """
    old, new = _own_files(before, after, pairs)
    if before and after and old and new and pairs:
        sides = [
            ReadSide(
                schema=table.schema,
                batches=table.batches(files),
                row_count=sum(file.row_count for file in files),
                size_bytes=sum(file.size_bytes for file in files),
                columns=[pair[at].path for pair in pairs],
                types=[_compared_type(pair, at, before, after) for pair in pairs],
                key=key,
            )
            for at, table, files in ((0, before, old), (1, after, new))
        ]
        return True, compare_rows(*sides, samples=samples, on_large=on_large)
    return False, RowChanges(
        added=after.count(new) if after else 0,
        removed=before.count(old) if before else 0,
        added_rows=after.rows(new, samples) if after else [],
        removed_rows=before.rows(old, samples) if before else [],
    )


def _own_files(
    before: ArrowTable | None, after: ArrowTable | None, pairs: Sequence[Pair]
) -> tuple[list[DataFile], list[DataFile]]:
    """The files of each side that the other does not have."""
    old = before.files() if before else []
    new = after.files() if after else []
    if not pairs or any(one.id != other.id for one, other in pairs):
        # The same file says something else to each of them.
        return old, new
    gone, come = left_over([file.identity for file in old], [file.identity for file in new])
    return [old[at] for at in gone], [new[at] for at in come]


def _compared_type(pair: Pair, at: int, before: ArrowTable, after: ArrowTable) -> pa.DataType:
    """A column's own type, or the wider one of the two where that has changed."""
    one, other = pair
    if isinstance(one.type, str) and isinstance(other.type, str):
        wide = before if widest(one.type, other.type) == one.type else after
        return wide.schema.field((one if wide is before else other).path).type
    return (before, after)[at].schema.field(pair[at].path).type
