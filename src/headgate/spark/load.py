"""Loading files into a table by Spark: append, merge, overwrite.

The session stands in a unit of transactions, so nothing is visible before it commits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sf
from pyspark.sql.window import Window

from headgate.spark.load_reading import PLACE, SparkLoad, given_columns, quote, read_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType

_NUMBER = "__number"
_EQUALS = "headgate: a key is there twice"
_VIEW = "headgate_load_source"
# Where it looks first for the files that a merge touches; pays only for few rows into many.
_FILTER = "spark.sql.optimizer.runtime.rowLevelOperationGroupFilter.enabled"
_FILTER_PAYS_UNDER = 0.1


def append_rows(session: SparkSession, load: SparkLoad, rows: Sequence[DataFrame]) -> None:
    """Adds the rows; that no key is there twice is checked afterwards, with all else."""
    whole_rows(session, load, rows).writeTo(load.table).append()


def overwrite_rows(session: SparkSession, load: SparkLoad, rows: Sequence[DataFrame]) -> None:
    """Puts the rows in place of all that are there."""
    whole_rows(session, load, rows).createOrReplaceTempView(_VIEW)
    # Without a PARTITION clause, and in the static mode that is Spark's own, it replaces all.
    session.sql(f"INSERT OVERWRITE {load.table} SELECT * FROM {_VIEW}")


def merge_rows(session: SparkSession, load: SparkLoad, at: int, rows: DataFrame) -> None:
    """Updates rows of known keys where they differ, adds the others; the last of equals counts.

    The rows are the frame of that number among those read. That keys are equal is rare, so it is
    noticed on the way, where rows lie in the order of their keys anyway.
    """
    try:
        _merge(session, load, _refusing_equals(load, rows), given_columns(rows))
    except Exception as error:
        if not any(sign in str(error) for sign in (_EQUALS, "MERGE_CARDINALITY_VIOLATION")):
            raise
        placed = read_rows(session, load, placed=True)[at]
        _merge(session, load, newest_by_key(load, placed), given_columns(rows))


def _merge(
    session: SparkSession, load: SparkLoad, newest: DataFrame, columns: Sequence[str]
) -> None:
    newest.select(*(quote(c) for c in columns)).createOrReplaceTempView(_VIEW)
    others = [c for c in columns if c not in load.key]
    same_key = " AND ".join(f"t.{quote(c)} = s.{quote(c)}" for c in load.key)
    fields = session.table(load.table).schema.fields
    update = ""
    if others:
        types = {f.name: f.dataType for f in fields}
        differs = " OR ".join(
            differs_sql(types[c], f"t.{quote(c)}", f"s.{quote(c)}") for c in others
        )
        sets = ", ".join(f"t.{quote(c)} = s.{quote(c)}" for c in others)
        update = f"WHEN MATCHED AND ({differs}) THEN UPDATE SET {sets} "
    values = [
        f"s.{quote(f.name)}"
        if f.name in columns
        else f"CAST({_literal(load.defaults.get(f.name))} AS {f.dataType.simpleString()})"
        for f in fields
    ]
    session.conf.set(_FILTER, str(load.share < _FILTER_PAYS_UNDER).lower())
    session.sql(
        f"MERGE INTO {load.table} t USING {_VIEW} s ON {same_key} {update}"
        f"WHEN NOT MATCHED THEN INSERT ({', '.join(quote(f.name) for f in fields)}) "
        f"VALUES ({', '.join(values)})"
    )


def changed_rows(session: SparkSession, load: SparkLoad, snapshot: int) -> int:
    """How many rows of that Iceberg snapshot are there with other values."""
    fields = session.table(load.table).schema.fields
    differs = " OR ".join(
        differs_sql(f.dataType, f"t.{quote(f.name)}", f"s.{quote(f.name)}") for f in fields
    )
    same_key = " AND ".join(f"t.{quote(c)} = s.{quote(c)}" for c in load.key)
    [(count,)] = session.sql(
        f"SELECT count(*) FROM {load.table} t "
        f"JOIN {load.table} VERSION AS OF {snapshot} s ON {same_key} WHERE {differs}"
    ).collect()
    return int(count)


def whole_rows(
    session: SparkSession, load: SparkLoad, rows: Sequence[DataFrame], *, placed: bool = False
) -> DataFrame:
    """All rows with all columns of the table, those not given with their default."""
    fields = session.table(load.table).schema.fields
    wholes = [
        frame.select(
            *(
                sf.col(quote(f.name))
                if f.name in frame.columns
                else sf.lit(load.defaults.get(f.name)).cast(f.dataType).alias(f.name)
                for f in fields
            ),
            *(PLACE if placed else ()),
        )
        for frame in rows
    ]
    return reduce(lambda one, other: one.union(other), wholes)


def _refusing_equals(load: SparkLoad, rows: DataFrame) -> DataFrame:
    """The same rows, which fail as soon as a key comes twice."""
    key = [quote(column) for column in load.key]
    numbered = rows.withColumn(
        _NUMBER, sf.row_number().over(Window.partitionBy(*key).orderBy(*key))
    )
    second = sf.raise_error(sf.lit(_EQUALS)).cast("boolean")
    return numbered.where(sf.when(sf.col(_NUMBER) == 1, sf.lit(True)).otherwise(second))


def newest_by_key(load: SparkLoad, placed: DataFrame) -> DataFrame:
    """The last row of each key; those without one are kept apart."""
    last = Window.partitionBy(*(quote(column) for column in load.key)).orderBy(
        *(sf.col(column).desc() for column in PLACE)
    )
    keyless = reduce(lambda a, b: a | b, (sf.col(quote(c)).isNull() for c in load.key))
    numbered = placed.withColumn(_NUMBER, sf.row_number().over(last))
    return numbered.where((sf.col(_NUMBER) == 1) | keyless).drop(_NUMBER)


def differs_sql(kind: DataType, one: str, other: str) -> str:
    """Whether two values of a type are not the same, in SQL; a missing one is like another."""
    if kind.typeName() == "map" and "map<" not in kind.simpleString()[4:]:
        one, other = (f"sort_array(map_entries({side}))" for side in (one, other))
    elif "map<" in kind.simpleString():
        # Spark compares no maps, and these are not worth more than one superfluous update.
        return "true"
    return f"NOT ({one} <=> {other})"


def _literal(value: Any) -> str:
    match value:
        case None:
            return "NULL"
        case bool():
            return "true" if value else "false"
        case str():
            return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return repr(value)
