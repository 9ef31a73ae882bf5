"""The three-way merge of one keyed table inside a picture, row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headgate.mutations.engine import columns_sql, equal_sql, quote, same_sql
from headgate.mutations.looking import conditions_of
from headgate.mutations.picture import Picture
from headgate.mutations.pictured import PicturedTable
from headgate.mutations.upserting import merge_rows
from headgate.tables.arrow import DataFile
from headgate.tables.scanning import TableScan
from headgate.tables.values import plain_rows

_LISTED = 1_000


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Files that only one of two versions has: all that differs between them is in these."""

    before: TableScan
    after: TableScan
    gone: Sequence[DataFile]
    come: Sequence[DataFile]

    @property
    def only_adds(self) -> bool:
        return not self.gone and not any(file.deletes for file in self.come)


def differing_files(before: TableScan, after: TableScan) -> Difference:
    """Files never change, so equal ones hold equal rows and need no look."""
    olds = {file.identity: file for file in before.plan()}
    news = {file.identity: file for file in after.plan()}
    return Difference(
        before=before,
        after=after,
        gone=[file for identity, file in olds.items() if identity not in news],
        come=[file for identity, file in news.items() if identity not in olds],
    )


def merge_keyed(
    picture: Picture, table: PicturedTable, difference: Difference
) -> list[dict[str, Any]]:
    """Applies the source's changes where the target has none; gives the conflicts."""
    key = list(table.constraints.key)
    columns = [c for c in table.columns if c in difference.after.schema.names]
    compared = [c for c in columns if c in difference.before.schema.names]
    changes = _changes(picture, difference, key, columns, compared)
    where = [conditions_of(picture.engine, changes, column) for column in key]
    held = table.bring(where)
    judged = _judged(picture, changes, held, key, columns, compared)
    engine = picture.engine
    taken, dropped = engine.new_name("taken"), engine.new_name("dropped")
    renamed = ", ".join(f"{quote('s.' + c)} AS {quote(c)}" for c in columns)
    engine.do(
        f"CREATE TEMP TABLE {taken} AS SELECT {renamed} FROM {judged} "
        "WHERE verdict = 'take' AND in_source"
    )
    engine.do(
        f"CREATE TEMP TABLE {dropped} AS SELECT {columns_sql(key)} FROM {judged} "
        "WHERE verdict = 'take' AND NOT in_source"
    )
    merge_rows(picture, table, taken, columns)
    engine.do(
        f"DELETE FROM {held} AS held USING {dropped} AS dropped "
        f"WHERE {equal_sql(key, 'held', 'dropped')}"
    )
    return _conflicts(picture, table, judged, key, columns, compared)


def read_added(picture: Picture, difference: Difference, columns: Sequence[str]) -> str:
    """A relation of the rows in the files that came."""
    return _rows(picture, difference.after, difference.come, columns)


def _rows(
    picture: Picture, scan: TableScan, files: Sequence[DataFile], columns: Sequence[str]
) -> str:
    empty = scan.schema.empty_table().select(list(columns))
    parts = [scan.read(file).select(list(columns)) for file in files]
    return picture.engine.register(pa.concat_tables([empty, *parts]))


def _changes(
    picture: Picture,
    difference: Difference,
    key: Sequence[str],
    columns: Sequence[str],
    compared: Sequence[str],
) -> str:
    """One row for each key that differs: what it was, and what the source made of it."""
    engine = picture.engine
    old = _rows(picture, difference.before, difference.gone, compared)
    new = _rows(picture, difference.after, difference.come, columns)
    name = engine.new_name("changes")
    olds = ", ".join(f"o.{quote(c)} AS {quote('b.' + c)}" for c in compared)
    news = ", ".join(f"n.{quote(c)} AS {quote('s.' + c)}" for c in columns)
    keys = ", ".join(f"coalesce(n.{quote(c)}, o.{quote(c)}) AS {quote(c)}" for c in key)
    fresh = [c for c in columns if c not in compared]
    # A column that the source added has no old value to differ from.
    given = "".join(f" OR n.{quote(c)} IS NOT NULL" for c in fresh)
    engine.do(
        f"CREATE TEMP TABLE {name} AS SELECT {keys}, o.{quote(key[0])} IS NOT NULL AS in_base, "
        f"n.{quote(key[0])} IS NOT NULL AS in_source, {olds}, {news} "
        f"FROM {old} AS o FULL JOIN {new} AS n ON {equal_sql(key, 'o', 'n')} "
        f"WHERE NOT ({same_sql(compared, 'o', 'n')}){given}"
    )
    return name


def _judged(
    picture: Picture,
    changes: str,
    held: str,
    key: Sequence[str],
    columns: Sequence[str],
    compared: Sequence[str],
) -> str:
    """Beside each change what the target has, and what follows: nothing, take, or a conflict."""
    engine = picture.engine
    name = engine.new_name("judged")

    def agrees(side: str, names: Sequence[str]) -> str:
        return " AND ".join(
            f"t.{quote(c)} IS NOT DISTINCT FROM c.{quote(side + '.' + c)}" for c in names
        )

    there = f"t.{quote(key[0])} IS NOT NULL"
    ours = ", ".join(f"t.{quote(c)} AS {quote('t.' + c)}" for c in columns)
    engine.do(
        f"CREATE TEMP TABLE {name} AS SELECT c.*, {there} AS in_target, {ours}, CASE "
        f"WHEN NOT c.in_source AND NOT ({there}) THEN 'same' "
        f"WHEN c.in_source AND {there} AND {agrees('s', columns)} THEN 'same' "
        f"WHEN NOT c.in_base AND NOT ({there}) THEN 'take' "
        f"WHEN c.in_base AND {there} AND {agrees('b', compared)} THEN 'take' "
        "WHEN NOT c.in_base THEN 'insert_insert' "
        f"WHEN NOT c.in_source OR NOT ({there}) THEN 'delete_update' "
        "ELSE 'update_update' END AS verdict "
        f"FROM {changes} AS c LEFT JOIN {held} AS t ON {equal_sql(key, 'c', 't')}"
    )
    return name


def _conflicts(
    picture: Picture,
    table: PicturedTable,
    judged: str,
    key: Sequence[str],
    columns: Sequence[str],
    compared: Sequence[str],
) -> list[dict[str, Any]]:
    rows = plain_rows(
        picture.engine.arrow(
            f"SELECT * FROM {judged} WHERE verdict NOT IN ('same', 'take') "
            f"ORDER BY {columns_sql(key)} LIMIT {_LISTED}"
        )
    )
    return [_conflict(table, row, key, columns, compared) for row in rows]


_SENTENCES = {
    "insert_insert": "both sides added it, with different values",
    "update_update": "both sides changed it, differently",
    "delete_update": "one side deleted it, the other changed it",
}


def _conflict(
    table: PicturedTable,
    row: Mapping[str, Any],
    key: Sequence[str],
    columns: Sequence[str],
    compared: Sequence[str],
) -> dict[str, Any]:
    def side(flag: str, letter: str, names: Sequence[str]) -> dict[str, Any] | None:
        return {c: row[f"{letter}.{c}"] for c in names} if row[flag] else None

    named = {column: row[column] for column in key}
    shown = ", ".join(f"{column} = {value!r}" for column, value in named.items())
    return {
        "dataset": str(table.name),
        "kind": row["verdict"],
        "key": named,
        "base": side("in_base", "b", compared),
        "source": side("in_source", "s", columns),
        "target": side("in_target", "t", columns),
        "reason": f"{table.name}: {shown}: {_SENTENCES[row['verdict']]}",
    }
