"""Which files two versions do not share, and what that says about their rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from headgate.tables.arrow import ArrowTable, DataFile
from headgate.tables.row_changes import ReadSide, compare_rows
from headgate.tables.rows import RowChanges, left_over
from headgate.tables.schema_changes import Pair, widest


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
