"""A table after a load, computed and not written: what came, with its place, and what there is.

It is the same as the mutations' own picture, so that a load by Spark can tell of its bad rows all
that a load without Spark tells. It costs more than the load, and is made only where one failed.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from headgate.spark.load import differs_sql, newest_by_key, whole_rows
from headgate.spark.load_reading import PLACE, SparkLoad, given_columns, quote, read_rows

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructField

# The row as it was before, in a merge; NULL for a new one.
_WAS = "__was"
_HELD, _CAME = "__held", "__came"


class Way(enum.Enum):
    """How rows come into a table."""

    ADD = enum.auto()
    REPLACE = enum.auto()
    MERGE = enum.auto()


@dataclass(frozen=True, kw_only=True)
class Pictured:
    """One table: frames of the rows that came, with their places, and of all rows."""

    placed: Sequence[DataFrame]
    # New rows and those that are no longer what they were, whole, each with its place.
    added: DataFrame
    rows: DataFrame
    replaced: bool


def picture(session: SparkSession, load: SparkLoad, way: Way) -> Pictured:
    """What a load makes of a table, in a session that shows it as it was before."""
    placed = read_rows(session, load, placed=True)
    held = session.table(load.table)
    if way is Way.MERGE:
        merged = reduce(
            lambda rows, frame: _merged(load, held.schema.fields, rows, frame),
            placed,
            _unmerged(held),
        )
        return Pictured(
            placed=placed,
            added=merged.where(_is_added(held)).select(*_columns(held), *PLACE),
            rows=merged.select(*_columns(held)),
            replaced=False,
        )
    added = whole_rows(session, load, placed, placed=True)
    came = added.select(*_columns(held))
    rows = came if way is Way.REPLACE else held.union(came)
    return Pictured(placed=placed, added=added, rows=rows, replaced=way is Way.REPLACE)


def _columns(held: DataFrame) -> list[Column]:
    return [sf.col(quote(column)) for column in held.columns]


def _unmerged(held: DataFrame) -> DataFrame:
    return held.select(
        *_columns(held),
        *(sf.lit(None).cast("bigint").alias(column) for column in PLACE),
        sf.struct(*_columns(held)).alias(_WAS),
    )


def _merged(
    load: SparkLoad, fields: Sequence[StructField], rows: DataFrame, frame: DataFrame
) -> DataFrame:
    """The rows after one more frame: known keys take its values, the others are added."""
    given = given_columns(frame)
    one = rows.withColumn(_HELD, sf.lit(True)).alias("t")
    other = newest_by_key(load, frame).withColumn(_CAME, sf.lit(True)).alias("s")
    same = [_of("t", column) == _of("s", column) for column in load.key]
    came, was = _of("s", _CAME).isNotNull(), _of("t", _HELD).isNotNull()
    columns = []
    for field in fields:
        default = sf.lit(load.defaults.get(field.name)).cast(field.dataType)
        new = _of("s", field.name) if field.name in given else None
        value = (
            sf.when(was, _of("t", field.name)).otherwise(default)
            if new is None
            else sf.when(came, new).otherwise(_of("t", field.name))
        )
        columns.append(value.alias(field.name))
    places = [
        sf.when(came, _of("s", c)).otherwise(_of("t", c)).cast("bigint").alias(c) for c in PLACE
    ]
    return one.join(other, same, "full_outer").select(*columns, *places, _of("t", _WAS).alias(_WAS))


def _of(side: str, column: str) -> Column:
    return sf.col(f"{side}.{quote(column)}")


def _is_added(held: DataFrame) -> Column:
    """New, or changed by a row that came."""
    differs = [
        differs_sql(field.dataType, quote(field.name), f"{_WAS}.{quote(field.name)}")
        for field in held.schema.fields
    ]
    came = " AND ".join(f"{column} IS NOT NULL" for column in PLACE)
    return sf.expr(f"{came} AND ({_WAS} IS NULL OR {' OR '.join(differs)})")
