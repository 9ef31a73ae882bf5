"""Whether rows that a load staged may break what their tables demand: a quick look by Spark.

It may doubt rows that are right, never the other way round. Who doubts makes a picture of the
tables, and judges by that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from headgate.model.constraints import Constraints
from headgate.spark.load_reading import quote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Where rows are laid out by their key, equal ones lie together and need not be brought together.
_GROUPED = (
    "spark.sql.sources.v2.bucketing.enabled",
    "spark.sql.iceberg.planning.preserve-data-grouping",
)


@dataclass(frozen=True, kw_only=True)
class LoadCheck:
    """One table after a load: the rows that came, what holds for it, and where others are."""

    table: str
    rows: Sequence[DataFrame]
    constraints: Constraints
    merged: bool = False
    # A merge adds no row whose key is there, so where keys were unique they still are.
    keys_hold: bool = False
    # Where they are not known to have been unique: all keys, or those that came.
    looks_at_all_keys: bool = False
    # SQL names of datasets that it refers to, each with its key; a missing one shows nothing.
    referred: dict[str, tuple[str, str]] = field(default_factory=dict)
    # Tables that refer to it: SQL name, column. Asked only where rows went.
    referring: tuple[tuple[str, str], ...] = ()


def is_doubtful(session: SparkSession, check: LoadCheck) -> bool:
    """Whether anything is found that should not be there."""
    return any(bool(signs.limit(1).collect()) for signs in _signs(session, check))


def keys_are_doubtful(session: SparkSession, check: LoadCheck) -> bool:
    """Whether a key is there twice, of those that came or of all."""
    key = check.constraints.key
    rows = () if check.looks_at_all_keys else check.rows
    return bool(_counted(session, check.table, rows, key).where("count > 1").limit(1).collect())


def _signs(session: SparkSession, check: LoadCheck) -> Iterator[DataFrame]:
    """Frames that are empty if all is well."""
    demands = check.constraints
    for column, allowed in demands.enums.items():
        for values in _came(session, check, column):
            yield values.where(~sf.col("value").isin(list(allowed)))
    for columns in demands.unique:
        yield _counted(session, check.table, check.rows, columns).where("count > 1")
    for limit in demands.cardinality:
        yield _counted(session, check.table, check.rows, (limit.per,)).where(
            sf.col("count") > limit.max
        )
    for reference in demands.references:
        place = check.referred.get(reference.dataset)
        for values in _came(session, check, reference.column):
            yield _orphans(session, values, place)
    for table, column in check.referring:
        values = session.table(table).select(sf.col(quote(column)).alias("value"))
        yield _orphans(session, values, (check.table, demands.key[0]))


def _counted(
    session: SparkSession, table: str, rows: Sequence[DataFrame], columns: tuple[str, ...]
) -> DataFrame:
    """How often the table has the values that came; all of its values where others came too."""
    for option in _GROUPED:
        session.conf.set(option, "true")
    held = session.table(table).dropna(subset=list(columns))
    having = [frame for frame in rows if set(columns) <= set(frame.columns)]
    if having and len(having) == len(rows):
        names = [quote(column) for column in columns]
        came = reduce(lambda a, b: a.union(b), (frame.select(*names) for frame in having))
        held = held.join(came, list(columns), "left_semi")
    return held.groupBy(*(quote(c) for c in columns)).count()


def _came(session: SparkSession, check: LoadCheck, column: str) -> Iterator[DataFrame]:
    """The values that rows have in a column after they came, whichever columns their file has."""
    for frame in check.rows:
        value = sf.col(quote(column)).alias("value")
        if column in frame.columns:
            yield frame.select(value)
        elif check.merged:
            # A row that was there keeps what it has in other columns, and is judged by that too.
            keys = frame.select(*(quote(c) for c in check.constraints.key))
            held = session.table(check.table).join(keys, list(check.constraints.key), "left_semi")
            yield held.select(value)
        elif (default := check.constraints.defaults.get(column)) is not None:
            kind = session.table(check.table).schema[column].dataType
            yield session.range(1).select(sf.lit(default).cast(kind).alias("value"))


def _orphans(session: SparkSession, values: DataFrame, place: tuple[str, str] | None) -> DataFrame:
    known = values.dropna()
    if place is None:
        return known
    keys = session.table(place[0]).select(sf.col(quote(place[1])).alias("key"))
    return known.join(keys, known["value"] == keys["key"], "left_anti")
