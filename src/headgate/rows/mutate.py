"""`mutate`: a script of SQL statements over many tables of a branch, one publication."""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from headgate.errors import InvalidScript
from headgate.model.constraints import OnDelete
from headgate.rows.engine import EngineRefused, columns_sql, quote
from headgate.rows.outcome import Outcome, Parts, Request
from headgate.rows.script import Action, Dialect, Statement, conditions_on, parse_script
from headgate.rows.upsert import upsert
from headgate.rows.working_set import BY, Picture, PicturedTable
from headgate.rows.write import Work, perform
from headgate.tables.scan import Among, Condition

# Carrying out one statement over the picture, which every later one then sees.

_ADDING = {Action.INSERT, Action.UPSERT, Action.MERGE}
# Tables that the engine holds rows in on their way; nobody knows them by name.
_ASIDE = re.compile(r' on "__s\d+"')
_QUOTED = re.compile(r'"([^"]+)"')


def carry_out(picture: Picture, statement: Statement, number: int) -> None:
    """Changes the picture by one statement, cascades included, or says where it is wrong."""
    line, column = statement.place_of(statement.target_node)
    table = picture.table(statement.target, line=line, column=column)
    try:
        match statement.action:
            case Action.INSERT:
                _insert(picture, statement, table)
            case Action.UPSERT:
                upsert(picture, table, statement.tree, reading(picture, statement))
            case Action.UPDATE:
                _update(picture, statement, table, number)
            case Action.DELETE:
                _delete(picture, statement, table)
            case Action.MERGE:
                _merge(picture, statement, table, number)
    except EngineRefused as refused:
        raise _to_error(picture, statement, refused) from refused
    if statement.action in _ADDING:
        picture.engine.do(f"UPDATE {table.begin()} SET {BY} = {number} WHERE {BY} < 0")


def reading(picture: Picture, statement: Statement) -> exp.Expr:
    """The statement with every table but its target's replaced by a relation of the picture."""
    tree = statement.tree.copy()
    words = {node.name.lower() for node in tree.find_all(exp.Column)}
    words |= {node.name.lower() for node in tree.find_all(exp.Identifier)}
    takes_all = tree.find(exp.Star) is not None
    mentions = [node for node, _ in statement.tables]
    copies = _same_places(statement.tree, tree, mentions)
    for node, copy in zip(mentions, copies, strict=True):
        line, column = statement.place_of(node)
        other = picture.table(statement.name_of(node), line=line, column=column)
        columns = [c for c in other.columns if takes_all or c.lower() in words]
        where = _conditions(node, other)
        relation = other.relation(columns or other.columns[:1], where)
        alias = node.alias or node.name
        copy.replace(_aliased(relation, alias))
    for named in tree.find_all(exp.Column):
        named.set("db", None)
        named.set("catalog", None)
    return tree


def _same_places(tree: exp.Expr, copy: exp.Expr, wanted: list[exp.Table]) -> list[exp.Table]:
    """The copies of some nodes of a tree, found by their order."""
    pairs = zip(tree.find_all(exp.Table), list(copy.find_all(exp.Table)), strict=True)
    by_id = {id(one): other for one, other in pairs}
    return [by_id[id(node)] for node in wanted]


def _conditions(node: exp.Table, table: PicturedTable) -> list[Condition]:
    """What the SELECT around a table demands of it; an outer join demands nothing."""
    scope = node.find_ancestor(exp.Select)
    if scope is None or any(join.side for join in scope.args.get("joins") or []):
        return []
    alone = not scope.args.get("joins") and len(list(scope.find_all(exp.Table))) == 1
    alias = node.alias or node.name
    return conditions_on(scope.args.get("where"), alias, table.types, alone=alone)


def _aliased(name: str, alias: str) -> exp.Table:
    return exp.Table(
        this=exp.to_identifier(name, quoted=True),
        alias=exp.TableAlias(this=exp.to_identifier(alias, quoted=True)),
    )


def _target_conditions(statement: Statement, table: PicturedTable) -> list[Condition]:
    where = statement.tree.args.get("where")
    node = statement.target_node
    alone = len(list(statement.tree.find_all(exp.Table))) == 1
    return conditions_on(where, node.alias or node.name, table.types, alone=alone)


def _aim(tree: exp.Expr, statement: Statement, name: str) -> None:
    """Points the statement at the table of rows that it changes, by the alias people wrote."""
    node = statement.target_node
    target = tree.this.this if isinstance(tree.this, exp.Schema) else tree.this
    target.replace(_aliased(name, node.alias or node.name))


def _insert(picture: Picture, statement: Statement, table: PicturedTable) -> None:
    tree = reading(picture, statement)
    name = table.begin()
    if not isinstance(tree.this, exp.Schema) and not tree.args.get("by_name"):
        # The table's own columns, not those that the picture adds.
        columns = [exp.to_identifier(column, quoted=True) for column in table.columns]
        tree.set("this", exp.Schema(this=exp.to_table(name), expressions=columns))
    elif isinstance(tree.this, exp.Schema):
        _check_columns(statement, table, [i.name for i in tree.this.expressions])
        tree.this.set("this", exp.to_table(name))
    else:
        tree.set("this", exp.to_table(name))
    picture.engine.do(tree.sql(dialect=Dialect))


def _check_columns(statement: Statement, table: PicturedTable, names: list[str]) -> None:
    known = {column.lower() for column in table.columns}
    for name in names:
        if name.lower() not in known:
            line, column = statement.place_of_word(name)
            raise InvalidScript(
                line=line,
                column=column,
                reason=f"{table.name} has no column {name!r}; it has {', '.join(table.columns)}",
            )


def _update(picture: Picture, statement: Statement, table: PicturedTable, number: int) -> None:
    assigned = [e.left.name for e in statement.tree.expressions if isinstance(e, exp.EQ)]
    _check_columns(statement, table, assigned)
    tree = reading(picture, statement)
    name = table.bring(_target_conditions(statement, table))
    _aim(tree, statement, name)
    for expression in tree.expressions:
        # An assigned column takes no qualifier.
        if isinstance(expression, exp.EQ) and isinstance(expression.left, exp.Column):
            expression.left.set("table", None)
    tree.append("expressions", _written_by(number))
    picture.engine.do(tree.sql(dialect=Dialect))


def _written_by(number: int) -> exp.EQ:
    return exp.EQ(this=exp.column(BY), expression=exp.Literal.number(number))


def _delete(picture: Picture, statement: Statement, table: PicturedTable) -> None:
    tree = reading(picture, statement)
    name = table.bring(_target_conditions(statement, table))
    _aim(tree, statement, name)
    _delete_with_cascade(picture, table, tree.sql(dialect=Dialect))


def _delete_with_cascade(picture: Picture, table: PicturedTable, sql: str) -> None:
    """Deletes, then what refers to the deleted by cascade, and so on."""
    _cascade(picture, table, _deleted(picture, table, sql))


def _deleted(picture: Picture, table: PicturedTable, sql: str) -> pa.Table | None:
    """Deletes; the keys of what went, if others refer to them by cascade."""
    if not _cascading(picture, table):
        picture.engine.do(sql)
        return None
    key = columns_sql(table.constraints.key)
    return picture.engine.arrow(f"{sql} RETURNING {key}").rename_columns(["key"])


def _cascade(picture: Picture, table: PicturedTable, deleted: pa.Table | None) -> None:
    """Deletes what refers by cascade to these keys, level by level: a tree may be deep."""
    pending = [(table, deleted)]
    while pending:
        parent, keys = pending.pop()
        if keys is None or not keys.num_rows:
            continue
        gone = picture.engine.register(keys)
        values = frozenset(pc.unique(keys.column("key")).to_pylist())
        for other, column in _cascading(picture, parent):
            name = other.bring([Among(column=column, values=values)])
            sql = (
                f"DELETE FROM {name} AS child USING {gone} AS gone "
                f"WHERE child.{quote(column)} = gone.key"
            )
            pending.append((other, _deleted(picture, other, sql)))


def _cascading(picture: Picture, table: PicturedTable) -> list[tuple[PicturedTable, str]]:
    if len(table.constraints.key) != 1:
        return []
    return [
        (other, column)
        for other, column in picture.referring(table)
        if _cascades(other, column, table)
    ]


def _cascades(other: PicturedTable, column: str, table: PicturedTable) -> bool:
    return any(
        reference.column == column
        and reference.dataset == str(table.name)
        and reference.on_delete is OnDelete.CASCADE
        for reference in other.constraints.references
    )


def _merge(picture: Picture, statement: Statement, table: PicturedTable, number: int) -> None:
    tree = reading(picture, statement)
    name = table.bring()
    _aim(tree, statement, name)
    for branch in tree.args["whens"].expressions:
        _spell_out(branch.args["then"], table, tree.args["using"].alias_or_name, number)
    sql = tree.sql(dialect=Dialect)
    if not _cascading(picture, table):
        picture.engine.do(sql)
        return
    key = columns_sql(table.constraints.key)
    done = picture.engine.arrow(f"{sql} RETURNING merge_action, {key}")
    deleted = done.filter(pc.equal(done.column(0), "DELETE")).select([1])
    _cascade(picture, table, deleted.rename_columns(["key"]))


def _spell_out(then: exp.Expr, table: PicturedTable, source: str, number: int) -> None:
    """Names the columns that `*` or nothing stands for: the table's own, by name."""
    names = [exp.column(column, quoted=True) for column in table.columns]
    values = [exp.column(column, table=source, quoted=True) for column in table.columns]
    if isinstance(then, exp.Update):
        if any(isinstance(one, exp.Star) for one in then.expressions):
            pairs = zip(names, values, strict=True)
            then.set("expressions", [exp.EQ(this=n, expression=v) for n, v in pairs])
        then.append("expressions", _written_by(number))
    elif isinstance(then, exp.Insert):
        if isinstance(then.this, exp.Star):
            then.set("expression", exp.Tuple(expressions=values))
        if not isinstance(then.this, exp.Tuple):
            then.set("this", exp.Tuple(expressions=names))


def _to_error(picture: Picture, statement: Statement, refused: EngineRefused) -> InvalidScript:
    """The engine's message without its own names and places, at the place in the script."""
    text = str(refused).split("\n\nLINE", 1)[0].strip()
    kind, _, said = text.partition(": ")
    reason = (said if kind.endswith("Error") else text).replace("\n", "; ")
    for table in picture.written:
        reason = reason.replace(f'"{table.rows}"', str(table.name))
    reason = _ASIDE.sub("", reason)
    quoted = _QUOTED.search(reason)
    line, column = (
        statement.place_of_word(quoted.group(1)) if quoted else (statement.line, statement.column)
    )
    return InvalidScript(line=line, column=column, reason=reason)


_GUARDING = {Action.UPDATE, Action.DELETE, Action.MERGE}


def mutate(parts: Parts, request: Request, sql: str) -> Outcome:
    """Every statement sees those before it; readers see all of them at once, or none."""
    statements = parse_script(sql)

    def change(picture: Picture) -> None:
        picture.ground.look(name for s in statements for _, name in s.tables)
        for number, statement in enumerate(statements, start=1):
            carry_out(picture, statement, number)

    return perform(
        parts,
        request,
        Work(
            verb="mutate",
            targets=[statement.target for statement in statements],
            change=change,
            guards_rows=any(statement.action in _GUARDING for statement in statements),
            place=lambda _, n: {"line": statements[n - 1].line} if n > 0 else {},
        ),
    )
