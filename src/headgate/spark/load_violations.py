"""What is wrong with rows that came, over pictures of the tables: each violation with its place.

The counterpart of the mutations' own validator, kind by kind and in its order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sf

from headgate.model.constraints import Constraints, ViolationKind
from headgate.spark.load_reading import FILE, PLACE, ROW, quote, rows_before

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headgate.spark.load_picture import Pictured

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
