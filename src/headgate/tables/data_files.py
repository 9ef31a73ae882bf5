"""Writing rows as data files: split by partition, sorted by key, with their statistics.

Needs the extras `arrow` and, for bucketed tables, `mutations`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io.pyarrow import pyarrow_to_schema, write_file
from pyiceberg.partitioning import PartitionFieldValue, PartitionKey
from pyiceberg.table import WriteTask

from headgate.tables.arrow import asking
from headgate.tables.scanning import TableScan

# Rows in memory; on disk they are several times smaller.
_FILE_BYTES = 512 * 1024 * 1024
_MARK = "\x00partition-"


def write_rows(scan: TableScan, rows: pa.Table, sort: Sequence[str] = ()) -> list[Any]:
    """Data files below the table's location that hold these rows; nothing refers to them yet."""
    if rows.num_rows == 0:
        return []
    with asking(scan.version.location):
        tasks = list(_tasks(scan, rows, sort))
        return list(write_file(scan.io, scan.metadata, iter(tasks)))


def _tasks(scan: TableScan, rows: pa.Table, sort: Sequence[str]) -> Iterator[WriteTask]:
    write_uuid = uuid.uuid4()
    names = scan.metadata.schema().name_mapping
    schema = pyarrow_to_schema(
        rows.schema, name_mapping=names, format_version=scan.metadata.format_version
    )
    number = 0
    for key, part in _split(scan, rows, sort):
        for piece in _pieces(part):
            yield WriteTask(
                write_uuid=write_uuid,
                task_id=number,
                schema=schema,
                record_batches=piece.to_batches(),
                partition_key=key,
            )
            number += 1


def _split(
    scan: TableScan, rows: pa.Table, sort: Sequence[str]
) -> Iterator[tuple[PartitionKey | None, pa.Table]]:
    """One stretch of rows for each partition, found by one sort however many there are."""
    spec, schema = scan.metadata.spec(), scan.metadata.schema()
    order = [(name, "ascending") for name in sort]
    if spec.is_unpartitioned():
        yield None, rows.sort_by(order) if order else rows
        return
    marked = rows
    marks = [f"{_MARK}{at}" for at in range(len(spec.fields))]
    for mark, field in zip(marks, spec.fields, strict=True):
        source = schema.find_field(field.source_id)
        transform = field.transform.pyarrow_transform(source.field_type)
        column = _plain(rows.column(source.name))
        marked = marked.append_column(mark, transform(column))
    keys = marked.select([*marks, *sort])
    marked = marked.take(pc.sort_indices(keys, [(name, "ascending") for name in keys.column_names]))
    groups = marked.select(marks).group_by(marks, use_threads=False).aggregate([([], "count_all")])
    start = 0
    for group in groups.to_pylist():
        values = [
            PartitionFieldValue(field=field, value=group[mark])
            for mark, field in zip(marks, spec.fields, strict=True)
        ]
        part = marked.slice(start, group["count_all"]).drop_columns(marks)
        start += group["count_all"]
        yield PartitionKey(field_values=values, partition_spec=spec, schema=schema), part


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The transforms know fewer spellings of a type than Arrow has."""
    if pa.types.is_large_string(column.type):
        return column.cast(pa.string())
    if pa.types.is_large_binary(column.type):
        return column.cast(pa.binary())
    return column


def _pieces(part: pa.Table) -> Iterator[pa.Table]:
    share = max(1, part.nbytes // _FILE_BYTES + 1)
    size = -(-part.num_rows // share)
    for start in range(0, part.num_rows, size):
        yield part.slice(start, size)
