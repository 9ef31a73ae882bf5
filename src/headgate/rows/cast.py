"""Rows of a source in the columns and types of a table; those that do not fit are named."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import InvalidRows, InvalidSource
from headgate.rows.engine import is_beyond_years
from headgate.rows.sources import ROWS_SHOWN, Source

# Numbers and moments as text: as SQL on Spark writes them, whichever engine does the work.

# Between these powers of ten a number is written out.
_LEAST, _MOST = -3, 7
_NO_NUMBERS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def texts_of(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """A column as text of this kind."""
    given = column.type
    if pa.types.is_floating(given):
        # Arrow tells the fewest digits that mean the number, in the precision of its type.
        told = column.cast(pa.string()).to_pylist()
        return pa.chunked_array([[text and _number(text) for text in told]], kind)
    if pa.types.is_timestamp(given) or pa.types.is_time(given):
        return _moments(column).cast(kind)
    return column.cast(kind)


def _number(text: str) -> str:
    if text in _NO_NUMBERS:
        return _NO_NUMBERS[text]
    value = Decimal(text)
    sign = "-" if value.is_signed() else ""
    power = value.adjusted() if value else 0
    if _LEAST <= power < _MOST:
        plain = f"{value.normalize():f}"
        return plain if "." in plain else f"{plain}.0"
    digits = "".join(str(digit) for digit in value.normalize().as_tuple().digits)
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{power}"


def _moments(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """With as many digits behind the second as there are, and with the zone where there is one."""
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        column = column.cast(pa.timestamp(column.type.unit, tz="UTC"))
    text = column.cast(pa.string())
    text = pc.replace_substring_regex(text, r"\.0+(Z?)$", r"\1")
    return pc.replace_substring_regex(text, r"(\.\d*[1-9])0+(Z?)$", r"\1\2")


# Lists, structs and maps: taken apart, each part fitted as what stands alone, and put together.
#
# Arrow can cast them whole, and is then as generous within as a load must not be.

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


# Text that means something to a type is understood as SQL understands it.
_TRUE, _FALSE = ("true", "t", "yes", "y", "1"), ("false", "f", "no", "n", "0")
_WHOLE = r"^-?\d+$"
_INFINITY = r"(?i)^\s*[+-]?inf(inity)?\s*$"
_UUID = r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
_TIME = r"^\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?$"
_ZONED = r"\d{2}:\d{2}.*(Z|[+-]\d{2}(:?\d{2})?)$"
_WORDS = {
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
# How Arrow says that a value does not become one of another type.
_REFUSALS = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, ValueError)


@dataclass(frozen=True, kw_only=True)
class Misfit:
    row: int
    reason: str


def fit(source: Source, schema: pa.Schema, dataset: str) -> pa.Table:
    """The source's columns that the table has, in the table's types; an unknown one is refused."""
    known = {field.name.lower(): field for field in schema}
    names: dict[str, str] = {}
    for name in source.rows.column_names:
        if name.lower() not in known:
            raise _unknown_column(source, dataset, name, [f.name for f in schema])
        field = known[name.lower()]
        if field.name in names:
            raise InvalidSource(file=source.file, reason=f"column {field.name!r} is there twice")
        names[field.name] = name
    columns, misfits = {}, []
    for wanted, name in names.items():
        kind = schema.field(wanted).type
        column = source.rows.column(name)
        try:
            columns[wanted] = _cast(column, kind)
        except _REFUSALS:
            columns[wanted], found = _fit_apart(column, kind, wanted)
            misfits += found
    if misfits:
        raise _bad_rows(source, misfits)
    return pa.table(columns)


def _unknown_column(source: Source, dataset: str, name: str, known: Sequence[str]) -> InvalidSource:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known)}"
    return InvalidSource(file=source.file, reason=f"{dataset} has no column {name!r}; {hint}")


def _bad_rows(source: Source, misfits: Sequence[Misfit]) -> InvalidRows:
    first = sorted(misfits, key=lambda misfit: misfit.row)[:ROWS_SHOWN]
    rows = [
        {"file": source.file, "line": source.line_of(misfit.row), "reason": misfit.reason}
        for misfit in first
    ]
    return InvalidRows(rows=rows, limit=ROWS_SHOWN)


def _cast(given: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    column = plain(given)
    made = _converted(column, kind)
    if is_beyond_years(made):
        raise ValueError("not in the years 1 to 9999")
    if pa.types.is_floating(kind):
        _check_finite(column, made)
    return made


def _check_finite(column: pa.ChunkedArray, made: pa.ChunkedArray) -> None:
    """A number too large for its type is none; infinity is only what says so itself."""
    infinite = pc.is_inf(made)
    if not pc.any(infinite).as_py():
        return
    if _is_text(column.type):
        said = pc.match_substring_regex(column, _INFINITY)
    else:
        said = pc.is_inf(column.cast(pa.float64()))
    if not pc.all(pc.equal(infinite, said)).as_py():
        raise ValueError("too large")


def _converted(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if column.type == kind and not (pa.types.is_nested(kind) and holds_moments(kind)):
        return column
    if column.null_count == len(column):
        # Nothing has no type: Arrow would not let it be nothing of some others.
        return pa.chunked_array([pa.nulls(len(column), kind)])
    if pa.types.is_nested(kind):
        return fit_within(column, kind, _cast)
    _check_meaning(column, kind)
    if pa.types.is_boolean(kind) and _is_text(column.type):
        return _booleans(column)
    if pa.types.is_boolean(kind) and _is_number(column.type):
        return pc.equal(column, 1)
    if isinstance(kind, pa.UuidType) and _is_text(column.type):
        _check_form(column, _UUID)
        plain = column.cast(pa.string())
        raw = [None if v is None else bytes.fromhex(v.replace("-", "")) for v in plain.to_pylist()]
        return pa.chunked_array(
            [pa.ExtensionArray.from_storage(kind, pa.array(raw, pa.binary(16)))]
        )
    if _is_text(column.type) and not _is_text(kind) and not _is_binary(kind):
        column = pc.utf8_trim_whitespace(column)
    if pa.types.is_integer(kind) and _is_text(column.type):
        _check_whole(column)
    if pa.types.is_timestamp(kind) and _is_text(column.type):
        return _timestamps(column, kind)
    if pa.types.is_time(kind) and _is_text(column.type):
        return _times(column, kind)
    if pa.types.is_date(kind) and pa.types.is_timestamp(column.type):
        return _days(column, kind)
    if _is_text(kind):
        return texts_of(column, kind)
    if pa.types.is_decimal(kind) and pa.types.is_floating(column.type):
        # By the digits that people wrote, not by those of the nearest binary fraction.
        column = column.cast(pa.string())
    if pa.types.is_decimal(kind) and pa.types.is_integer(column.type):
        column = column.cast(pa.string())
    return column.cast(kind)


def _check_whole(column: pa.ChunkedArray) -> None:
    """Arrow reads 0x1F as well, which Spark does not and people rarely mean."""
    # Digits alone are told quicker than a pattern, and most numbers are that.
    if not pc.all(pc.utf8_is_decimal(column)).as_py():
        _check_form(column, _WHOLE)


def _check_form(column: pa.ChunkedArray, pattern: str) -> None:
    if not pc.all(pc.match_substring_regex(column, pattern)).as_py():
        raise ValueError("not of that form")


def _days(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """A moment that is not the beginning of a day is no date."""
    days = column.cast(kind)
    if not pc.all(pc.equal(days.cast(column.type), column)).as_py():
        raise ValueError("not a date")
    return days


def _check_meaning(column: pa.ChunkedArray, wanted: pa.DataType) -> None:
    """Arrow would take true for 1, 7 for true, and a number for microseconds since 1970."""
    given = column.type
    if pa.types.is_boolean(given) and _is_number(wanted):
        raise ValueError("not a number")
    if _is_number(given) and pa.types.is_temporal(wanted):
        raise ValueError("not a moment")
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


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _booleans(column: pa.ChunkedArray) -> pa.ChunkedArray:
    words = pc.utf8_lower(pc.utf8_trim_whitespace(column))
    true = pc.is_in(words, pa.array(_TRUE, words.type))
    false = pc.is_in(words, pa.array(_FALSE, words.type))
    known = pc.or_(pc.or_(true, false), pc.is_null(words))
    if not pc.all(known).as_py():
        raise ValueError("not a boolean")
    return pc.if_else(pc.is_null(words), pa.scalar(None, pa.bool_()), true)


def _timestamps(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """With a zone where the type has one; a moment without a zone is UTC."""
    if kind.tz is None:
        return column.cast(kind)
    zoned = pc.match_substring_regex(column, _ZONED)
    nothing = pa.scalar(None, column.type)
    moments = pc.if_else(zoned, column, nothing).cast(kind)
    local = pc.if_else(zoned, nothing, column).cast(pa.timestamp(kind.unit)).cast(kind)
    return pc.coalesce(moments, local)


def _times(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Times of day, of which Arrow reads none: as moments of some day."""
    _check_form(column, _TIME)
    moments = pc.binary_join_element_wise(pa.scalar("2000-01-01", column.type), column, "T")
    return moments.cast(pa.timestamp("us")).cast(kind)


def _fit_apart(
    column: pa.ChunkedArray, kind: pa.DataType, name: str
) -> tuple[pa.ChunkedArray, list[Misfit]]:
    """What fits of a column, and the rows whose value does not, up to a limit; by halving."""
    made: list[pa.Array] = []
    misfits: list[Misfit] = []
    pending = [(0, len(column))]
    while pending and len(misfits) < ROWS_SHOWN:
        start, length = pending.pop()
        part = column.slice(start, length)
        try:
            made += _cast(part, kind).chunks
            continue
        except _REFUSALS:
            if length == 1:
                reason = f"{name} = {_shown(part[0])} is no {_word(kind)}"
                misfits.append(Misfit(row=start, reason=reason))
                continue
        half = length // 2
        pending += [(start + half, length - half), (start, half)]
    return pa.chunked_array(made, kind), misfits


def _shown(value: Any) -> str:
    try:
        text = repr(value.as_py())
    except (OverflowError, ValueError):
        # Python has no date for it.
        text = " ".join(pa.array([value]).to_string(window=2).split())
    return text if len(text) <= 80 else f"{text[:77]}..."


def _word(kind: pa.DataType) -> str:
    """The type as a schema file names it."""
    return _WORDS.get(str(kind), str(kind))
