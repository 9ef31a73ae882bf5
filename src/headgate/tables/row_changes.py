"""Which rows two versions do not share: exact, and in bounded memory. Needs the extra `arrow`."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from headgate.tables.encoding import encode_rows
from headgate.tables.parting import KEY, ROW, OnePart, Parts, SpilledParts, with_marks
from headgate.tables.rows import ChangedRow, Row, RowChanges, left_over
from headgate.tables.values import plain_rows

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
