"""Types of Arrow that Spark does not read from a Parquet file, and what it reads in their place."""

from __future__ import annotations

import pyarrow as pa


def schema_for_spark(schema: pa.Schema) -> pa.Schema:
    """The same columns in types that Spark reads; the same schema where it reads all of them."""
    return pa.schema([_field(field) for field in schema], schema.metadata)


def _field(field: pa.Field) -> pa.Field:
    return field.with_type(_kind(field.type))


def _kind(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        # As data frames write their moments. A value that has more digits is refused by its row.
        return pa.timestamp("us", tz=kind.tz)
    if pa.types.is_time(kind):
        return pa.string()
    if pa.types.is_float16(kind):
        return pa.float32()
    if pa.types.is_struct(kind):
        return pa.struct([_field(field) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_field(kind.key_field), _field(kind.item_field))
    if pa.types.is_large_list(kind):
        return pa.large_list(_field(kind.value_field))
    if pa.types.is_fixed_size_list(kind):
        # In a file it is a list like any other, and these are often most of it.
        inside = _field(kind.value_field)
        return kind if inside.type == kind.value_type else pa.list_(inside)
    if pa.types.is_list(kind):
        return pa.list_(_field(kind.value_field))
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        return pa.large_list(_field(kind.value_field))
    if pa.types.is_run_end_encoded(kind):
        return _kind(kind.value_type)
    return kind
