"""Rows of a source in the columns and types of a table; those that do not fit are named."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import InvalidRows, InvalidSource
from headgate.mutations.nesting import fit_within, holds_moments, plain
from headgate.mutations.source import ROWS_SHOWN, Source
from headgate.mutations.texts import texts_of
from headgate.mutations.typing import is_beyond_years

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
