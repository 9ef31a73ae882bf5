"""Loading files into a table by Spark: append, merge, overwrite.

The session stands in a unit of transactions, so nothing is visible before it commits.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sf
from pyspark.sql.window import Window

from headgate.model.constraints import Constraints, ViolationKind
from headgate.spark.load_files import (
    FILE,
    PLACE,
    ROW,
    SparkLoad,
    given_columns,
    quote,
    read_rows,
    rows_before,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructField


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


# A table after a load, computed and not written: what came, with its place, and what there is.
#
# It is the same as the mutations' own picture, so that a load by Spark can tell of its bad rows all
# that a load without Spark tells. It costs more than the load, and is made only where one failed.

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
    for column in fields:
        default = sf.lit(load.defaults.get(column.name)).cast(column.dataType)
        new = _of("s", column.name) if column.name in given else None
        value = (
            sf.when(was, _of("t", column.name)).otherwise(default)
            if new is None
            else sf.when(came, new).otherwise(_of("t", column.name))
        )
        columns.append(value.alias(column.name))
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


# Whether rows that a load staged may break what their tables demand: a quick look by Spark.
#
# It may doubt rows that are right, never the other way round. Who doubts makes a picture of the
# tables, and judges by that.

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
            yield _may_be_orphans(session, values, place)
    for table, column in check.referring:
        values = session.table(table).select(sf.col(quote(column)).alias("value"))
        yield _may_be_orphans(session, values, (check.table, demands.key[0]))


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


def _may_be_orphans(
    session: SparkSession, values: DataFrame, place: tuple[str, str] | None
) -> DataFrame:
    known = values.dropna()
    if place is None:
        return known
    keys = session.table(place[0]).select(sf.col(quote(place[1])).alias("key"))
    return known.join(keys, known["value"] == keys["key"], "left_anti")


# What is wrong with rows that came, over pictures of the tables: each violation with its place.
#
# The counterpart of the mutations' own validator, kind by kind and in its order.

_LIMIT = 100
_COUNT = "__count"
_WHERE = "__where"


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One table that was loaded: its picture, what holds for it, and what is around it."""

    dataset: str
    table: Pictured
    constraints: Constraints
    required: Sequence[str]
    # Tables that it refers to: all their rows, and the name of their key.
    referred: Mapping[str, tuple[DataFrame, str]] = field(default_factory=dict)
    # Tables that refer to it: dataset, all its rows, column.
    referring: Sequence[tuple[str, DataFrame, str]] = ()


@dataclass(frozen=True, kw_only=True)
class Found:
    """A violation as Spark has it: values of its own types, and the place of a row to blame."""

    dataset: str
    kind: ViolationKind
    columns: tuple[str, ...]
    values: tuple[Any, ...]
    detail: Mapping[str, Any] = field(default_factory=dict)
    # The number of the file among those given, and how many rows of it stand before.
    place: tuple[int, int] | None = None


def find_violations(judged: Judged) -> Iterator[Found]:
    """Everything that is wrong after the load, up to a limit of each sort."""
    demands = judged.constraints
    yield from _missing(judged)
    yield from _outside_enums(judged)
    if demands.key:
        yield from _doubled(judged, demands.key, ViolationKind.KEY)
    for columns in demands.unique:
        yield from _doubled(judged, columns, ViolationKind.UNIQUE)
    yield from _too_many(judged)
    yield from _orphans(judged)
    yield from _orphaned(judged)


def _missing(judged: Judged) -> Iterator[Found]:
    added = judged.table.added
    key = judged.constraints.key or (judged.table.rows.columns[0],)
    for column in judged.required:
        # The row is named by its key, unless it is the key that is missing.
        named = () if column in key else key
        bad = added.where(sf.col(quote(column)).isNull()).orderBy(*PLACE).limit(_LIMIT)
        place = sf.struct(*PLACE).alias(_WHERE)
        for *values, at in _collect(bad.select(*map(quote, named), place)):
            columns = (column, *named)
            yield _found(judged, ViolationKind.REQUIRED, columns, (None, *values), at)


def _outside_enums(judged: Judged) -> Iterator[Found]:
    for column, allowed in judged.constraints.enums.items():
        bad = judged.table.added.where(~sf.col(quote(column)).isin(list(allowed)))
        for value, at in _first(bad, column):
            facts = {"allowed": list(allowed)}
            yield _found(judged, ViolationKind.ENUM, (column,), (value,), at, **facts)


def _doubled(judged: Judged, columns: tuple[str, ...], kind: ViolationKind) -> Iterator[Found]:
    for *values, count, at in _crowded(judged, columns, at_most=1):
        yield _found(judged, kind, columns, tuple(values), at, count=count)


def _too_many(judged: Judged) -> Iterator[Found]:
    for limit in judged.constraints.cardinality:
        for value, count, at in _crowded(judged, (limit.per,), at_most=limit.max):
            facts = {"count": count, "max": limit.max}
            yield _found(judged, ViolationKind.CARDINALITY, (limit.per,), (value,), at, **facts)


def _crowded(judged: Judged, columns: tuple[str, ...], *, at_most: int) -> Iterator[list[Any]]:
    """Values of added rows that more rows have than may, each with the last row that brought it."""
    names = [quote(column) for column in columns]
    came = (
        judged.table.added.dropna(subset=list(columns))
        .groupBy(*names)
        .agg(sf.max(sf.struct(*PLACE)).alias(_WHERE))
    )
    counted = judged.table.rows.groupBy(*names).agg(sf.count("*").alias(_COUNT))
    crowded = counted.where(sf.col(_COUNT) > at_most).join(came, list(columns))
    found = crowded.orderBy(*names).limit(_LIMIT).select(*names, _COUNT, _WHERE)
    return _collect(found)


def _orphans(judged: Judged) -> Iterator[Found]:
    """Added rows that refer to nothing."""
    for reference in judged.constraints.references:
        bad = judged.table.added.where(sf.col(quote(reference.column)).isNotNull())
        if reference.dataset in judged.referred:
            rows, key = judged.referred[reference.dataset]
            held = rows.select(sf.col(quote(key)).alias("__key"))
            bad = bad.join(held, sf.col(quote(reference.column)) == sf.col("__key"), "left_anti")
        for value, at in _first(bad, reference.column):
            facts = {"refers_to": reference.dataset}
            columns = (reference.column,)
            yield _found(judged, ViolationKind.REFERENCE, columns, (value,), at, **facts)


def _orphaned(judged: Judged) -> Iterator[Found]:
    """Rows of other tables that refer to what is gone, which only a replacement leaves."""
    if len(judged.constraints.key) != 1 or not judged.table.replaced:
        return
    kept = judged.table.rows.select(sf.col(quote(judged.constraints.key[0])).alias("__key"))
    for dataset, rows, column in judged.referring:
        values = rows.select(sf.col(quote(column)).alias("__value")).dropna().distinct()
        lost = values.join(kept, sf.col("__value") == sf.col("__key"), "left_anti")
        for (value,) in _collect(lost.orderBy("__value").limit(_LIMIT)):
            yield Found(
                dataset=dataset,
                kind=ViolationKind.REFERENCE,
                columns=(column,),
                values=(value,),
                detail={"refers_to": judged.dataset},
            )


def _first(bad: DataFrame, column: str) -> Iterator[list[Any]]:
    """Each value of a column, with the first row that brought it."""
    place = sf.min(sf.struct(*PLACE)).alias(_WHERE)
    return _collect(bad.groupBy(quote(column)).agg(place).orderBy(quote(column)).limit(_LIMIT))


def _collect(frame: DataFrame) -> Iterator[list[Any]]:
    """Rows as lists of Python values, a place as the last where there is one."""
    for row in frame.toArrow().to_pylist():
        yield list(row.values())


def _found(
    judged: Judged,
    kind: ViolationKind,
    columns: tuple[str, ...],
    values: tuple[Any, ...],
    at: Mapping[str, int],
    **detail: Any,
) -> Found:
    file = int(at[FILE])
    return Found(
        dataset=judged.dataset,
        kind=kind,
        columns=columns,
        values=values,
        detail=detail,
        place=(file, rows_before(judged.table.placed, file, int(at[ROW]))),
    )
