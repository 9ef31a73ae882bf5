"""Lists, structs and maps: taken apart, each part fitted as what stands alone, and put together.

Arrow can cast them whole, and is then as generous within as a load must not be.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

Cast = Callable[[pa.ChunkedArray, pa.DataType], pa.ChunkedArray]


def plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The same values in the usual form of their type, without what only saves space."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return plain(column.cast(kind.value_type))
    if pa.types.is_run_end_encoded(kind):
        return plain(pc.run_end_decode(column))
    if pa.types.is_string_view(kind):
        return column.cast(pa.large_string())
    if pa.types.is_binary_view(kind):
        return column.cast(pa.large_binary())
    return column


def fit_within(column: pa.ChunkedArray, kind: pa.DataType, cast: Cast) -> pa.ChunkedArray:
    """A column of a nested type in another; a ValueError where it is none of that form."""
    put = _put_list
    if pa.types.is_struct(kind):
        put = _put_struct
    elif pa.types.is_map(kind):
        put = _put_map
    return pa.chunked_array([put(chunk, kind, cast) for chunk in column.chunks], kind)


def holds_moments(kind: pa.DataType) -> bool:
    """Whether a date or a moment is somewhere in it, which may be of an impossible year."""
    if pa.types.is_nested(kind):
        return any(holds_moments(kind.field(n).type) for n in range(kind.num_fields))
    return bool(pa.types.is_temporal(kind))


def _put_list(given: pa.Array, kind: pa.DataType, cast: Cast) -> pa.Array:
    if not _is_list(given.type):
        raise ValueError("not a list")
    values = _fitted(given.flatten(), kind.value_field, cast)
    whole = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray
    return whole.from_arrays(_offsets(given, kind), values, type=kind, mask=given.is_null())


def _put_map(given: pa.Array, kind: pa.DataType, cast: Cast) -> pa.Array:
    if not pa.types.is_map(given.type):
        raise ValueError("not a map")
    entry = pa.struct([given.type.key_field, given.type.item_field])
    lists = given.cast(pa.list_(entry))
    keys, items = lists.flatten().flatten()
    return pa.MapArray.from_arrays(
        _offsets(lists, kind),
        _fitted(keys, kind.key_field, cast),
        _fitted(items, kind.item_field, cast),
        type=kind,
        mask=given.is_null(),
    )


def _put_struct(given: pa.Array, kind: pa.DataType, cast: Cast) -> pa.Array:
    if not pa.types.is_struct(given.type):
        raise ValueError("not a struct")
    parts = dict(zip((field.name for field in given.type), given.flatten(), strict=True))
    fields = []
    for field in kind:
        values = parts.pop(field.name, None)
        if values is None:
            values = pa.nulls(len(given), field.type)
        # Where the whole is nothing, so is every part of it, also one that must be there.
        fields.append(_fitted(values, field, cast, absent=given.is_null()))
    for name, values in parts.items():
        if values.null_count < len(values):
            raise ValueError(f"no field {name!r}")
    return pa.StructArray.from_arrays(fields, fields=list(kind), mask=given.is_null())


def _fitted(
    values: pa.Array, field: pa.Field, cast: Cast, *, absent: pa.Array | None = None
) -> pa.Array:
    made = _whole(cast(pa.chunked_array([values]), field.type))
    if not field.nullable and made.null_count:
        missing = made.is_null() if absent is None else pc.and_not(made.is_null(), absent)
        if pc.any(missing).as_py():
            raise ValueError(f"{field.name} is missing")
    return made


def _offsets(lists: pa.Array, kind: pa.DataType) -> pa.Array:
    """Where each list begins among the values of all, and where the last ends."""
    # Arrow can cast views to lists too, but makes broken ones.
    lengths = pc.fill_null(pc.list_value_length(lists), 0).cast(pa.int64())
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(lengths)])
    return offsets if pa.types.is_large_list(kind) else offsets.cast(pa.int32())


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _is_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_fixed_size_list(kind)
        or pa.types.is_list_view(kind)
        or pa.types.is_large_list_view(kind)
    )
