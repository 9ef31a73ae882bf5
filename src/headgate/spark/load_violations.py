"""The constraints of tables after a load by Spark: a quick check, then the violations one by one.

The quick check reads what the load staged. It may suspect rows that are right, but never accepts
rows that are wrong. If it suspects any, previews of the tables are computed, and every violation is
found in them with the position of its row, as a load by Arrow reports it. That costs more than the
load itself.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import StructField

from headgate.model.constraints import Violation, ViolationKind
from headgate.model.names import DatasetName
from headgate.spark import load as spark_load
from headgate.spark.load import FILE, POSITION, ROW, SparkLoad
from headgate.spark.sql import quote
from headgate.tables.scan import json_rows

# Lets Spark use the layout of a table by its key: equal keys are stored together, and need no
# shuffle.
_USE_LAYOUT = (
    "spark.sql.sources.v2.bucketing.enabled",
    "spark.sql.iceberg.planning.preserve-data-grouping",
)


@dataclass(frozen=True, kw_only=True)
class Around:
    """The tables around one that is loaded, with the rows that they have after the load."""

    # The datasets that it refers to: rows and key; one that does not exist is left out.
    referred: Mapping[str, tuple[DataFrame, str]]
    # The tables that refer to it: dataset, rows, column. Given only if the load removes rows.
    referring: Sequence[tuple[DatasetName, DataFrame, str]]


@dataclass(frozen=True, kw_only=True)
class LoadCheck:
    """One table after a load: the loaded rows, and the tables around it."""

    load: SparkLoad
    rows: Sequence[DataFrame]
    around: Around
    merged: bool
    # A merge inserts no row whose key exists, so keys that were unique still are.
    keys_hold: bool
    # If they are not known to have been unique: check all keys instead of the loaded ones.
    looks_at_all_keys: bool


def may_violate(session: SparkSession, check: LoadCheck) -> bool:
    """Return whether rows may violate a constraint other than the key."""
    return any(bool(found.limit(1).collect()) for found in _suspects(session, check))


def may_repeat_keys(session: SparkSession, check: LoadCheck) -> bool:
    """Return whether a key is repeated, of the loaded keys or of all."""
    rows = () if check.looks_at_all_keys else check.rows
    counted = _counted(session, check.load.table, rows, check.load.key)
    return bool(counted.where("count > 1").limit(1).collect())


def _suspects(session: SparkSession, check: LoadCheck) -> Iterator[DataFrame]:
    """Yield frames that are empty if no constraint is violated."""
    constraints, table = check.load.constraints, check.load.table
    for column, allowed in constraints.enums.items():
        for values in _values_after(session, check, column):
            yield values.where(~sf.col("value").isin(list(allowed)))
    for columns in constraints.unique:
        yield _counted(session, table, check.rows, columns).where("count > 1")
    for limit in constraints.cardinality:
        yield _counted(session, table, check.rows, (limit.per,)).where(sf.col("count") > limit.max)
    for reference in constraints.references:
        for values in _values_after(session, check, reference.column):
            yield _possible_orphans(values, check.around.referred.get(reference.dataset))
    for _, rows, column in check.around.referring:
        values = rows.select(sf.col(quote(column)).alias("value"))
        yield _possible_orphans(values, (session.table(table), constraints.key[0]))


def _counted(
    session: SparkSession, table: str, rows: Sequence[DataFrame], columns: tuple[str, ...]
) -> DataFrame:
    """Count the loaded values in the table; count all values if not every file has the columns."""
    for option in _USE_LAYOUT:
        session.conf.set(option, "true")
    held = session.table(table).dropna(subset=list(columns))
    if rows and all(set(columns) <= set(spark_load.columns_of_all_rows(f)) for f in rows):
        names = [quote(column) for column in columns]
        held = held.join(
            spark_load.union(frame.select(*names) for frame in rows), list(columns), "left_semi"
        )
    return held.groupBy(*(quote(c) for c in columns)).count()


def _values_after(session: SparkSession, check: LoadCheck, column: str) -> Iterator[DataFrame]:
    """Yield the values of the loaded rows in a column, whether or not their file has it."""
    for frame in check.rows:
        value = sf.col(quote(column)).alias("value")
        if column in frame.columns:
            yield frame.select(value)
        if column in spark_load.columns_of_all_rows(frame):
            continue
        if check.merged:
            # An existing row keeps its values in the other columns, and these are checked too.
            keys = frame.select(*map(quote, check.load.key))
            held = session.table(check.load.table).join(keys, list(check.load.key), "left_semi")
            yield held.select(value)
        elif (default := check.load.defaults.get(column)) is not None:
            kind = session.table(check.load.table).schema[column].dataType
            yield session.range(1).select(sf.lit(default).cast(kind).alias("value"))


def _possible_orphans(values: DataFrame, referred: tuple[DataFrame, str] | None) -> DataFrame:
    known = values.dropna()
    if referred is None:
        return known
    rows, key = referred
    keys = rows.select(sf.col(quote(key)).alias("key"))
    return known.join(keys, known["value"] == keys["key"], "left_anti")


# --- previews: tables after a load, computed and not written ---------------------------------

# The row before the merge; NULL for a new one.
_BEFORE = "__before"
_HELD, _CAME = "__held", "__came"


@dataclass(frozen=True, kw_only=True)
class Preview:
    """One table after a load: what the load adds, and all rows."""

    # New and changed rows, with all columns and their positions.
    added: DataFrame
    rows: DataFrame
    replaced: bool = False


def preview_added(session: SparkSession, load: SparkLoad, *, replaced: bool) -> Preview:
    """Compute an append or overwrite, in a session that shows the table before the load."""
    files = spark_load.read_rows(session, load, positions=True)
    held = session.table(load.table)
    added = spark_load.complete_rows(session, load, files, positions=True)
    rows = added.select(*_columns(held))
    return Preview(added=added, rows=rows if replaced else held.union(rows), replaced=replaced)


def preview_merge(session: SparkSession, load: SparkLoad) -> Preview:
    """Compute a merge, in a session that shows the table before the load."""
    files = spark_load.read_rows(session, load, positions=True)
    held = session.table(load.table)
    before = held.select(
        *_columns(held),
        *(sf.lit(None).cast("bigint").alias(column) for column in POSITION),
        sf.struct(*_columns(held)).alias(_BEFORE),
    )
    merged = reduce(
        lambda rows, frame: _merged(load, held.schema.fields, rows, frame), files, before
    )
    return Preview(
        added=merged.where(_is_added(held)).select(*_columns(held), *POSITION),
        rows=merged.select(*_columns(held)),
    )


def _columns(held: DataFrame) -> list[Column]:
    return [sf.col(quote(column)) for column in held.columns]


def _merged(
    load: SparkLoad, fields: Sequence[StructField], rows: DataFrame, frame: DataFrame
) -> DataFrame:
    """Merge one more frame: its values replace those of known keys, its other rows are added."""
    given = spark_load.file_columns(frame)
    one = rows.withColumn(_HELD, sf.lit(True)).alias("t")
    other = spark_load.newest_by_key(load, frame).withColumn(_CAME, sf.lit(True)).alias("s")
    same = [_of("t", column) == _of("s", column) for column in load.key]
    came, was_held = _of("s", _CAME).isNotNull(), _of("t", _HELD).isNotNull()
    columns = []
    for column in fields:
        default = sf.lit(load.defaults.get(column.name)).cast(column.dataType)
        if column.name in given:
            mark = spark_load.given_mark(frame, column.name)
            counts = came if mark is None else came & (_of("s", mark) | ~was_held)
            value = sf.when(counts, _of("s", column.name)).otherwise(_of("t", column.name))
        else:
            value = sf.when(was_held, _of("t", column.name)).otherwise(default)
        columns.append(value.alias(column.name))
    positions = [
        sf.when(came, _of("s", c)).otherwise(_of("t", c)).cast("bigint").alias(c) for c in POSITION
    ]
    return one.join(other, same, "full_outer").select(
        *columns, *positions, _of("t", _BEFORE).alias(_BEFORE)
    )


def _of(side: str, column: str) -> Column:
    return sf.col(f"{side}.{quote(column)}")


def _is_added(held: DataFrame) -> Column:
    """Return whether a row of a file is new, or changed an existing row."""
    differs = [
        spark_load.differs_sql(field.dataType, quote(field.name), f"{_BEFORE}.{quote(field.name)}")
        for field in held.schema.fields
    ]
    came = " AND ".join(f"{column} IS NOT NULL" for column in POSITION)
    return sf.expr(f"{came} AND ({_BEFORE} IS NULL OR {' OR '.join(differs)})")


# --- violations, kind by kind and in the order of the validator for Arrow --------------------

_LIMIT = 100
_COUNT = "__count"
_AT = "__at"


def find_violations(load: SparkLoad, preview: Preview, around: Around) -> Iterator[Violation]:
    """Yield every violation after the load, up to a limit of each kind."""
    table = _LoadedTable(load=load, preview=preview, around=around)
    yield from table.missing()
    yield from table.outside_enums()
    if load.key:
        yield from table.repeated(load.key, ViolationKind.KEY)
    for columns in load.constraints.unique:
        yield from table.repeated(columns, ViolationKind.UNIQUE)
    yield from table.over_cardinality()
    yield from table.orphans()
    yield from table.orphaned()


@dataclass(frozen=True, kw_only=True)
class _LoadedTable:
    """One loaded table: its preview, and the tables around it."""

    load: SparkLoad
    preview: Preview
    around: Around

    def missing(self) -> Iterator[Violation]:
        added = self.preview.added
        key = self.load.key or (self.preview.rows.columns[0],)
        for column in self.load.required:
            # The key identifies the row, unless it is the key that is missing.
            named = () if column in key else key
            bad = added.where(sf.col(quote(column)).isNull()).orderBy(*POSITION).limit(_LIMIT)
            position = sf.struct(*POSITION).alias(_AT)
            for *values, at in _collect(bad.select(*map(quote, named), position)):
                yield self._violation(ViolationKind.REQUIRED, (column, *named), (None, *values), at)

    def outside_enums(self) -> Iterator[Violation]:
        for column, allowed in self.load.constraints.enums.items():
            bad = self.preview.added.where(~sf.col(quote(column)).isin(list(allowed)))
            for value, at in _first(bad, column):
                facts = {"allowed": list(allowed)}
                yield self._violation(ViolationKind.ENUM, (column,), (value,), at, **facts)

    def repeated(self, columns: tuple[str, ...], kind: ViolationKind) -> Iterator[Violation]:
        for *values, count, at in self._in_too_many_rows(columns, at_most=1):
            yield self._violation(kind, columns, tuple(values), at, count=count)

    def over_cardinality(self) -> Iterator[Violation]:
        for limit in self.load.constraints.cardinality:
            columns = (limit.per,)
            for value, count, at in self._in_too_many_rows(columns, at_most=limit.max):
                facts = {"count": count, "max": limit.max}
                yield self._violation(ViolationKind.CARDINALITY, columns, (value,), at, **facts)

    def orphans(self) -> Iterator[Violation]:
        """Yield added rows that refer to a missing row."""
        for reference in self.load.constraints.references:
            column = sf.col(quote(reference.column))
            bad = self.preview.added.where(column.isNotNull())
            if reference.dataset in self.around.referred:
                rows, key = self.around.referred[reference.dataset]
                held = rows.select(sf.col(quote(key)).alias("__key"))
                bad = bad.join(held, column == sf.col("__key"), "left_anti")
            for value, at in _first(bad, reference.column):
                columns, facts = (reference.column,), {"refers_to": reference.dataset}
                yield self._violation(ViolationKind.REFERENCE, columns, (value,), at, **facts)

    def orphaned(self) -> Iterator[Violation]:
        """Yield rows of other tables that refer to a removed row; only an overwrite removes."""
        if len(self.load.key) != 1 or not self.preview.replaced:
            return
        kept = self.preview.rows.select(sf.col(quote(self.load.key[0])).alias("__key"))
        for dataset, rows, column in self.around.referring:
            values = rows.select(sf.col(quote(column)).alias("__value")).dropna().distinct()
            lost = values.join(kept, sf.col("__value") == sf.col("__key"), "left_anti")
            for (value,) in _collect(lost.orderBy("__value").limit(_LIMIT)):
                yield Violation(
                    dataset=str(dataset),
                    kind=ViolationKind.REFERENCE,
                    columns=(column,),
                    values=(value,),
                    detail={"refers_to": str(self.load.dataset)},
                )

    def _in_too_many_rows(self, columns: tuple[str, ...], *, at_most: int) -> Iterator[list[Any]]:
        """Yield values of added rows that too many rows have, each with the last added row."""
        names = [quote(column) for column in columns]
        came = (
            self.preview.added.dropna(subset=list(columns))
            .groupBy(*names)
            .agg(sf.max(sf.struct(*POSITION)).alias(_AT))
        )
        counted = self.preview.rows.groupBy(*names).agg(sf.count("*").alias(_COUNT))
        found = counted.where(sf.col(_COUNT) > at_most).join(came, list(columns))
        return _collect(found.orderBy(*names).limit(_LIMIT).select(*names, _COUNT, _AT))

    def _violation(
        self,
        kind: ViolationKind,
        columns: tuple[str, ...],
        values: tuple[Any, ...],
        at: Mapping[str, int],
        **detail: Any,
    ) -> Violation:
        file = self.load.files[at[FILE]]
        place = {"file": file.name, "line": file.line_of(at[ROW])}
        return Violation(
            dataset=str(self.load.dataset),
            kind=kind,
            columns=columns,
            values=values,
            detail={**detail, **place},
        )


def _first(bad: DataFrame, column: str) -> Iterator[list[Any]]:
    """Yield each value of a column, with the first row that has it."""
    position = sf.min(sf.struct(*POSITION)).alias(_AT)
    return _collect(bad.groupBy(quote(column)).agg(position).orderBy(quote(column)).limit(_LIMIT))


def _collect(frame: DataFrame) -> Iterator[list[Any]]:
    """Yield rows as lists of JSON values; a position comes last."""
    for row in json_rows(frame.toArrow()):
        yield list(row.values())
