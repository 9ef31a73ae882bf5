"""The validator of all writers of rows: constraints over the whole working set."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, TypeAlias

import pyarrow as pa

from headgate.errors import ConstraintsViolated
from headgate.model.constraints import Enforce, Violation, ViolationKind
from headgate.model.names import DatasetName, parse_dataset_name
from headgate.model.rules import ChangedTable
from headgate.rows.engine import columns_sql, conditions_of, equal_sql, literal, quote
from headgate.rows.working_set import BY, TableEffect, WorkingSet, WorkingTable, committed_effect
from headgate.tables.constraints import enforcement_of
from headgate.tables.scan import Condition, json_value

LIMIT = 100

# Returns the place of a row, such as file and line, by its dataset and the number of its writer.
PlaceOf: TypeAlias = Callable[[str, int], Mapping[str, Any]]


def no_place(dataset: str, number: int) -> Mapping[str, Any]:
    return {}


def check_constraints(
    working: WorkingSet, effects: Sequence[TableEffect], place_of: PlaceOf = no_place
) -> None:
    """Raise with all violations, up to a limit, each with the place of its writer."""
    raise_if_any(found for effect in effects for found in violations_of(working, effect, place_of))


def raise_if_any(violations: Iterable[Violation]) -> None:
    """Raise with these violations, up to a limit, if there are any."""
    distinct: dict[object, Violation] = {}
    for violation in violations:
        # A new row that refers to a removed key is found from both ends.
        distinct.setdefault(violation.identity, violation)
    if distinct:
        shown = list(distinct.values())[:LIMIT]
        raise ConstraintsViolated(
            violations=[violation.to_json() for violation in shown],
            texts=[violation.text for violation in shown],
            total=len(distinct),
            limit=LIMIT,
        )


def violations_of(
    working: WorkingSet, effect: TableEffect, place_of: PlaceOf = no_place
) -> Iterator[Violation]:
    """Return the violations of an effect, in the table itself and in tables around it."""
    validator = _Validator(working, effect, place_of)
    constraints = effect.table.constraints
    yield from validator.required()
    yield from validator.enums()
    if constraints.key:
        yield from validator.duplicates(constraints.key, ViolationKind.KEY)
    for columns in constraints.unique:
        yield from validator.duplicates(columns, ViolationKind.UNIQUE)
    yield from validator.cardinality()
    yield from validator.missing_targets()
    yield from validator.dangling_references()


def violations_of_commits(
    working: WorkingSet, changed: Sequence[ChangedTable], *, always: bool = False
) -> list[tuple[DatasetName, Violation]]:
    """Return the violations of commits, each with the table of the commit that causes it.

    All commits are visible together, so each table is validated on the picture after all of them.
    Unless `always`, a table's own constraints count only where engines must satisfy them.
    """

    def binds(table: WorkingTable) -> bool:
        return always or enforcement_of(table.scan.version.metadata) is not Enforce.OFF

    effects = [
        committed_effect(working, one, lambda t: _columns_needed(t) if binds(t) else ())
        for one in changed
    ]
    found: dict[object, tuple[DatasetName, Violation]] = {}
    for effect in effects:
        violations = (
            violations_of(working, effect)
            if binds(effect.table)
            else _Validator(working, effect, no_place).dangling_references()
        )
        for violation in violations:
            found.setdefault(violation.identity, (effect.table.name, violation))
    return list(found.values())


def _columns_needed(table: WorkingTable) -> list[str]:
    """Return the columns that validation reads of added rows."""
    held = table.constraints
    named = {*held.key, *chain(*held.unique), *held.enums, *table.required}
    named |= {one.column for one in held.references} | {one.per for one in held.cardinality}
    # The first column names a row of a table without a key.
    return [name for name in table.columns if name in named or name == table.columns[0]]


@dataclass(frozen=True)
class _Validator:
    """The checks of one effect."""

    working: WorkingSet
    effect: TableEffect
    place_of: PlaceOf

    @property
    def table(self) -> WorkingTable:
        return self.effect.table

    def required(self) -> Iterator[Violation]:
        key = self.table.constraints.key or self.table.columns[:1]
        for column in self.table.required:
            rows = self._rows(
                f"SELECT {columns_sql(key)}, {BY} FROM {self.effect.added} "
                f"WHERE {quote(column)} IS NULL ORDER BY {BY}"
            )
            for *values, by in rows:
                # The row is identified by its key, unless that is what is missing.
                named = {} if column in key else dict(zip(key, values, strict=True))
                yield self._violation(ViolationKind.REQUIRED, {column: None, **named}, by)

    def enums(self) -> Iterator[Violation]:
        for column, allowed in self.table.constraints.enums.items():
            listed = ", ".join(literal(value) for value in allowed)
            rows = self._rows(
                f"SELECT {quote(column)}, min({BY}) FROM {self.effect.added} "
                f"WHERE {quote(column)} NOT IN ({listed}) GROUP BY 1 ORDER BY 1"
            )
            for value, by in rows:
                yield self._violation(
                    ViolationKind.ENUM, {column: value}, by, allowed=list(allowed)
                )

    def duplicates(self, columns: Sequence[str], kind: ViolationKind) -> Iterator[Violation]:
        """Return values of the added rows that occur more than once; NULL never counts."""
        known = " AND ".join(f"{quote(column)} IS NOT NULL" for column in columns)
        values = f"SELECT DISTINCT {columns_sql(columns)} FROM {self.effect.added} WHERE {known}"
        relation = self.table.relation(columns, self._conditions(columns))
        rows = self._rows(
            f"SELECT {columns_sql(columns, 'held')}, count(*) FROM {relation} AS held "
            f"SEMI JOIN ({values}) AS new ON {equal_sql(columns, 'held', 'new')} "
            f"GROUP BY {columns_sql(columns, 'held')} HAVING count(*) > 1 "
            f"ORDER BY {columns_sql(columns, 'held')}"
        )
        for *found, count in rows:
            row = dict(zip(columns, found, strict=True))
            yield self._violation(kind, row, self._writer(row), count=int(count))

    def cardinality(self) -> Iterator[Violation]:
        for limit in self.table.constraints.cardinality:
            column = quote(limit.per)
            relation = self.table.relation([limit.per], self._conditions([limit.per]))
            rows = self._rows(
                f"SELECT held.{column}, count(*) FROM {relation} AS held "
                f"SEMI JOIN {self.effect.added} AS new ON held.{column} = new.{column} "
                f"GROUP BY 1 HAVING count(*) > {limit.max} ORDER BY 1"
            )
            for value, count in rows:
                row = {limit.per: value}
                by, total = self._writer(row), int(count)
                yield self._violation(
                    ViolationKind.CARDINALITY, row, by, count=total, max=limit.max
                )

    def missing_targets(self) -> Iterator[Violation]:
        """Return references of added rows to missing keys."""
        for reference in self.table.constraints.references:
            other = self.working.find_table(parse_dataset_name(reference.dataset))
            column, join = quote(reference.column), ""
            if other is not None and other.constraints.key:
                [target] = other.constraints.key
                [condition] = self._conditions([reference.column])
                relation = other.relation([target], [replace(condition, column=target)])
                join = f"ANTI JOIN {relation} AS held ON new.{column} = held.{quote(target)} "
            rows = self._rows(
                f"SELECT new.{column}, min(new.{BY}) FROM {self.effect.added} AS new {join}"
                f"WHERE new.{column} IS NOT NULL GROUP BY 1 ORDER BY 1"
            )
            for value, by in rows:
                row, refers_to = {reference.column: value}, reference.dataset
                yield self._violation(ViolationKind.REFERENCE, row, by, refers_to=refers_to)

    def dangling_references(self) -> Iterator[Violation]:
        """Return references of other tables to removed keys."""
        table = self.table
        referring = self.working.referring(table) if len(table.constraints.key) == 1 else []
        if not referring:
            return
        if not table.is_replaced and not self._rows(f"SELECT 1 FROM {self.effect.removed}"):
            return
        [key] = table.constraints.key
        removed = self._removed_keys(key)
        gone = conditions_of(table.engine, removed, "key")
        for other, reference in referring:
            column = quote(reference.column)
            where: list[Condition] = []
            join = f"ANTI JOIN {self.effect.added} AS kept ON held.{column} = kept.{quote(key)}"
            if not table.is_replaced:
                where = [replace(gone, column=reference.column)]
                join = f"SEMI JOIN {removed} AS removed ON held.{column} = removed.key"
            rows = self._rows(
                f"SELECT DISTINCT held.{column} FROM {other.relation([reference.column], where)} "
                f"AS held {join} WHERE held.{column} IS NOT NULL ORDER BY 1"
            )
            for (value,) in rows:
                row, refers_to = {reference.column: value}, str(table.name)
                yield self._violation(
                    ViolationKind.REFERENCE, row, None, table=other, refers_to=refers_to
                )

    def _removed_keys(self, key: str) -> str:
        """Return a table of the removed keys that no row has any more."""
        name, held = self.table.engine.new_name("removed_keys"), self.table.rows
        if held is None:
            where = [conditions_of(self.table.engine, self.effect.removed, key)]
            held = self.table.relation([key], where)
        self.table.engine.execute(
            f"CREATE TEMP TABLE {name} AS SELECT DISTINCT old.{quote(key)} AS key "
            f"FROM {self.effect.removed} AS old ANTI JOIN {held} AS held "
            f"ON old.{quote(key)} = held.{quote(key)} WHERE old.{quote(key)} IS NOT NULL"
        )
        return name

    def _rows(self, sql: str) -> list[tuple[Any, ...]]:
        return self.table.engine.rows(f"{sql} LIMIT {LIMIT}")

    def _conditions(self, columns: Sequence[str]) -> list[Condition]:
        return [conditions_of(self.table.engine, self.effect.added, c) for c in columns]

    def _writer(self, row: Mapping[str, Any]) -> int | None:
        engine = self.table.engine
        relation = engine.register(pa.table({column: [value] for column, value in row.items()}))
        found = engine.value(
            f"SELECT max({BY}) FROM {self.effect.added} AS new SEMI JOIN {relation} AS one "
            f"ON {equal_sql(list(row), 'new', 'one')}"
        )
        return int(found) if found is not None else None

    def _violation(
        self,
        kind: ViolationKind,
        row: Mapping[str, Any],
        by: int | None,
        *,
        table: WorkingTable | None = None,
        **detail: Any,
    ) -> Violation:
        """Return a violation by these values of a row; `by` is the number of its writer."""
        table = table or self.table
        schema, dataset = table.scan.schema, str(table.name)
        return Violation(
            dataset=dataset,
            kind=kind,
            columns=tuple(row),
            values=tuple(json_value(row[column], schema.field(column).type) for column in row),
            detail={**detail, **(self.place_of(dataset, by) if by is not None else {})},
        )
