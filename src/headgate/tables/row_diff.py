"""Rows that two table versions do not share: exact, and in bounded memory.

Files that both versions have are not read. The rows of the others are encoded as bytes, and
compared in parts by a hash of their keys. Needs the extra `arrow`.
"""

import tempfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from headgate.tables import scan
from headgate.tables.diff import ChangedRow, OnLarge, Pair, RowChanges
from headgate.tables.metadata import Row
from headgate.tables.schemas import widest


def compare_files(
    before: scan.TableScan | None,
    after: scan.TableScan | None,
    *,
    pairs: Sequence[Pair],
    key: Sequence[int],
    samples: int,
    on_large: OnLarge,
) -> tuple[bool, RowChanges]:
    """Return whether rows had to be compared, and the changes.

    A file that both versions have, with the same deletes, holds no difference and is not read.
    """
    if pairs and all(one.id == other.id for one, other in pairs):
        old, new = scan.changed_files(before, after)
    else:
        # The same file has other columns on each side.
        old, new = before.plan() if before else [], after.plan() if after else []
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


def _compared_type(
    pair: Pair, at: int, before: scan.TableScan, after: scan.TableScan
) -> pa.DataType:
    """Return a column's own type, or the wider one of the two where it has changed."""
    one, other = pair
    if isinstance(one.type, str) and isinstance(other.type, str):
        wide = before if widest(one.type, other.type) == one.type else after
        return wide.schema.field((one if wide is before else other).path).type
    return (before, after)[at].schema.field(pair[at].path).type


# Limits of one part, both sides together: some hundred MB while it is compared.
_PART_ROWS = 500_000
_PART_BYTES = 32 * 1024 * 1024
# Each part is an open file while rows are distributed.
_MOST_PARTS = 256
_BYTES = pa.large_binary()
# Positions of the columns behind a table's own: a row's key, and its compared columns.
_KEY, _ROW = -2, -1


@dataclass(frozen=True, kw_only=True)
class ReadSide:
    """One side's rows, and its columns to compare with the types to compare them as."""

    schema: pa.Schema
    batches: Iterable[pa.RecordBatch]
    # At most this many rows, in files of this size.
    row_count: int
    size_bytes: int
    columns: Sequence[str]
    types: Sequence[pa.DataType]
    # Positions among the columns; empty: rows have no key.
    key: Sequence[int]

    @property
    def encoded_schema(self) -> pa.Schema:
        """The table's schema with unnamed columns for key and row behind it."""
        return self.schema.append(pa.field("", _BYTES)).append(pa.field("", _BYTES))

    def encoded(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows, with the bytes of key and row in the last two columns."""
        for batch in self.batches:
            compared = [
                batch.column(name).cast(kind)
                for name, kind in zip(self.columns, self.types, strict=True)
            ]
            row = encode_rows(compared)
            key = encode_rows([compared[at] for at in self.key]) if self.key else row
            yield pa.RecordBatch.from_arrays([*batch.columns, key, row], schema=self.encoded_schema)


def compare_rows(
    before: ReadSide,
    after: ReadSide,
    *,
    samples: int,
    on_large: OnLarge,
    part_rows: int = _PART_ROWS,
) -> RowChanges:
    """Return the multiset difference of the rows; with a key, the rest are paired by it."""
    changes = RowChanges()
    rows = before.row_count + after.row_count
    size = before.size_bytes + after.size_bytes
    parts = min(max(rows // part_rows, size // _PART_BYTES) + 1, _MOST_PARTS)
    if parts > 1:
        on_large(rows, parts)
    with tempfile.TemporaryDirectory(prefix="headgate-compare-") as directory:
        load_old = _split(before, Path(directory, "before"), parts)
        load_new = _split(after, Path(directory, "after"), parts)
        for part in range(parts):
            _compare_part(before, after, load_old(part), load_new(part), changes, samples)
    return changes


def _compare_part(
    before: ReadSide,
    after: ReadSide,
    old: pa.Table,
    new: pa.Table,
    changes: RowChanges,
    samples: int,
) -> None:
    gone, come = scan.unmatched(_values(old, _ROW), _values(new, _ROW))
    pairs: list[tuple[int, int]] = []
    if after.key:
        gone, come, pairs = _pair(gone, come, _values(old, _KEY), _values(new, _KEY))
    changes.removed += len(gone)
    changes.added += len(come)
    changes.changed += len(pairs)
    changes.removed_rows += _rows_at(old, gone[: samples - len(changes.removed_rows)])
    changes.added_rows += _rows_at(new, come[: samples - len(changes.added_rows)])
    shown = pairs[: samples - len(changes.changed_rows)]
    olds = _rows_at(old, [at for at, _ in shown])
    for one, other in zip(olds, _rows_at(new, [at for _, at in shown]), strict=True):
        changes.changed_rows.append(_changed(before, after, one, other))


def _pair(
    gone: Iterable[int], come: Iterable[int], old_keys: list[bytes], new_keys: list[bytes]
) -> tuple[list[int], list[int], list[tuple[int, int]]]:
    """Pair rows that have one key on both sides; rows of a repeated key are paired once each."""
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
    own = rows.select(range(rows.num_columns + _KEY))
    return scan.json_rows(own.take(pa.array(positions, pa.int64())))


# Returns one part of a side; part n of both sides has the same keys.
LoadPart: TypeAlias = Callable[[int], pa.Table]


def _split(side: ReadSide, directory: Path, parts: int) -> LoadPart:
    """Read a side: one part stays in memory; several are files, mapped into memory when loaded."""
    if parts == 1:
        rows = pa.Table.from_batches(list(side.encoded()), side.encoded_schema)
        return lambda part: rows
    directory.mkdir()
    files = [str(directory / f"{part}.arrow") for part in range(parts)]
    with ExitStack() as stack:
        writers = [
            stack.enter_context(pa.ipc.new_file(file, side.encoded_schema)) for file in files
        ]
        for batch in side.encoded():
            for part, rows in _distribute(batch, parts):
                writers[part].write_batch(rows)

    def load(part: int) -> pa.Table:
        with pa.memory_map(files[part]) as source:
            return pa.ipc.open_file(source).read_all()

    return load


def _distribute(batch: pa.RecordBatch, parts: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Cut the batch into parts by a hash that is the same in every process."""
    keys: list[Any] = batch.column(batch.num_columns + _KEY).to_pylist()
    places = pa.array([zlib.crc32(key) % parts for key in keys], pa.int32())
    sorted_rows = batch.take(pc.sort_indices(places))
    start = 0
    for count in sorted(pc.value_counts(places).to_pylist(), key=lambda found: found["values"]):
        yield count["values"], sorted_rows.slice(start, count["counts"])
        start += count["counts"]


# --- rows as bytes, equal exactly where the rows are ----------------------------------------

# Numbers, dates and booleans have none of these characters; texts begin with their length.
_SEPARATOR = pa.scalar(b"\x1f", _BYTES)
_NULL = b"~"


def encode_rows(columns: Sequence[pa.Array]) -> pa.Array:
    """Return one value for each row of these columns; null equals null, and NaN equals NaN."""
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
        # Arrow has no text for nested values, so Python writes them one by one.
        values = [
            None if value is None else repr(scan.json_value(value, kind)).encode()
            for value in column.to_pylist()
        ]
        return _with_length(pa.array(values, _BYTES))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _with_length(column.cast(pa.large_string()).cast(_BYTES))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _with_length(column.cast(_BYTES))
    if pa.types.is_fixed_size_binary(kind):
        return _with_length(column.cast(pa.binary()).cast(_BYTES))
    if pa.types.is_temporal(kind):
        # By number: the text of a timestamp would need the machine's time zones.
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
