"""Rows between the engine and a table: the same values in the table's own Arrow types."""

from __future__ import annotations

import uuid

import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import Invalid


def from_engine(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows with exactly the schema's columns and types; nothing is rounded or cut."""
    columns = [_fitted(rows.column(field.name), field) for field in schema]
    # Whether a value is missing is the validator's question, and it names the row.
    open_schema = pa.schema([field.with_nullable(True) for field in schema])
    return pa.table(columns, schema=open_schema)


def _fitted(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    try:
        return _column(column, field.type)
    except pa.ArrowInvalid as error:
        # The engine knows no binary of a fixed length, so that one of another came as far as here.
        raise Invalid(
            f"column {field.name!r} cannot hold one of its values: {error}. Nothing was changed.",
            column=field.name,
        ) from error


def _column(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if column.type == kind:
        return column
    if isinstance(kind, pa.UuidType):
        return _uuids(column, kind)
    return column.cast(kind)


def _uuids(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """The engine hands UUIDs out as text."""
    values = [None if v is None else uuid.UUID(str(v)).bytes for v in column.to_pylist()]
    storage = pa.array(values, pa.binary(16))
    return pa.chunked_array([pa.ExtensionArray.from_storage(kind, storage)])


# The first and the last day that dates and moments can have, in days from 1970: outside of the
# years 1 to 9999 the statistics of a file cannot be written.
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
_UNITS_IN_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}


def is_beyond_years(column: pa.ChunkedArray) -> bool:
    """Whether a date or a moment is there that is not in the years 1 to 9999."""
    kind = column.type
    if pa.types.is_date32(kind):
        first, end = _FIRST_DAY, _LAST_DAY + 1
        numbers = column.cast(pa.int32())
    elif pa.types.is_timestamp(kind):
        day = _UNITS_IN_DAY[kind.unit]
        first, end = _FIRST_DAY * day, (_LAST_DAY + 1) * day
        numbers = column.cast(pa.int64())
    else:
        return False
    found = pc.min_max(numbers).as_py()
    return found["min"] is not None and not first <= found["min"] <= found["max"] < end
