"""The one validator of mutate, load and merge: what the tables demand, over the whole picture."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import pyarrow as pa

from headgate.errors import ConstraintsViolated
from headgate.model.constraints import Violation, ViolationKind
from headgate.model.names import parse_dataset_name
from headgate.rows.engine import columns_sql, conditions_of, equal_sql, literal, quote
from headgate.rows.working_set import BY, Picture, PicturedTable, TableEffect
from headgate.tables.arrow import plain
from headgate.tables.scan import Among, Condition

LIMIT = 100

# Where the writer of a dataset's row is found, by its number.
Place: TypeAlias = Callable[[str, int], Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Broken:
    """A violation and, where one row is to blame, the number of the statement that wrote it."""

    violation: Violation
    by: int | None = None


def check_constraints(picture: Picture, effects: Sequence[TableEffect], place: Place) -> None:
    """Raises with all violations, up to a limit, each with the place that its writer has."""
    refuse(
        _placed(broken, place) for effect in effects for broken in violations_of(picture, effect)
    )


def refuse(violations: Iterable[Violation]) -> None:
    """Raises with these violations, up to a limit, if there are any."""
    found: dict[object, Violation] = {}
    for violation in violations:
        # A new row that refers to what is gone is found from both ends.
        same = (violation.dataset, violation.kind, violation.columns, violation.values)
        found.setdefault(same, violation)
    if found:
        shown = list(found.values())[:LIMIT]
        raise ConstraintsViolated(
            violations=[violation.to_json() for violation in shown],
            texts=[violation.text for violation in shown],
            total=len(found),
            limit=LIMIT,
        )


def violations_of(picture: Picture, effect: TableEffect) -> Iterator[Broken]:
    """Everything that is wrong after an effect, with the table itself and those around it."""
    yield from _required(effect)
    yield from _enums(effect)
    constraints = effect.table.constraints
    if constraints.key:
        yield from _doubled(effect, constraints.key, ViolationKind.KEY)
    for columns in constraints.unique:
        yield from _doubled(effect, columns, ViolationKind.UNIQUE)
    yield from _too_many(effect)
    yield from _orphans(picture, effect)
    yield from _orphaned(picture, effect)


def _placed(broken: Broken, place: Place) -> Violation:
    violation = broken.violation
    where = place(violation.dataset, broken.by) if broken.by is not None else {}
    return replace(violation, detail={**violation.detail, **where})


def _required(effect: TableEffect) -> Iterator[Broken]:
    table = effect.table
    key = table.constraints.key or table.columns[:1]
    for column in table.required:
        rows = table.engine.rows(
            f"SELECT {columns_sql(key)}, {BY} FROM {effect.added} "
            f"WHERE {quote(column)} IS NULL ORDER BY {BY} LIMIT {LIMIT}"
        )
        for *values, by in rows:
            # The row is named by its key, unless it is the key that is missing.
            shown = (column,) if column in key else (column, *key)
            yield _broken(
                table,
                ViolationKind.REQUIRED,
                shown,
                [None] if column in key else [None, *values],
                by,
            )


def _enums(effect: TableEffect) -> Iterator[Broken]:
    table = effect.table
    for column, allowed in table.constraints.enums.items():
        listed = ", ".join(literal(value) for value in allowed)
        rows = table.engine.rows(
            f"SELECT {quote(column)}, min({BY}) FROM {effect.added} "
            f"WHERE {quote(column)} NOT IN ({listed}) GROUP BY 1 ORDER BY 1 LIMIT {LIMIT}"
        )
        for value, by in rows:
            yield _broken(table, ViolationKind.ENUM, (column,), [value], by, allowed=list(allowed))


def _doubled(effect: TableEffect, columns: Sequence[str], kind: ViolationKind) -> Iterator[Broken]:
    """Values of the added rows that the picture has more than once; a missing one never counts."""
    table = effect.table
    known = " AND ".join(f"{quote(column)} IS NOT NULL" for column in columns)
    values = f"SELECT DISTINCT {columns_sql(columns)} FROM {effect.added} WHERE {known}"
    relation = table.relation(columns, _among(effect, columns))
    rows = table.engine.rows(
        f"SELECT {columns_sql(columns, 'held')}, count(*) FROM {relation} AS held "
        f"SEMI JOIN ({values}) AS new ON {equal_sql(columns, 'held', 'new')} "
        f"GROUP BY {columns_sql(columns, 'held')} HAVING count(*) > 1 "
        f"ORDER BY {columns_sql(columns, 'held')} LIMIT {LIMIT}"
    )
    for *found, count in rows:
        yield _broken(
            table, kind, columns, found, _writer(effect, columns, found), count=int(count)
        )


def _too_many(effect: TableEffect) -> Iterator[Broken]:
    table = effect.table
    for limit in table.constraints.cardinality:
        column = quote(limit.per)
        relation = table.relation([limit.per], _among(effect, [limit.per]))
        rows = table.engine.rows(
            f"SELECT held.{column}, count(*) FROM {relation} AS held SEMI JOIN {effect.added} "
            f"AS new ON held.{column} = new.{column} GROUP BY 1 HAVING count(*) > {limit.max} "
            f"ORDER BY 1 LIMIT {LIMIT}"
        )
        for value, count in rows:
            yield _broken(
                table,
                ViolationKind.CARDINALITY,
                (limit.per,),
                [value],
                _writer(effect, [limit.per], [value]),
                count=int(count),
                max=limit.max,
            )


def _orphans(picture: Picture, effect: TableEffect) -> Iterator[Broken]:
    """Added rows that refer to nothing."""
    table = effect.table
    for reference in table.constraints.references:
        other = picture.find_table(parse_dataset_name(reference.dataset))
        column = quote(reference.column)
        missing = f"SELECT * FROM {effect.added} AS new WHERE new.{column} IS NOT NULL"
        if other is not None and other.constraints.key:
            [target] = other.constraints.key
            where = _renamed(_among(effect, [reference.column]), target)
            relation = other.relation([target], where)
            missing = (
                f"SELECT new.* FROM {effect.added} AS new ANTI JOIN {relation} AS held "
                f"ON new.{column} = held.{quote(target)} WHERE new.{column} IS NOT NULL"
            )
        rows = table.engine.rows(
            f"SELECT {column}, min({BY}) FROM ({missing}) GROUP BY 1 ORDER BY 1 LIMIT {LIMIT}"
        )
        for value, by in rows:
            yield _broken(
                table,
                ViolationKind.REFERENCE,
                (reference.column,),
                [value],
                by,
                refers_to=reference.dataset,
            )


def _orphaned(picture: Picture, effect: TableEffect) -> Iterator[Broken]:
    """Rows of other tables that refer to what is gone; those just added are found as orphans."""
    table = effect.table
    if len(table.constraints.key) != 1 or table.rows is None:
        return
    [key] = table.constraints.key
    gone = _vanished(effect, key)
    values = _values(table, gone, "key")
    for other, column in picture.referring(table):
        if not values and not table.is_replaced:
            continue
        where: list[Condition] = [] if table.is_replaced else [Among(column=column, values=values)]
        relation = other.relation([column], where)
        kept = f"ANTI JOIN {effect.added} AS kept ON held.{quote(column)} = kept.{quote(key)}"
        lost = f"SEMI JOIN {gone} AS gone ON held.{quote(column)} = gone.key"
        rows = table.engine.rows(
            f"SELECT DISTINCT held.{quote(column)} FROM {relation} AS held "
            f"{kept if table.is_replaced else lost} WHERE held.{quote(column)} IS NOT NULL "
            f"ORDER BY 1 LIMIT {LIMIT}"
        )
        for (value,) in rows:
            yield _broken(
                other,
                ViolationKind.REFERENCE,
                (column,),
                [value],
                None,
                refers_to=str(table.name),
            )


def _vanished(effect: TableEffect, key: str) -> str:
    """Keys that were there and are no more."""
    table = effect.table
    name = table.engine.new_name("gone")
    table.engine.do(
        f"CREATE TEMP TABLE {name} AS SELECT DISTINCT old.{quote(key)} AS key "
        f"FROM {effect.removed} AS old ANTI JOIN {table.rows} AS held "
        f"ON old.{quote(key)} = held.{quote(key)}"
    )
    return name


def _among(effect: TableEffect, columns: Sequence[str]) -> list[Condition]:
    return [conditions_of(effect.table.engine, effect.added, column) for column in columns]


def _renamed(conditions: Sequence[Condition], column: str) -> list[Condition]:
    return [replace(condition, column=column) for condition in conditions]


def _values(table: PicturedTable, relation: str, column: str) -> frozenset[Any]:
    rows = table.engine.rows(
        f"SELECT DISTINCT {quote(column)} FROM {relation} WHERE {quote(column)} IS NOT NULL"
    )
    return frozenset(row[0] for row in rows)


def _writer(effect: TableEffect, columns: Sequence[str], values: Sequence[Any]) -> int | None:
    """The last statement that wrote such a row."""
    engine = effect.table.engine
    first = engine.register(_one_row(columns, values))
    found = engine.rows(
        f"SELECT max({BY}) FROM {effect.added} AS new SEMI JOIN {first} AS one "
        f"ON {equal_sql(columns, 'new', 'one')}"
    )
    return int(found[0][0]) if found and found[0][0] is not None else None


def _one_row(columns: Sequence[str], values: Sequence[Any]) -> pa.Table:
    return pa.table({c: [v] for c, v in zip(columns, values, strict=True)})


def _broken(
    table: PicturedTable,
    kind: ViolationKind,
    columns: Sequence[str],
    values: Sequence[Any],
    by: int | None,
    **detail: Any,
) -> Broken:
    shown = tuple(
        plain(value, table.scan.schema.field(column).type)
        for column, value in zip(columns, values, strict=True)
    )
    return Broken(
        violation=Violation(
            dataset=str(table.name), kind=kind, columns=tuple(columns), values=shown, detail=detail
        ),
        by=by,
    )
