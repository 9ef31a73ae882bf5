"""Numbers and moments as text: as SQL on Spark writes them, whichever engine does the work."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

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
