"""Rows as bytes that are equal exactly where the rows are, made by Arrow a batch at a time."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from headgate.tables.values import plain

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
