"""Files as Spark reads them: rows in the types of a table, each with its place where it is asked.

What Spark can refuse while it writes (a value of another type, a missing one) is not looked for
beforehand: that would be one more pass over the files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import groupby
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from pyspark.sql import functions as sf

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


# Values of files in the types of a table, as strictly as without Spark.
#
# Spark is generous where a load must not be: it rounds, cuts off, and reads half a date. What it
# takes and Arrow does not is refused here; the reader of the file then says which rows those are.

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


# The place of a row: the number of its file, and how far it is in it.
FILE, ROW = "__file", "__row"
PLACE = (FILE, ROW)
_PATH = "__path"
_MISSING = "\x01missing\x01"
# Spark writes one slash behind it here, and three there.
_SCHEME = re.compile("^file:/+")
# Of the number that Spark gives to a row: the part of the file that it counts in, and from where.
_PART_SHIFT = 33


class UnknownColumn(Exception):
    """A file has a column that the table does not have; which file it is, its reader finds."""


@dataclass(frozen=True, kw_only=True)
class SparkLoad:
    """One table: files with their formats, and how its rows are told apart."""

    # As SQL names it, quoted.
    table: str
    dataset: str
    # Absolute paths on a disk that Spark sees too, each with its format.
    files: Sequence[tuple[str, str]]
    key: tuple[str, ...]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    # How much comes, in times of what the table holds.
    share: float = 1.0


def read_rows(session: SparkSession, load: SparkLoad, *, placed: bool = False) -> list[DataFrame]:
    """The rows in the table's types, one frame for each set of columns that files in a row have.

    Where each row of a Parquet file stands is told only if asked for: it costs a tenth of a merge.
    """
    # Without it a value that does not fit would become a missing one.
    session.conf.set("spark.sql.ansi.enabled", "true")
    # A moment without a zone means the same on every machine.
    session.conf.set("spark.sql.session.timeZone", "UTC")
    fitted = [_fitted(session, load, frame, text) for frame, text in _frames(session, load, placed)]
    grouped = groupby(fitted, key=lambda frame: frame.columns)
    return [reduce(lambda one, other: one.union(other), frames) for _, frames in grouped]


def given_columns(rows: DataFrame) -> list[str]:
    """The columns that the files have."""
    return [column for column in rows.columns if column not in PLACE]


def holds_replacements(rows: Sequence[DataFrame]) -> bool:
    """Whether a character is there that Spark puts in place of bytes which are not UTF-8."""
    for frame in rows:
        texts = [f.name for f in frame.schema.fields if f.dataType.typeName() == "string"]
        signs = [sf.col(quote(name)).contains("\ufffd") for name in texts if name not in PLACE]
        if signs and frame.where(reduce(lambda a, b: a | b, signs)).limit(1).collect():
            return True
    return False


def rows_before(placed: Sequence[DataFrame], file: int, row: int) -> int:
    """How many rows stand before a row in its file, by the number that `placed` frames give it."""
    part, offset = row >> _PART_SHIFT, row & ((1 << _PART_SHIFT) - 1)
    if not part:
        return offset
    earlier = [
        frame.where((sf.col(FILE) == file) & (sf.shiftright(sf.col(ROW), _PART_SHIFT) < part))
        for frame in placed
    ]
    return offset + sum(int(frame.count()) for frame in earlier)


def quote(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _frames(
    session: SparkSession, load: SparkLoad, placed: bool
) -> Iterator[tuple[DataFrame, bool]]:
    """What there is to read, in order: text file by file, since each has its own columns."""
    numbered = list(enumerate(load.files))
    for format, several in groupby(numbered, key=lambda item: item[1][1]):
        files = [(number, path) for number, (path, _) in several]
        for part in [files] if format == "parquet" else [[file] for file in files]:
            frame = _read(session, [path for _, path in part], format)
            if not placed:
                yield (
                    frame.select("*", *(sf.lit(None).alias(c) for c in PLACE)),
                    format != "parquet",
                )
            elif format == "parquet":
                yield _place_parquet(session, frame, part), False
            else:
                # Counts within a file's parts, and those upwards.
                row = sf.monotonically_increasing_id()
                yield frame.select("*", sf.lit(part[0][0]).alias(FILE), row.alias(ROW)), True


def _place_parquet(
    session: SparkSession, frame: DataFrame, files: Sequence[tuple[int, str]]
) -> DataFrame:
    """Files by their number: their paths come in another order than they were given."""
    numbers = {path: number for number, path in files}
    spelt = [_SCHEME.sub("/", uri) for uri in frame.inputFiles()]
    known = session.createDataFrame(
        [(path, numbers[unquote(path)]) for path in dict.fromkeys(spelt)],
        f"{_PATH} string, {FILE} int",
    )
    path = sf.regexp_replace(sf.col("_metadata.file_path"), _SCHEME.pattern, "/")
    placed = frame.select("*", path.alias(_PATH), sf.col("_metadata.row_index").alias(ROW))
    # A row must not get lost because its file is spelt in yet another way.
    unknown = sf.raise_error(sf.concat(sf.lit("which file is "), sf.col(_PATH))).cast("int")
    columns = [sf.col(quote(column)) for column in frame.columns]
    return placed.join(sf.broadcast(known), _PATH, "left").select(
        *columns, sf.coalesce(FILE, unknown).alias(FILE), ROW
    )


def _read(session: SparkSession, paths: Sequence[str], format: str) -> DataFrame:
    places = [f"file://{path}" for path in paths]
    match format:
        case "csv":
            reader = session.read.options(
                header=True,
                multiLine=True,
                escape='"',
                mode="FAILFAST",
                enforceSchema=False,
                # What is missing is told from what is empty and in quotes.
                nullValue=_MISSING,
                emptyValue="",
            )
            return reader.option("sep", "\t" if paths[0].lower().endswith(".tsv") else ",").csv(
                places
            )
        case "jsonl":
            return session.read.options(
                mode="FAILFAST", allowSingleQuotes=False, allowNonNumericNumbers=False
            ).json(places)
        case _:
            return session.read.option("mergeSchema", len(places) > 1).parquet(*places)


def _fitted(session: SparkSession, load: SparkLoad, frame: DataFrame, text: bool) -> DataFrame:
    types = {f.name.lower(): f for f in session.table(load.table).schema.fields}
    fitted = []
    for name in given_columns(frame):
        if name.lower() not in types:
            raise UnknownColumn(name)
        target = types[name.lower()]
        given = frame.schema[name].dataType
        fitted.append(cast(sf.col(quote(name)), name, given, target.dataType).alias(target.name))
    placed = frame.select(*fitted, *PLACE)
    # Text is understood once, and cut off from how: MERGE takes no source that could come out
    # otherwise, and every further look would understand it again.
    return placed.localCheckpoint() if text else placed
