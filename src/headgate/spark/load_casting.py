"""Values of files in the types of a table, as strictly as without Spark.

Spark is generous where a load must not be: it rounds, cuts off, and reads half a date. What it
takes and Arrow does not is refused here; the reader of the file then says which rows those are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sf

if TYPE_CHECKING:
    from pyspark.sql import Column

_WHOLE_NUMBERS = ("byte", "short", "integer", "long")
_FLOATS = ("float", "double")
_FRACTIONS = (*_FLOATS, "decimal")
_NUMBERS = (*_WHOLE_NUMBERS, *_FRACTIONS)
_NESTED = ("struct", "array", "map")
_DIGITS = r"[0-9]+"
_REAL = rf"({_DIGITS}\.?[0-9]*|\.{_DIGITS})(e[+-]?{_DIGITS})?"
_FLOAT = rf"(?i)^\s*[+-]?({_REAL}|nan|inf|infinity)\s*$"
_INFINITY = r"(?i)^\s*[+-]?inf(inity)?\s*$"
_DATE = r"(?!0000)[0-9]{4}-[0-9]{2}-[0-9]{2}"
_TIME = r"[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?"
_ZONE = r"(Z|[+-][0-9]{2}(:?[0-9]{2})?)"
# How text has to look that becomes a value of a type.
_FORMS = {
    **dict.fromkeys(_WHOLE_NUMBERS, rf"^\s*-?{_DIGITS}\s*$"),
    **dict.fromkeys(_FLOATS, _FLOAT),
    "decimal": _FLOAT,
    "date": rf"^\s*{_DATE}\s*$",
    "timestamp": rf"^\s*{_DATE}([T ]{_TIME}{_ZONE}?)?\s*$",
    "timestamp_ntz": rf"^\s*{_DATE}([T ]{_TIME})?\s*$",
}
# Dates and moments are in the years 1 to 9999.
_MOMENTS = ("0001-01-01 00:00:00", "9999-12-31 23:59:59.999999")
_FIRST_AND_LAST = {
    "date": ("0001-01-01", "9999-12-31"),
    "timestamp": _MOMENTS,
    "timestamp_ntz": _MOMENTS,
}


def cast(column: Column, name: str, given: Any, wanted: Any) -> Column:
    """The column in a type of the table; a value that would not stay the same fails the query."""
    if given == wanted and not _holds_moments(wanted):
        return column
    source, target = given.typeName(), wanted.typeName()
    if target in _NESTED:
        return _nested(column, name, given, wanted)
    if _means_something_else(source, target):
        return sf.when(column.isNull(), sf.lit(None).cast(wanted)).otherwise(_wrong(name, wanted))
    if (source, target) == ("timestamp", "string"):
        # The session's zone is UTC; of a moment that is told, and of a local time there is none.
        return sf.concat(column.cast(wanted), sf.lit("Z"))
    value = sf.trim(column) if source == "string" and target not in ("string", "binary") else column
    made = value.cast(wanted)
    kept = _kept(column, made, given, wanted)
    if kept is None:
        return made
    return sf.when(column.isNull() | kept, made).otherwise(_wrong(name, wanted))


def _means_something_else(source: str, target: str) -> bool:
    """True is not 1, and a number no moment: of what would it be the seconds?"""
    if source in _NESTED:
        return True
    if target == "binary":
        return source not in ("string", "binary")
    if source == "boolean":
        return target in (*_NUMBERS, *_FIRST_AND_LAST)
    if source in _NUMBERS:
        return target in _FIRST_AND_LAST
    return source in _FIRST_AND_LAST and target in (*_NUMBERS, "boolean")


def _is_infinite(column: Column) -> Column:
    return column.isin(float("inf"), float("-inf"))


def _wrong(name: str, wanted: Any) -> Column:
    return sf.raise_error(sf.lit(f"{name} does not fit {wanted.simpleString()}")).cast(wanted)


def _nested(column: Column, name: str, given: Any, wanted: Any) -> Column:
    """Fields by their names, where Spark goes by their order; what has no type yet has no value."""
    source, target = given.typeName(), wanted.typeName()
    if source != target:
        nothing = sf.lit(None).cast(wanted)
        return sf.when(column.isNull(), nothing).otherwise(_wrong(name, wanted))
    if target == "struct":
        known = {field.name: field.dataType for field in given}
        if not set(known) <= set(wanted.names):
            return sf.when(column.isNull(), sf.lit(None).cast(wanted)).otherwise(
                _wrong(name, wanted)
            )
        fields = [
            cast(column.getField(f.name), name, known[f.name], f.dataType).alias(f.name)
            if f.name in known
            else sf.lit(None).cast(f.dataType).alias(f.name)
            for f in wanted
        ]
        return sf.when(column.isNotNull(), sf.struct(*fields))
    if target == "array":
        return sf.transform(
            column, lambda item: cast(item, name, given.elementType, wanted.elementType)
        )
    keyed = sf.transform_keys(column, lambda key, _: cast(key, name, given.keyType, wanted.keyType))
    return sf.transform_values(
        keyed, lambda _, value: cast(value, name, given.valueType, wanted.valueType)
    )


def _holds_moments(kind: Any) -> bool:
    """Whether a date or a moment is somewhere in it, which may be of an impossible year."""
    name = kind.typeName()
    if name == "struct":
        return any(_holds_moments(field.dataType) for field in kind)
    if name == "array":
        return _holds_moments(kind.elementType)
    if name == "map":
        return _holds_moments(kind.keyType) or _holds_moments(kind.valueType)
    return name in _FIRST_AND_LAST


def _in_years(column: Column, kind: Any) -> Column:
    first, last = (sf.lit(text).cast(kind) for text in _FIRST_AND_LAST[kind.typeName()])
    return column.between(first, last)


def _kept(column: Column, made: Column, given: Any, wanted: Any) -> Column | None:
    """Whether a value is still what it was; None where no cast can change it."""
    source, target = given.typeName(), wanted.typeName()
    if (source, target) == ("binary", "string"):
        # Spark would write bytes that are no text, and nobody else could read them again.
        return sf.is_valid_utf8(made)
    if target in _FIRST_AND_LAST and source != "string":
        inside = _in_years(made, wanted)
        cut_off = source.startswith("timestamp") and target == "date"
        return inside & (made.cast(given) == column) if cut_off else inside
    if source == "string":
        form = _FORMS.get(target)
        looks = column.rlike(form) if form else None
        if looks is not None and target == "decimal":
            # More digits behind the point than the column has would be rounded.
            return looks & (made == sf.trim(column).cast("decimal(38, 18)"))
        if looks is not None and target in _FLOATS:
            return looks & (~_is_infinite(made) | column.rlike(_INFINITY))
        return looks
    if source in _FLOATS and target == "float":
        return ~_is_infinite(made) | _is_infinite(column)
    if source in _NUMBERS and target == "boolean":
        return column.isin(0, 1)
    if source in _FRACTIONS and target in (*_WHOLE_NUMBERS, "decimal"):
        return made == column
    if source in _WHOLE_NUMBERS and target in _FLOATS:
        return made.cast(given) == column
    return None
