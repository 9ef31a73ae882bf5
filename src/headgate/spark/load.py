"""Loads files into a table by Spark: append, overwrite or merge.

Files are read as rows in the types of the table. Errors that Spark raises while it writes (a value
of another type, a missing value) are not looked for beforehand: that would be one more pass over
the files. The session is bound to a unit of transactions, so nothing is visible before it commits.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import groupby
from typing import Any
from urllib.parse import unquote

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import DataType
from pyspark.sql.window import Window

from headgate.spark.sql import quote, quote_text


@dataclass(frozen=True, kw_only=True)
class SparkLoad:
    """A load into one table: the files with their formats, and the key of its rows."""

    # The quoted SQL name.
    table: str
    # Absolute paths on a disk that Spark reads too, each with its format.
    files: Sequence[tuple[str, str]]
    key: tuple[str, ...]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    # The size of the files, relative to that of the table.
    share: float = 1.0


# --- reading files --------------------------------------------------------------------------

# The position of a row: the number of its file, and its number in the file.
FILE, ROW = "__file", "__row"
POSITION = (FILE, ROW)
_PATH = "__path"
# The names in an object of JSON, and the prefix of columns that say which rows have a column.
_NAMES = "__names"
_GIVEN = "__given:"
_JSON = {"mode": "FAILFAST", "allowSingleQuotes": False, "allowNonNumericNumbers": False}
_MISSING = "\x01missing\x01"
# Spark writes one slash after the scheme in some places, and three in others.
_SCHEME = re.compile("^file:/+")
# `monotonically_increasing_id` has the partition above this bit, and the row within it below.
_PARTITION_SHIFT = 33


class UnknownColumn(Exception):
    """A file has a column that the table does not have; the reader of the files finds the file."""


def read_rows(
    session: SparkSession, load: SparkLoad, *, positions: bool = False
) -> list[DataFrame]:
    """Return the rows in the table's types, one frame for each run of files with the same columns.

    Without `positions` the columns of the position are null: to find the rows of Parquet files
    costs a tenth of a merge.
    """
    # Without it, a value that does not fit would become null.
    session.conf.set("spark.sql.ansi.enabled", "true")
    # A timestamp without a zone means the same on every machine.
    session.conf.set("spark.sql.session.timeZone", "UTC")
    frames = _frames(session, load, positions)
    typed = [_typed(session, load, frame, is_text) for frame, is_text in frames]
    return [union(group) for _, group in groupby(typed, key=lambda frame: frame.columns)]


def file_columns(rows: DataFrame) -> list[str]:
    """Return the columns that the files have."""
    return [c for c in rows.columns if c not in POSITION and not c.startswith(_GIVEN)]


def given_mark(rows: DataFrame, column: str) -> str | None:
    """Return the column that says which rows have this column; None if all have it."""
    mark = f"{_GIVEN}{column}"
    return mark if mark in rows.columns else None


def columns_of_all_rows(rows: DataFrame) -> list[str]:
    """Return the columns that every row of the files has."""
    return [column for column in file_columns(rows) if given_mark(rows, column) is None]


def has_replacement_characters(rows: Sequence[DataFrame]) -> bool:
    """Return whether a text has the character that replaces bytes that are not UTF-8."""
    for frame in rows:
        texts = [f.name for f in frame.schema.fields if f.dataType.typeName() == "string"]
        found = [sf.col(quote(name)).contains("\ufffd") for name in texts if name not in POSITION]
        if found and frame.where(reduce(operator.or_, found)).limit(1).collect():
            return True
    return False


def rows_before(rows: Sequence[DataFrame], file: int, row: int) -> int:
    """Return how many rows precede a row in its file, given its position from `read_rows`."""
    partition, offset = row >> _PARTITION_SHIFT, row & ((1 << _PARTITION_SHIFT) - 1)
    if not partition:
        return offset
    earlier = [
        frame.where(
            (sf.col(FILE) == file) & (sf.shiftright(sf.col(ROW), _PARTITION_SHIFT) < partition)
        )
        for frame in rows
    ]
    return offset + sum(int(frame.count()) for frame in earlier)


def union(frames: Iterable[DataFrame]) -> DataFrame:
    return reduce(lambda one, other: one.union(other), frames)


def _frames(
    session: SparkSession, load: SparkLoad, positions: bool
) -> Iterator[tuple[DataFrame, bool]]:
    """Yield frames in the order of the files, and whether they are text.

    Text is read file by file, since each file has its own columns.
    """
    numbered = list(enumerate(load.files))
    for format, several in groupby(numbered, key=lambda item: item[1][1]):
        files = [(number, path) for number, (path, _) in several]
        text = format != "parquet"
        for part in [[file] for file in files] if text else [files]:
            frame = _read(session, [path for _, path in part], format)
            if not positions:
                yield frame.select("*", *(sf.lit(None).alias(c) for c in POSITION)), text
            elif text:
                row = sf.monotonically_increasing_id()
                yield frame.select("*", sf.lit(part[0][0]).alias(FILE), row.alias(ROW)), text
            else:
                yield _with_parquet_positions(session, frame, part), text


def _with_parquet_positions(
    session: SparkSession, frame: DataFrame, files: Sequence[tuple[int, str]]
) -> DataFrame:
    """Add positions by the path of each file: Spark reads the files in another order."""
    numbers = {path: number for number, path in files}
    paths = [_SCHEME.sub("/", uri) for uri in frame.inputFiles()]
    known = session.createDataFrame(
        [(path, numbers[unquote(path)]) for path in dict.fromkeys(paths)],
        f"{_PATH} string, {FILE} int",
    )
    path = sf.regexp_replace(sf.col("_metadata.file_path"), _SCHEME.pattern, "/")
    found = frame.select("*", path.alias(_PATH), sf.col("_metadata.row_index").alias(ROW))
    # A row must not get lost because its path has yet another spelling.
    unknown = sf.raise_error(sf.concat(sf.lit("unknown file: "), sf.col(_PATH))).cast("int")
    columns = [sf.col(quote(column)) for column in frame.columns]
    return found.join(sf.broadcast(known), _PATH, "left").select(
        *columns, sf.coalesce(FILE, unknown).alias(FILE), ROW
    )


def _read(session: SparkSession, paths: Sequence[str], format: str) -> DataFrame:
    urls = [f"file://{path}" for path in paths]
    match format:
        case "csv":
            return session.read.options(
                header=True,
                multiLine=True,
                escape='"',
                mode="FAILFAST",
                enforceSchema=False,
                # Distinguishes a missing value from a quoted empty one.
                nullValue=_MISSING,
                emptyValue="",
                sep="\t" if paths[0].lower().endswith(".tsv") else ",",
            ).csv(urls)
        case "jsonl":
            return _read_jsonl(session, urls)
        case _:
            return session.read.option("mergeSchema", len(urls) > 1).parquet(*urls)


def _read_jsonl(session: SparkSession, urls: Sequence[str]) -> DataFrame:
    """Read lines of JSON, with the names that each line has: Spark's reader forgets these."""
    schema = session.read.options(**_JSON).json(urls).schema
    line = sf.regexp_replace("value", "^\ufeff", "")
    names = sf.coalesce(
        sf.json_object_keys(line), sf.raise_error(sf.lit("not an object")).cast("array<string>")
    )
    options = {name: str(value).lower() for name, value in _JSON.items()}
    lines = session.read.text(urls).where(sf.trim(line) != "")
    read = lines.select(sf.from_json(line, schema, options).alias("row"), names.alias(_NAMES))
    return read.select("row.*", _NAMES)


def _typed(session: SparkSession, load: SparkLoad, frame: DataFrame, text: bool) -> DataFrame:
    fields = {f.name.lower(): f for f in session.table(load.table).schema.fields}
    columns, names = [], {}
    if file_columns(frame) == [_NAMES]:
        # Lines of JSON without an object, which must not have rows.
        if frame.take(1):
            raise UnknownColumn("")
        nowhere = (sf.lit(None).cast("bigint").alias(column) for column in POSITION)
        return session.table(load.table).limit(0).select("*", *nowhere)
    for name in file_columns(frame):
        if name == _NAMES:
            continue
        if name.lower() not in fields:
            raise UnknownColumn(name)
        target = fields[name.lower()]
        names[target.name] = name
        given = frame.schema[name].dataType
        columns.append(_cast(sf.col(quote(name)), name, given, target.dataType).alias(target.name))
    if _NAMES not in frame.columns:
        typed = frame.select(*columns, *POSITION)
        # Text is parsed once, and the plan that parses it is cut off: MERGE rejects a source that
        # is not deterministic, and every further read would parse the text again.
        return typed.localCheckpoint() if text else typed
    typed = frame.select(*columns, *POSITION, _NAMES).localCheckpoint()
    return _with_defaults(load, typed, names)


def _with_defaults(load: SparkLoad, rows: DataFrame, names: Mapping[str, str]) -> DataFrame:
    """Fill in defaults where an object lacks a column, and mark the rows that have it."""
    has = {c: sf.array_contains(_NAMES, sf.lit(name)) for c, name in names.items()}
    [lacking] = rows.agg(*(sf.bool_and(mark).alias(c) for c, mark in has.items())).collect()
    marks = {column: mark for column, mark in has.items() if lacking[column] is False}
    columns = []
    for column in names:
        value = sf.col(quote(column))
        if column in marks and load.defaults.get(column) is not None:
            default = sf.lit(load.defaults[column]).cast(rows.schema[column].dataType)
            value = sf.when(marks[column], value).otherwise(default)
        columns.append(value.alias(column))
    return rows.select(
        *columns, *POSITION, *(mark.alias(f"{_GIVEN}{column}") for column, mark in marks.items())
    )


# --- casts to the types of a table, as strict as a load by Arrow -----------------------------
#
# Spark rounds, truncates, and reads half a date. These casts reject what Spark accepts and Arrow
# does not. The reader of the files then finds the rows.

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
# The form of a text that becomes a value of a type.
_FORMS = {
    **dict.fromkeys(_WHOLE_NUMBERS, rf"^\s*-?{_DIGITS}\s*$"),
    **dict.fromkeys(_FRACTIONS, _FLOAT),
    "date": rf"^\s*{_DATE}\s*$",
    "timestamp": rf"^\s*{_DATE}([T ]{_TIME}{_ZONE}?)?\s*$",
    "timestamp_ntz": rf"^\s*{_DATE}([T ]{_TIME})?\s*$",
}
# Dates and timestamps are in the years 1 to 9999.
_TIMESTAMP_RANGE = ("0001-01-01 00:00:00", "9999-12-31 23:59:59.999999")
_TIME_RANGES = {
    "date": ("0001-01-01", "9999-12-31"),
    "timestamp": _TIMESTAMP_RANGE,
    "timestamp_ntz": _TIMESTAMP_RANGE,
}


def _cast(column: Column, name: str, given: Any, wanted: Any) -> Column:
    """Return the column in a type of the table; a value that would change fails the query."""
    if given == wanted and not _contains_time(wanted):
        return column
    source, target = given.typeName(), wanted.typeName()
    if target in _NESTED:
        return _cast_nested(column, name, given, wanted)
    if _is_other_kind(source, target):
        return _only_null(column, name, wanted)
    if (source, target) == ("timestamp", "string"):
        # The session's zone is UTC; a local time has no zone.
        return sf.concat(column.cast(wanted), sf.lit("Z"))
    value = sf.trim(column) if source == "string" and target not in ("string", "binary") else column
    cast = value.cast(wanted)
    same = _is_same(column, cast, given, wanted)
    if same is None:
        return cast
    return sf.when(column.isNull() | same, cast).otherwise(_mismatch(name, wanted))


def _is_other_kind(source: str, target: str) -> bool:
    """Return whether no value converts: a boolean is not a number, and a number is not a time."""
    if source in _NESTED:
        return True
    if target == "binary":
        return source not in ("string", "binary")
    if source == "boolean":
        return target in (*_NUMBERS, *_TIME_RANGES)
    if source in _NUMBERS:
        return target in _TIME_RANGES
    return source in _TIME_RANGES and target in (*_NUMBERS, "boolean")


def _only_null(column: Column, name: str, wanted: Any) -> Column:
    return sf.when(column.isNull(), sf.lit(None).cast(wanted)).otherwise(_mismatch(name, wanted))


def _mismatch(name: str, wanted: Any) -> Column:
    return sf.raise_error(sf.lit(f"{name} does not fit {wanted.simpleString()}")).cast(wanted)


def _cast_nested(column: Column, name: str, given: Any, wanted: Any) -> Column:
    """Cast fields by their names, where Spark goes by their order."""
    target = wanted.typeName()
    # A column of another kind may still be all null.
    if given.typeName() != target:
        return _only_null(column, name, wanted)
    if target == "struct":
        known = {field.name: field.dataType for field in given}
        if not set(known) <= set(wanted.names):
            return _only_null(column, name, wanted)
        fields = [
            _cast(column.getField(f.name), name, known[f.name], f.dataType).alias(f.name)
            if f.name in known
            else sf.lit(None).cast(f.dataType).alias(f.name)
            for f in wanted
        ]
        return sf.when(column.isNotNull(), sf.struct(*fields))
    if target == "array":
        return sf.transform(
            column, lambda item: _cast(item, name, given.elementType, wanted.elementType)
        )
    keyed = sf.transform_keys(
        column, lambda key, _: _cast(key, name, given.keyType, wanted.keyType)
    )
    return sf.transform_values(
        keyed, lambda _, value: _cast(value, name, given.valueType, wanted.valueType)
    )


def _contains_time(kind: Any) -> bool:
    """Return whether a type contains a date or a timestamp, whose year may be out of range."""
    name = kind.typeName()
    if name == "struct":
        return any(_contains_time(field.dataType) for field in kind)
    if name == "array":
        return _contains_time(kind.elementType)
    if name == "map":
        return _contains_time(kind.keyType) or _contains_time(kind.valueType)
    return name in _TIME_RANGES


def _is_same(column: Column, cast: Column, given: Any, wanted: Any) -> Column | None:
    """Return the condition that a cast did not change the value; None if no cast can."""
    source, target = given.typeName(), wanted.typeName()
    if (source, target) == ("binary", "string"):
        # Spark would write bytes that are not text, and no other reader could read them.
        return sf.is_valid_utf8(cast)
    if target in _TIME_RANGES and source != "string":
        first, last = (sf.lit(text).cast(wanted) for text in _TIME_RANGES[target])
        inside = cast.between(first, last)
        loses_time = source.startswith("timestamp") and target == "date"
        return inside & (cast.cast(given) == column) if loses_time else inside
    if source == "string":
        form = _FORMS.get(target)
        matches = column.rlike(form) if form else None
        if matches is not None and target == "decimal":
            # More fractional digits than the column has would be rounded.
            return matches & (cast == sf.trim(column).cast("decimal(38, 18)"))
        if matches is not None and target in _FLOATS:
            return matches & (~_is_infinite(cast) | column.rlike(_INFINITY))
        return matches
    if source in _FLOATS and target == "float":
        return ~_is_infinite(cast) | _is_infinite(column)
    if source in _NUMBERS and target == "boolean":
        return column.isin(0, 1)
    if source in _FRACTIONS and target in (*_WHOLE_NUMBERS, "decimal"):
        return cast == column
    if source in _WHOLE_NUMBERS and target in _FLOATS:
        return cast.cast(given) == column
    return None


def _is_infinite(column: Column) -> Column:
    return column.isin(float("inf"), float("-inf"))


# --- writing --------------------------------------------------------------------------------

_NUMBER = "__number"
_REPEATED_KEY = "headgate: a key is repeated"
_VIEW = "headgate_load_source"
# Finds the files that a merge touches before it reads them; pays only for few rows into many.
_FILTER = "spark.sql.optimizer.runtime.rowLevelOperationGroupFilter.enabled"
_FILTER_PAYS_UNDER = 0.1


def append_rows(session: SparkSession, load: SparkLoad, rows: Sequence[DataFrame]) -> None:
    """Append the rows; repeated keys are checked afterwards, with the other constraints."""
    complete_rows(session, load, rows).writeTo(load.table).append()


def overwrite_rows(session: SparkSession, load: SparkLoad, rows: Sequence[DataFrame]) -> None:
    """Replace all rows of the table."""
    complete_rows(session, load, rows).createOrReplaceTempView(_VIEW)
    # Without a PARTITION clause, and in static mode, which is Spark's default, it replaces all.
    session.sql(f"INSERT OVERWRITE {load.table} SELECT * FROM {_VIEW}")


def merge_rows(session: SparkSession, load: SparkLoad, at: int, rows: DataFrame) -> None:
    """Update rows of known keys that differ, and insert the others; the last row of a key wins.

    The rows are frame number `at` of those read. A repeated key is rare, so it is detected during
    the merge, where rows are sorted by their keys anyway.
    """
    try:
        _merge(session, load, _failing_on_repeated_keys(load, rows).select(*_named(rows)))
    except Exception as error:
        if not any(sign in str(error) for sign in (_REPEATED_KEY, "MERGE_CARDINALITY_VIOLATION")):
            raise
        positioned = read_rows(session, load, positions=True)[at]
        _merge(session, load, newest_by_key(load, positioned).select(*_named(rows)))


def _named(rows: DataFrame) -> list[str]:
    return [quote(column) for column in rows.columns if column not in POSITION]


def _merge(session: SparkSession, load: SparkLoad, newest: DataFrame) -> None:
    newest.createOrReplaceTempView(_VIEW)
    columns = file_columns(newest)
    others = [c for c in columns if c not in load.key]
    # Conditions under which a row has a column, for columns that not all rows have.
    has = {c: f"s.{quote(mark)}" for c in others if (mark := given_mark(newest, c))}
    fields = session.table(load.table).schema.fields
    update = ""
    if others:
        types = {f.name: f.dataType for f in fields}
        differs = " OR ".join(
            f"{has.get(c, 'true')} AND {differs_sql(types[c], f't.{quote(c)}', f's.{quote(c)}')}"
            for c in others
        )
        sets = ", ".join(
            f"t.{quote(c)} = "
            + (f"if({has[c]}, s.{quote(c)}, t.{quote(c)})" if c in has else f"s.{quote(c)}")
            for c in others
        )
        update = f"WHEN MATCHED AND ({differs}) THEN UPDATE SET {sets} "
    values = [
        f"s.{quote(f.name)}"
        if f.name in columns
        else f"CAST({_literal(load.defaults.get(f.name))} AS {f.dataType.simpleString()})"
        for f in fields
    ]
    session.conf.set(_FILTER, str(load.share < _FILTER_PAYS_UNDER).lower())
    session.sql(
        f"MERGE INTO {load.table} t USING {_VIEW} s ON {_same_key(load)} {update}"
        f"WHEN NOT MATCHED THEN INSERT ({', '.join(quote(f.name) for f in fields)}) "
        f"VALUES ({', '.join(values)})"
    )


def changed_rows(session: SparkSession, load: SparkLoad, snapshot: int) -> int:
    """Return how many rows of that Iceberg snapshot have other values now."""
    fields = session.table(load.table).schema.fields
    differs = " OR ".join(
        differs_sql(f.dataType, f"t.{quote(f.name)}", f"s.{quote(f.name)}") for f in fields
    )
    [(count,)] = session.sql(
        f"SELECT count(*) FROM {load.table} t "
        f"JOIN {load.table} VERSION AS OF {snapshot} s ON {_same_key(load)} WHERE {differs}"
    ).collect()
    return int(count)


def complete_rows(
    session: SparkSession, load: SparkLoad, rows: Sequence[DataFrame], *, positions: bool = False
) -> DataFrame:
    """Return all rows with all columns of the table; missing columns have their default."""
    fields = session.table(load.table).schema.fields
    return union(
        frame.select(
            *(
                sf.col(quote(f.name))
                if f.name in frame.columns
                else sf.lit(load.defaults.get(f.name)).cast(f.dataType).alias(f.name)
                for f in fields
            ),
            *(POSITION if positions else ()),
        )
        for frame in rows
    )


def newest_by_key(load: SparkLoad, positioned: DataFrame) -> DataFrame:
    """Return the last row of each key, and all rows without a key.

    A column that not all rows have gets the value of the last row that has it.
    """
    marks = {c: mark for c in file_columns(positioned) if (mark := given_mark(positioned, c))}
    if marks:
        return _combined_by_key(load, positioned, marks)
    last = Window.partitionBy(*(quote(column) for column in load.key)).orderBy(
        *(sf.col(column).desc() for column in POSITION)
    )
    keyless = reduce(operator.or_, (sf.col(quote(c)).isNull() for c in load.key))
    numbered = positioned.withColumn(_NUMBER, sf.row_number().over(last))
    return numbered.where((sf.col(_NUMBER) == 1) | keyless).drop(_NUMBER)


def _combined_by_key(load: SparkLoad, positioned: DataFrame, marks: Mapping[str, str]) -> DataFrame:
    keyless = reduce(operator.or_, (sf.col(quote(c)).isNull() for c in load.key))
    position = sf.struct(*POSITION)

    def last(column: str, among: Column) -> Column:
        # In a struct, since a NULL counts as a value here.
        return sf.max_by(sf.struct(quote(column)), among).getField(column)

    found = []
    for column in positioned.columns:
        if column in load.key:
            continue
        if column in POSITION:
            value = sf.max(position).getField(column)
        elif column in marks.values():
            value = sf.bool_or(sf.col(quote(column)))
        elif column in marks:
            has = sf.col(quote(marks[column]))
            among = sf.when(has, position)
            value = sf.when(sf.bool_or(has), last(column, among)).otherwise(last(column, position))
        else:
            value = last(column, position)
        found.append(value.alias(column))
    combined = positioned.where(~keyless).groupBy(*map(quote, load.key)).agg(*found)
    names = [quote(column) for column in positioned.columns]
    return combined.select(*names).union(positioned.where(keyless).select(*names))


def differs_sql(kind: DataType, one: str, other: str) -> str:
    """Return SQL that is true if two values of a type differ; nulls are equal."""
    if kind.typeName() == "map" and "map<" not in kind.simpleString()[4:]:
        one, other = (f"sort_array(map_entries({side}))" for side in (one, other))
    elif "map<" in kind.simpleString():
        # Spark cannot compare maps, and these only cost a superfluous update.
        return "true"
    return f"NOT ({one} <=> {other})"


def _failing_on_repeated_keys(load: SparkLoad, rows: DataFrame) -> DataFrame:
    """Return the same rows; the query fails if a key is repeated."""
    key = [quote(column) for column in load.key]
    numbered = rows.withColumn(
        _NUMBER, sf.row_number().over(Window.partitionBy(*key).orderBy(*key))
    )
    second = sf.raise_error(sf.lit(_REPEATED_KEY)).cast("boolean")
    return numbered.where(sf.when(sf.col(_NUMBER) == 1, sf.lit(True)).otherwise(second))


def _same_key(load: SparkLoad) -> str:
    return " AND ".join(f"t.{quote(c)} = s.{quote(c)}" for c in load.key)


def _literal(value: Any) -> str:
    match value:
        case None:
            return "NULL"
        case bool():
            return "true" if value else "false"
        case str():
            return quote_text(value)
    return repr(value)
