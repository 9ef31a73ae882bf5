"""Loads files into a table by Spark: append, overwrite or merge.

The files are Parquet with rows in the types of the table. Errors that Spark raises while it writes
(a missing value) are not looked for beforehand: that would be one more pass over the files. The
session is bound to a unit of transactions, so nothing is visible before it commits.
"""

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import groupby
from typing import Any
from urllib.parse import unquote

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import DataType, StructType
from pyspark.sql.window import Window

from headgate.model.constraints import Constraints
from headgate.model.names import DatasetName
from headgate.spark.session import table_identifier
from headgate.spark.sql import quote, quote_text


@dataclass(frozen=True, kw_only=True)
class LoadFile:
    """A file of Parquet with some columns of a table."""

    # As given by the caller; a source without a file has a name as well.
    name: str
    # Absolute, on a disk that Spark reads too.
    path: str
    columns: tuple[str, ...]
    # Columns that some rows do not have; `mark_of` names the column that says which rows have one.
    ragged: frozenset[str] = frozenset()
    size_bytes: int
    # Finds the line of a row in the original file.
    line_of: Callable[[int], int]


@dataclass(frozen=True, kw_only=True)
class SparkLoad:
    """A load into one table: the files, and the constraints of its rows."""

    dataset: DatasetName
    files: Sequence[LoadFile]
    constraints: Constraints
    required: Sequence[str]
    # The size of the files, relative to that of the table.
    share: float

    @property
    def table(self) -> str:
        """The quoted SQL name."""
        return table_identifier(self.dataset)

    @property
    def key(self) -> tuple[str, ...]:
        return self.constraints.key

    @property
    def defaults(self) -> Mapping[str, Any]:
        return self.constraints.defaults


# The position of a row: the number of its file, and its number in the file.
FILE, ROW = "__file", "__row"
POSITION = (FILE, ROW)
_PATH = "__path"
# The prefix of columns that say which rows have a column.
_GIVEN = "__given:"
# Spark writes one slash after the scheme in some places, and three in others.
_SCHEME = re.compile("^file:/+")


def read_rows(
    session: SparkSession, load: SparkLoad, *, positions: bool = False
) -> list[DataFrame]:
    """Return the rows, one frame for each run of files with the same columns.

    Without `positions` the columns of the position are null: to find the rows of Parquet files
    costs a tenth of a merge.
    """
    # A timestamp without a zone means the same on every machine.
    session.conf.set("spark.sql.session.timeZone", "UTC")
    table = session.table(load.table)
    nowhere = [sf.lit(None).cast("bigint").alias(column) for column in POSITION]
    frames = []
    for (columns, ragged), run in groupby(
        enumerate(load.files), key=lambda item: (item[1].columns, item[1].ragged)
    ):
        schema = StructType([table.schema[column] for column in columns])
        for column in columns:
            if column in ragged:
                schema.add(mark_of(column), "boolean")
        numbers = {file.path: number for number, file in run}
        frame = session.read.schema(schema).parquet(*(f"file://{path}" for path in numbers))
        if positions:
            frames.append(_with_positions(session, frame, numbers))
        else:
            frames.append(frame.select("*", *nowhere))
    return frames or [table.limit(0).select("*", *nowhere)]


def mark_of(column: str) -> str:
    """Return the name of the column that says which rows have this column."""
    return f"{_GIVEN}{column}"


def file_columns(rows: DataFrame) -> list[str]:
    """Return the columns that the files have."""
    return [c for c in rows.columns if c not in POSITION and not c.startswith(_GIVEN)]


def given_mark(rows: DataFrame, column: str) -> str | None:
    """Return the column that says which rows have this column; None if all have it."""
    mark = mark_of(column)
    return mark if mark in rows.columns else None


def columns_of_all_rows(rows: DataFrame) -> list[str]:
    """Return the columns that every row of the files has."""
    return [column for column in file_columns(rows) if given_mark(rows, column) is None]


def union(frames: Iterable[DataFrame]) -> DataFrame:
    return reduce(lambda one, other: one.union(other), frames)


def _with_positions(
    session: SparkSession, frame: DataFrame, numbers: Mapping[str, int]
) -> DataFrame:
    """Add positions by the path of each file: Spark reads the files in another order."""
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
