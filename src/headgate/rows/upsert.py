"""UPSERT by key: what a row becomes where its key is there; of equal keys the last counts."""

from __future__ import annotations

from sqlglot import exp

from headgate.errors import Invalid
from headgate.rows.engine import columns_sql, conditions_of, equal_sql, quote
from headgate.rows.script import Dialect
from headgate.rows.working_set import BY, Picture, PicturedTable
from headgate.tables.scan import Condition

# The place of a row among its equals: of two with one key the greater counts.
ORDER = "__order"


def upsert(picture: Picture, table: PicturedTable, tree: exp.Expr, reading: exp.Expr) -> None:
    """INSERT OR REPLACE, OR IGNORE, and ON CONFLICT (key) DO NOTHING or DO UPDATE."""
    key = _key_of(table)
    given = [i.name for i in tree.this.expressions] if isinstance(tree.this, exp.Schema) else None
    columns = _columns(table, given)
    source = _evaluate(picture, table, reading, columns)
    newest = _newest(picture, source, key)
    conflict = tree.args.get("conflict")
    ignore = tree.args.get("alternative") and str(tree.args["alternative"]).lower() == "ignore"
    if conflict is not None:
        _check_conflict_key(conflict, key)
    if ignore or (conflict is not None and not conflict.expressions):
        insert_missing(picture, table, newest, columns)
    elif conflict is not None:
        _do_update(picture, table, newest, columns, conflict)
    else:
        merge_rows(picture, table, newest, columns)


def merge_rows(
    picture: Picture, table: PicturedTable, source: str, columns: list[str], *, by: str = "-1"
) -> None:
    """Rows whose key is there take the source's values in these columns; the others are added.

    `source` names rows of which no two have the same key; `by` says in SQL who wrote each.
    """
    key = table.constraints.key
    name = table.bring(key_conditions(picture, table, source))
    others = [column for column in columns if column not in key]
    if others:
        sets = ", ".join(f"{quote(column)} = source.{quote(column)}" for column in others)
        picture.engine.do(
            f"UPDATE {name} AS held SET {sets}, {BY} = {by} FROM {source} AS source "
            f"WHERE {equal_sql(key, 'held', 'source')}"
        )
    insert_missing(picture, table, source, columns, by=by)


def insert_missing(
    picture: Picture, table: PicturedTable, source: str, columns: list[str], *, by: str = "-1"
) -> None:
    """Adds the rows of the source whose key is not there."""
    key = table.constraints.key
    name = table.bring(key_conditions(picture, table, source))
    picture.engine.do(
        f"INSERT INTO {name} ({columns_sql(columns)}, {BY}) "
        f"SELECT {columns_sql(columns, 'source')}, {by} FROM {source} AS source "
        f"ANTI JOIN {name} AS held ON {equal_sql(key, 'held', 'source')}"
    )


def newest_by_key(picture: Picture, source: str, key: tuple[str, ...]) -> str:
    """Of rows with a column of their order, for each key the last; a missing key is kept apart."""
    name = picture.engine.new_name("s")
    known = " AND ".join(f"{quote(column)} IS NOT NULL" for column in key)
    picture.engine.do(
        f"CREATE TEMP TABLE {name} AS SELECT * FROM {source} QUALIFY NOT ({known}) OR "
        f"row_number() OVER (PARTITION BY {columns_sql(key)} ORDER BY {ORDER} DESC) = 1"
    )
    return name


def key_conditions(picture: Picture, table: PicturedTable, source: str) -> list[Condition]:
    """What the keys of a source say of the rows they may meet."""
    return [conditions_of(picture.engine, source, c) for c in table.constraints.key]


def _evaluate(picture: Picture, table: PicturedTable, reading: exp.Expr, columns: list[str]) -> str:
    """The source's rows in order, in the table's types and with its defaults."""
    name = picture.engine.new_name("s")
    picture.engine.do(
        f"CREATE TEMP TABLE {name} AS SELECT {columns_sql(columns)} FROM {table.begin()} LIMIT 0"
    )
    order = picture.engine.new_name("q")
    picture.engine.do(f"CREATE TEMP SEQUENCE {order}")
    picture.engine.do(f"ALTER TABLE {name} ADD COLUMN {ORDER} BIGINT DEFAULT nextval('{order}')")
    insert = exp.Insert(
        this=exp.Schema(
            this=exp.to_table(name),
            expressions=[exp.to_identifier(column, quoted=True) for column in columns],
        ),
        expression=reading.expression,
    )
    if reading.args.get("with_"):
        insert.set("with_", reading.args["with_"])
    picture.engine.do(insert.sql(dialect=Dialect))
    return name


def _newest(picture: Picture, source: str, key: tuple[str, ...]) -> str:
    return newest_by_key(picture, source, key)


def _do_update(
    picture: Picture,
    table: PicturedTable,
    source: str,
    columns: list[str],
    conflict: exp.Expr,
) -> None:
    key = table.constraints.key
    name = table.bring(key_conditions(picture, table, source))
    added = picture.engine.new_name("s")
    picture.engine.do(
        f"CREATE TEMP TABLE {added} AS SELECT excluded.* FROM {source} AS excluded "
        f"ANTI JOIN {name} AS held ON {equal_sql(key, 'held', 'excluded')}"
    )
    sets = ", ".join(_assignment(item) for item in conflict.expressions)
    where = conflict.args.get("where")
    more = f" AND ({where.this.sql(dialect=Dialect)})" if where else ""
    alias = quote(table.name.name)
    picture.engine.do(
        f"UPDATE {name} AS {alias} SET {sets}, {BY} = -1 FROM {source} AS excluded "
        f"WHERE {equal_sql(key, alias, 'excluded')}{more}"
    )
    picture.engine.do(
        f"INSERT INTO {name} ({columns_sql(columns)}) SELECT {columns_sql(columns)} FROM {added}"
    )


def _assignment(item: exp.Expr) -> str:
    assert isinstance(item, exp.EQ), "the parser takes nothing else after SET"
    return f"{quote(item.left.name)} = {item.right.sql(dialect=Dialect)}"


def _columns(table: PicturedTable, given: list[str] | None) -> list[str]:
    if given is None:
        return list(table.columns)
    known = {column.lower(): column for column in table.columns}
    unknown = [name for name in given if name.lower() not in known]
    if unknown:
        raise Invalid(
            f"{table.name} has no column {unknown[0]!r}; it has {', '.join(table.columns)}.",
            dataset=str(table.name),
            column=unknown[0],
        )
    return [known[name.lower()] for name in given]


def _key_of(table: PicturedTable) -> tuple[str, ...]:
    key = table.constraints.key
    if not key:
        raise Invalid(
            f"{table.name} has no key, by which UPSERT could find a row. Give it one with "
            "`headgate schema apply`.",
            dataset=str(table.name),
        )
    return key


def _check_conflict_key(conflict: exp.Expr, key: tuple[str, ...]) -> None:
    named = [item.name.lower() for item in conflict.args.get("conflict_keys") or []]
    if named and sorted(named) != sorted(column.lower() for column in key):
        raise Invalid(
            f"ON CONFLICT ({', '.join(named)}): the key is ({', '.join(key)}), and rows are found "
            "by the whole of it.",
            key=list(key),
        )
