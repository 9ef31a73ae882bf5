"""Casts of a source's rows to the columns and types of a table.

A value that does not have its column's type is an error that names its row. Text is understood as
SQL understands it, and numbers and timestamps become the text that Spark writes, whichever engine
does the work.
"""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import InvalidRows, InvalidSource
from headgate.model.names import column_hint
from headgate.rows.engine import has_year_out_of_range, uuids
from headgate.rows.sources import ROWS_SHOWN, Source

# Text that types accept.
_TRUE, _FALSE = ("true", "t", "yes", "y", "1"), ("false", "f", "no", "n", "0")
_BINARY = (pa.binary(), pa.large_binary())
_WHOLE = r"^-?\d+$"
_INFINITY = r"(?i)^\s*[+-]?inf(inity)?\s*$"
_UUID = r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
_TIME = r"^\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?$"
_ZONED = r"\d{2}:\d{2}.*(Z|[+-]\d{2}(:?\d{2})?)$"
# As a schema file names them.
_TYPE_NAMES = {
    "bool": "boolean",
    "int32": "int",
    "int64": "long",
    "date32[day]": "date",
    "time64[us]": "time",
    "timestamp[us]": "timestamp",
    "timestamp[us, tz=UTC]": "timestamptz",
    "large_string": "string",
    "large_binary": "binary",
}
# Arrow's errors for a value that cannot be cast.
CAST_ERRORS = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, ValueError)
# Numbers between these powers of ten are written without an exponent.
_MIN_POWER, _MAX_POWER = -3, 7
_SPECIAL_NUMBERS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def cast_rows(source: Source, schema: pa.Schema, dataset: str) -> pa.Table:
    """Return the source's columns in the table's types; raise for an unknown column."""
    names = match_columns(source.file, source.rows.column_names, schema, dataset)
    columns: dict[str, pa.ChunkedArray] = {}
    # The rows with a value that cannot be cast.
    failures: list[tuple[int, str]] = []
    for wanted, name in names.items():
        kind = schema.field(wanted).type
        column = source.rows.column(name)
        try:
            columns[wanted] = cast_column(column, kind)
        except CAST_ERRORS:
            columns[wanted], found = _cast_by_halves(column, kind, wanted)
            failures += found
    if failures:
        rows = [
            {"file": source.file, "line": source.line_of(row), "reason": reason}
            for row, reason in sorted(failures, key=itemgetter(0))[:ROWS_SHOWN]
        ]
        raise InvalidRows(rows=rows, limit=ROWS_SHOWN)
    return pa.table(columns)


def given_columns(source: Source, rows: pa.Table) -> dict[str, pa.ChunkedArray]:
    """Return which rows have a column that some rows lack, by its name in the table."""
    names = {name.lower(): name for name in rows.column_names}
    return {names[name.lower()]: has for name, has in source.given.items()}


def with_defaults(
    rows: pa.Table, given: Mapping[str, pa.ChunkedArray], defaults: Mapping[str, Any]
) -> pa.Table:
    """Return the rows with defaults where a row lacks a column."""
    for column, has in given.items():
        if (value := defaults.get(column)) is not None:
            kind = rows.schema.field(column).type
            [default] = cast_column(pa.chunked_array([pa.array([value])]), kind)
            filled = pc.if_else(has, rows.column(column), default)
            rows = rows.set_column(rows.column_names.index(column), column, filled)
    return rows


def match_columns(
    file: str, given: Sequence[str], schema: pa.Schema, dataset: str
) -> dict[str, str]:
    """Return the names of a file's columns by those of the table; raise for an unknown column."""
    known = {name.lower(): name for name in schema.names}
    names: dict[str, str] = {}
    for name in given:
        if name.lower() not in known:
            reason = f"{dataset} has no column {name!r}; {column_hint(name, schema.names)}"
            raise InvalidSource(file=file, reason=reason)
        column = known[name.lower()]
        if column in names:
            raise InvalidSource(file=file, reason=f"column {column!r} occurs twice")
        names[column] = name
    return names


def cast_column(given: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Return the column in another type; a value that does not have it raises `CAST_ERRORS`."""
    column = _decoded(given)
    made = _converted(column, kind)
    if has_year_out_of_range(made):
        raise ValueError("not in the years 1 to 9999")
    if pa.types.is_floating(kind):
        _check_finite(column, made)
    return made


def _decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the values in the usual encoding of their type."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _decoded(column.cast(kind.value_type))
    if pa.types.is_run_end_encoded(kind):
        return _decoded(pc.run_end_decode(column))
    if pa.types.is_string_view(kind):
        return column.cast(pa.large_string())
    if pa.types.is_binary_view(kind):
        return column.cast(pa.large_binary())
    return column


def _check_finite(column: pa.ChunkedArray, made: pa.ChunkedArray) -> None:
    """Raise where a finite number became infinite because it is too large for its type."""
    infinite = pc.is_inf(made)
    if not pc.any(infinite).as_py():
        return
    if _is_text(column.type):
        given_infinite = pc.match_substring_regex(column, _INFINITY)
    else:
        given_infinite = pc.is_inf(column.cast(pa.float64()))
    if not pc.all(pc.equal(infinite, given_infinite)).as_py():
        raise ValueError("too large")


def _converted(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if column.type == kind and not (pa.types.is_nested(kind) and has_temporal(kind)):
        return column
    if column.null_count == len(column):
        # All NULL: Arrow cannot cast NULLs between some types.
        return pa.chunked_array([pa.nulls(len(column), kind)])
    if pa.types.is_nested(kind):
        return _cast_nested(column, kind)
    _check_meaning(column, kind)
    if pa.types.is_boolean(kind) and _is_text(column.type):
        return _booleans(column)
    if pa.types.is_boolean(kind) and _is_number(column.type):
        return pc.equal(column, 1)
    if isinstance(kind, pa.UuidType) and _is_text(column.type):
        _check_form(column, _UUID)
        return uuids(column)
    if _is_text(column.type) and not _is_text(kind) and kind not in _BINARY:
        column = pc.utf8_trim_whitespace(column)
    if pa.types.is_integer(kind) and _is_text(column.type):
        # Arrow also reads 0x1F, which Spark does not. Checking for digits is faster than a pattern.
        all_digits: bool = pc.all(pc.utf8_is_decimal(column)).as_py()
        if not all_digits:
            _check_form(column, _WHOLE)
    if pa.types.is_timestamp(kind) and _is_text(column.type):
        return _timestamps(column, kind)
    if pa.types.is_time(kind) and _is_text(column.type):
        return _times(column, kind)
    if pa.types.is_date(kind) and pa.types.is_timestamp(column.type):
        return _days(column, kind)
    if _is_text(kind):
        return text_column(column, kind)
    if pa.types.is_decimal(kind) and (
        pa.types.is_floating(column.type) or pa.types.is_integer(column.type)
    ):
        # By the digits as written, not by those of the nearest binary fraction.
        column = column.cast(pa.string())
    return column.cast(kind)


def _check_form(column: pa.ChunkedArray, pattern: str) -> None:
    if not pc.all(pc.match_substring_regex(column, pattern)).as_py():
        raise ValueError("not of that form")


def _days(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Cast to dates; raise for a timestamp that is not midnight."""
    days = column.cast(kind)
    if not pc.all(pc.equal(days.cast(column.type), column)).as_py():
        raise ValueError("not a date")
    return days


def _check_meaning(column: pa.ChunkedArray, wanted: pa.DataType) -> None:
    """Raise for casts that only Arrow makes: true to 1, 7 to true, a number to microseconds."""
    given = column.type
    if pa.types.is_boolean(given) and _is_number(wanted):
        raise ValueError("not a number")
    if _is_number(given) and pa.types.is_temporal(wanted):
        raise ValueError("not a timestamp")
    if pa.types.is_temporal(given) and _is_number(wanted):
        raise ValueError("not a number")
    if pa.types.is_timestamp(given) and pa.types.is_time(wanted):
        raise ValueError("not a time of day alone")
    if _is_number(given) and pa.types.is_boolean(wanted):
        either = pc.or_(pc.equal(column, 0), pc.equal(column, 1))
        if not pc.all(either).as_py():
            raise ValueError("not a boolean")


def _is_number(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    )


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _booleans(column: pa.ChunkedArray) -> pa.ChunkedArray:
    words = pc.utf8_lower(pc.utf8_trim_whitespace(column))
    true = pc.is_in(words, pa.array(_TRUE, words.type))
    false = pc.is_in(words, pa.array(_FALSE, words.type))
    known = pc.or_(pc.or_(true, false), pc.is_null(words))
    if not pc.all(known).as_py():
        raise ValueError("not a boolean")
    return pc.if_else(pc.is_null(words), pa.scalar(None, pa.bool_()), true)


def _timestamps(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Cast to timestamps; text without a zone is UTC where the type has one."""
    if kind.tz is None:
        return column.cast(kind)
    zoned = pc.match_substring_regex(column, _ZONED)
    nothing = pa.scalar(None, column.type)
    with_zone = pc.if_else(zoned, column, nothing).cast(kind)
    local = pc.if_else(zoned, nothing, column).cast(pa.timestamp(kind.unit)).cast(kind)
    return pc.coalesce(with_zone, local)


def _times(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Cast to times of day, which Arrow does not parse: as timestamps of some day."""
    _check_form(column, _TIME)
    timestamps = pc.binary_join_element_wise(pa.scalar("2000-01-01", column.type), column, "T")
    return timestamps.cast(pa.timestamp("us")).cast(kind)


def _cast_by_halves(
    column: pa.ChunkedArray, kind: pa.DataType, name: str
) -> tuple[pa.ChunkedArray, list[tuple[int, str]]]:
    """Cast by halving; return the cast values and the rows that failed, up to a limit."""
    made: list[pa.Array] = []
    failures: list[tuple[int, str]] = []
    pending = [(0, len(column))]
    while pending and len(failures) < ROWS_SHOWN:
        start, length = pending.pop()
        part = column.slice(start, length)
        try:
            made += cast_column(part, kind).chunks
            continue
        except CAST_ERRORS:
            if length == 1:
                wanted = _TYPE_NAMES.get(str(kind), str(kind))
                reason = f"{name} = {_shown(part[0])} is not of type {wanted}"
                failures.append((start, reason))
                continue
        half = length // 2
        pending += [(start + half, length - half), (start, half)]
    return pa.chunked_array(made, kind), failures


def _shown(value: Any) -> str:
    try:
        text = repr(value.as_py())
    except (OverflowError, ValueError):
        # Python has no such date.
        text = " ".join(pa.array([value]).to_string(window=2).split())
    return text if len(text) <= 80 else f"{text[:77]}..."


# Nested types: each part is cast like a column of its own.
# Arrow can cast them whole, but then allows casts that a load must reject.


def _cast_nested(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Cast a column to a nested type; raise ValueError where it has another form."""
    part = _cast_list
    if pa.types.is_struct(kind):
        part = _cast_struct
    elif pa.types.is_map(kind):
        part = _cast_map
    return pa.chunked_array([part(chunk, kind) for chunk in column.chunks], kind)


def has_temporal(kind: pa.DataType) -> bool:
    """Return whether a type contains a date or time, which may have an impossible year."""
    if pa.types.is_nested(kind):
        return any(has_temporal(kind.field(n).type) for n in range(kind.num_fields))
    return bool(pa.types.is_temporal(kind))


def _cast_list(given: pa.Array, kind: pa.DataType) -> pa.Array:
    if not is_list(given.type):
        raise ValueError("not a list")
    values = _cast_part(given.flatten(), kind.value_field)
    whole = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray
    return whole.from_arrays(_offsets(given, kind), values, type=kind, mask=given.is_null())


def _cast_map(given: pa.Array, kind: pa.DataType) -> pa.Array:
    if not pa.types.is_map(given.type):
        raise ValueError("not a map")
    entry = pa.struct([given.type.key_field, given.type.item_field])
    lists = given.cast(pa.list_(entry))
    keys, items = lists.flatten().flatten()
    return pa.MapArray.from_arrays(
        _offsets(lists, kind),
        _cast_part(keys, kind.key_field),
        _cast_part(items, kind.item_field),
        type=kind,
        mask=given.is_null(),
    )


def _cast_struct(given: pa.Array, kind: pa.DataType) -> pa.Array:
    if not pa.types.is_struct(given.type):
        raise ValueError("not a struct")
    parts = dict(zip((field.name for field in given.type), given.flatten(), strict=True))
    fields = []
    for field in kind:
        values = parts.pop(field.name, None)
        if values is None:
            values = pa.nulls(len(given), field.type)
        # Where the struct is NULL, so is every field, also a required one.
        fields.append(_cast_part(values, field, absent=given.is_null()))
    for name, values in parts.items():
        if values.null_count < len(values):
            raise ValueError(f"no field {name!r}")
    return pa.StructArray.from_arrays(fields, fields=list(kind), mask=given.is_null())


def _cast_part(values: pa.Array, field: pa.Field, *, absent: pa.Array | None = None) -> pa.Array:
    made = cast_column(pa.chunked_array([values]), field.type)
    made = made.chunk(0) if made.num_chunks == 1 else made.combine_chunks()
    if not field.nullable and made.null_count:
        missing = made.is_null() if absent is None else pc.and_not(made.is_null(), absent)
        if pc.any(missing).as_py():
            raise ValueError(f"{field.name} is missing")
    return made


def _offsets(lists: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the start of each list among the values of all, and the end of the last."""
    # Arrow casts views to lists as well, but the result is corrupt.
    lengths = pc.fill_null(pc.list_value_length(lists), 0).cast(pa.int64())
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(lengths)])
    return offsets if pa.types.is_large_list(kind) else offsets.cast(pa.int32())


def is_list(kind: pa.DataType) -> bool:
    """Return whether this is a list, in any of Arrow's layouts."""
    return bool(
        pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_fixed_size_list(kind)
        or pa.types.is_list_view(kind)
        or pa.types.is_large_list_view(kind)
    )


# Text, as Spark writes it.


def text_column(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    given = column.type
    if pa.types.is_floating(given):
        # Arrow writes the fewest digits that identify the number, in the precision of its type.
        texts = column.cast(pa.string()).to_pylist()
        return pa.chunked_array([[text and _number(text) for text in texts]], kind)
    if isinstance(given, pa.UuidType):
        return pa.chunked_array([[value and str(value) for value in column.to_pylist()]], kind)
    if pa.types.is_timestamp(given) or pa.types.is_time(given):
        return _timestamp_texts(column).cast(kind)
    return column.cast(kind)


def _number(text: str) -> str:
    """Format a number as Spark does."""
    if text in _SPECIAL_NUMBERS:
        return _SPECIAL_NUMBERS[text]
    value = Decimal(text)
    sign = "-" if value.is_signed() else ""
    power = value.adjusted() if value else 0
    if _MIN_POWER <= power < _MAX_POWER:
        plain = f"{value.normalize():f}"
        return plain if "." in plain else f"{plain}.0"
    digits = "".join(str(digit) for digit in value.normalize().as_tuple().digits)
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{power}"


def _timestamp_texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Format with as many digits of the second as needed, and with the zone if there is one."""
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        column = column.cast(pa.timestamp(column.type.unit, tz="UTC"))
    text = column.cast(pa.string())
    text = pc.replace_substring_regex(text, r"\.0+(Z?)$", r"\1")
    return pc.replace_substring_regex(text, r"(\.\d*[1-9])0+(Z?)$", r"\1\2")
