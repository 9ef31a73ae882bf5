"""`mutate`: a script of SQL statements over many tables of a branch, in one publication."""

import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from headgate.errors import Invalid, InvalidScript
from headgate.model.constraints import OnDelete
from headgate.model.names import column_hint
from headgate.rows.engine import EngineError, columns_sql, equal_sql, quote
from headgate.rows.outcome import Outcome, Parts, Request
from headgate.rows.script import Action, Dialect, Statement, conditions_on, parse_script
from headgate.rows.working_set import BY, ORDER, WorkingSet, WorkingTable
from headgate.rows.write import TableWrite, write_tables
from headgate.tables.scan import Among, Condition

_REMOVING = {Action.UPDATE, Action.DELETE, Action.MERGE}
_INSERTING = {Action.INSERT, Action.UPSERT, Action.MERGE}
# Internal tables of the engine, whose names mean nothing to the caller.
_INTERNAL_TABLE = re.compile(r' on "__s\d+"')
_QUOTED = re.compile(r'"([^"]+)"')


def mutate(parts: Parts, request: Request, sql: str) -> Outcome:
    """Execute the statements in order; each sees those before it, and readers see all or none."""
    return write_tables(parts, request, script_write(parse_script(sql)))


def script_write(statements: Sequence[Statement]) -> TableWrite:
    """Return the change that a script makes."""

    def change(working: WorkingSet) -> None:
        working.branch_tables.prefetch(name for s in statements for _, name in s.tables)
        for number, statement in enumerate(statements, start=1):
            _execute(working, statement, number)

    return TableWrite(
        verb="mutate",
        targets=[statement.target for statement in statements],
        change=change,
        guards_rows=any(statement.action in _REMOVING for statement in statements),
        place_of=lambda _, n: {"line": statements[n - 1].line} if n > 0 else {},
    )


def _execute(working: WorkingSet, statement: Statement, number: int) -> None:
    """Change the working set by one statement, cascades included."""
    line, column = statement.place_of(statement.target_node)
    table = working.table(statement.target, line=line, column=column)
    try:
        match statement.action:
            case Action.INSERT:
                _insert(working, statement, table)
            case Action.UPSERT:
                _upsert(working, statement, table)
            case Action.UPDATE:
                _update(working, statement, table, number)
            case Action.DELETE:
                _delete(working, statement, table)
            case Action.MERGE:
                _merge(working, statement, table, number)
    except EngineError as error:
        raise _to_error(working, statement, error) from error
    except RecursionError as error:
        raise statement.too_deep() from error
    if statement.action in _INSERTING:
        working.engine.execute(f"UPDATE {table.begin()} SET {BY} = {number} WHERE {BY} < 0")


def _bound(working: WorkingSet, statement: Statement) -> exp.Expr:
    """Return the statement with every table but its target replaced by a relation."""
    tree = statement.tree.copy()
    words = {node.name.lower() for node in tree.find_all(exp.Column)}
    words |= {node.name.lower() for node in tree.find_all(exp.Identifier)}
    has_star = tree.find(exp.Star) is not None
    # The copies of the tree's nodes, found by their order.
    pairs = zip(statement.tree.find_all(exp.Table), list(tree.find_all(exp.Table)), strict=True)
    copies = {id(node): copy for node, copy in pairs}
    for node, _ in statement.tables:
        line, column = statement.place_of(node)
        other = working.table(statement.name_of(node), line=line, column=column)
        columns = [c for c in other.columns if has_star or c.lower() in words]
        where = _conditions(node, other)
        relation = other.relation(columns or other.columns[:1], where)
        alias = node.alias or node.name
        copies[id(node)].replace(_aliased(relation, alias))
    for named in tree.find_all(exp.Column):
        named.set("db", None)
        named.set("catalog", None)
    return tree


def _conditions(node: exp.Table, table: WorkingTable) -> list[Condition]:
    """Return the conditions of the SELECT around a table; an outer join has none."""
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


def _target_conditions(statement: Statement, table: WorkingTable) -> list[Condition]:
    where = statement.tree.args.get("where")
    node = statement.target_node
    alone = len(list(statement.tree.find_all(exp.Table))) == 1
    return conditions_on(where, node.alias or node.name, table.types, alone=alone)


def _set_target(tree: exp.Expr, statement: Statement, name: str) -> None:
    """Set the table of rows as the statement's target, under the alias in the script."""
    node = statement.target_node
    target = tree.this.this if isinstance(tree.this, exp.Schema) else tree.this
    target.replace(_aliased(name, node.alias or node.name))


def _insert(working: WorkingSet, statement: Statement, table: WorkingTable) -> None:
    tree = _bound(working, statement)
    target: exp.Expr = exp.to_table(table.begin())
    if isinstance(tree.this, exp.Schema):
        _check_columns(statement, table, [i.name for i in tree.this.expressions])
        target = exp.Schema(this=target, expressions=tree.this.expressions)
    elif not tree.args.get("by_name"):
        # The table's own columns, without those that the working set adds.
        columns = [exp.to_identifier(column, quoted=True) for column in table.columns]
        target = exp.Schema(this=target, expressions=columns)
    tree.set("this", target)
    working.engine.execute(tree.sql(dialect=Dialect))


def _check_columns(statement: Statement, table: WorkingTable, names: list[str]) -> None:
    known = {column.lower() for column in table.columns}
    for name in names:
        if name.lower() not in known:
            line, column = statement.place_of_word(name)
            raise InvalidScript(line=line, column=column, reason=_no_column(table, name))


def _no_column(table: WorkingTable, name: str) -> str:
    return f"{table.name} has no column {name!r}; {column_hint(name, table.columns)}"


def _update(working: WorkingSet, statement: Statement, table: WorkingTable, number: int) -> None:
    assigned = [e.left.name for e in statement.tree.expressions if isinstance(e, exp.EQ)]
    _check_columns(statement, table, assigned)
    tree = _bound(working, statement)
    name = table.bring(_target_conditions(statement, table))
    _set_target(tree, statement, name)
    for expression in tree.expressions:
        # An assigned column takes no qualifier.
        if isinstance(expression, exp.EQ) and isinstance(expression.left, exp.Column):
            expression.left.set("table", None)
    tree.append("expressions", _set_writer(number))
    working.engine.execute(tree.sql(dialect=Dialect))


def _set_writer(number: int) -> exp.EQ:
    return exp.EQ(this=exp.column(BY), expression=exp.Literal.number(number))


def _delete(working: WorkingSet, statement: Statement, table: WorkingTable) -> None:
    tree = _bound(working, statement)
    name = table.bring(_target_conditions(statement, table))
    _set_target(tree, statement, name)
    _cascade(working, table, _delete_rows(working, table, tree.sql(dialect=Dialect)))


def _delete_rows(working: WorkingSet, table: WorkingTable, sql: str) -> pa.Table | None:
    """Delete; return the deleted keys if other tables refer to them by cascade."""
    if not _cascading(working, table):
        working.engine.execute(sql)
        return None
    key = columns_sql(table.constraints.key)
    return working.engine.arrow(f"{sql} RETURNING {key}").rename_columns(["key"])


def _cascade(working: WorkingSet, table: WorkingTable, deleted: pa.Table | None) -> None:
    """Delete rows that refer to these keys by cascade, level by level: a tree may be deep."""
    pending = [(table, deleted)]
    while pending:
        parent, keys = pending.pop()
        if keys is None or not keys.num_rows:
            continue
        deleted_keys = working.engine.register(keys)
        values = frozenset(pc.unique(keys.column("key")).to_pylist())
        for other, column in _cascading(working, parent):
            name = other.bring([Among(column=column, values=values)])
            sql = (
                f"DELETE FROM {name} AS child USING {deleted_keys} AS parent "
                f"WHERE child.{quote(column)} = parent.key"
            )
            pending.append((other, _delete_rows(working, other, sql)))


def _cascading(working: WorkingSet, table: WorkingTable) -> list[tuple[WorkingTable, str]]:
    """Return the tables, each with its column, that refer to this one with ON DELETE CASCADE."""
    if len(table.constraints.key) != 1:
        return []
    return [
        (other, reference.column)
        for other, reference in working.referring(table)
        if reference.on_delete is OnDelete.CASCADE
    ]


def _merge(working: WorkingSet, statement: Statement, table: WorkingTable, number: int) -> None:
    tree = _bound(working, statement)
    name = table.bring()
    _set_target(tree, statement, name)
    for branch in tree.args["whens"].expressions:
        _expand_star(branch.args["then"], table, tree.args["using"].alias_or_name, number)
    sql = tree.sql(dialect=Dialect)
    if not _cascading(working, table):
        working.engine.execute(sql)
        return
    key = columns_sql(table.constraints.key)
    done = working.engine.arrow(f"{sql} RETURNING merge_action, {key}")
    deleted = done.filter(pc.equal(done.column(0), "DELETE")).select([1])
    _cascade(working, table, deleted.rename_columns(["key"]))


def _expand_star(then: exp.Expr, table: WorkingTable, source: str, number: int) -> None:
    """Replace `*`, or a missing column list, by the table's own columns."""
    names = [exp.column(column, quoted=True) for column in table.columns]
    values = [exp.column(column, table=source, quoted=True) for column in table.columns]
    if isinstance(then, exp.Update):
        if any(isinstance(one, exp.Star) for one in then.expressions):
            pairs = zip(names, values, strict=True)
            then.set("expressions", [exp.EQ(this=n, expression=v) for n, v in pairs])
        then.append("expressions", _set_writer(number))
    elif isinstance(then, exp.Insert):
        if isinstance(then.this, exp.Star):
            then.set("expression", exp.Tuple(expressions=values))
        if not isinstance(then.this, exp.Tuple):
            then.set("this", exp.Tuple(expressions=names))


def _to_error(working: WorkingSet, statement: Statement, error: EngineError) -> InvalidScript:
    """Return the engine's message without internal names, at its place in the script."""
    text = str(error).split("\n\nLINE", 1)[0].strip()
    kind, _, message = text.partition(": ")
    reason = (message if kind.endswith("Error") else text).replace("\n", "; ")
    for table in working.written:
        reason = reason.replace(f'"{table.rows}"', str(table.name))
    reason = _INTERNAL_TABLE.sub("", reason)
    quoted = _QUOTED.search(reason)
    line, column = (
        statement.place_of_word(quoted.group(1)) if quoted else (statement.line, statement.column)
    )
    return InvalidScript(line=line, column=column, reason=reason)


# UPSERT: INSERT OR REPLACE, OR IGNORE, and ON CONFLICT (key) DO NOTHING or DO UPDATE.


def _upsert(working: WorkingSet, statement: Statement, table: WorkingTable) -> None:
    tree = statement.tree
    conflict = tree.args.get("conflict")
    _check_key(table, conflict)
    columns = _columns(table, tree)
    source = _evaluate(table, _bound(working, statement), columns)
    newest = table.newest_by_key(source)
    ignore = tree.args.get("alternative") and str(tree.args["alternative"]).lower() == "ignore"
    if ignore or (conflict is not None and not conflict.expressions):
        table.insert_missing(newest, columns)
    elif conflict is not None:
        _do_update(table, newest, columns, conflict)
    else:
        table.merge(newest, columns)


def _evaluate(table: WorkingTable, tree: exp.Expr, columns: list[str]) -> str:
    """Return the source's rows in order, in the table's types and with its defaults."""
    engine = table.engine
    name = engine.new_name("s")
    engine.execute(
        f"CREATE TEMP TABLE {name} AS SELECT {columns_sql(columns)} FROM {table.begin()} LIMIT 0"
    )
    order = engine.new_name("q")
    engine.execute(f"CREATE TEMP SEQUENCE {order}")
    engine.execute(f"ALTER TABLE {name} ADD COLUMN {ORDER} BIGINT DEFAULT nextval('{order}')")
    insert = exp.Insert(
        this=exp.Schema(
            this=exp.to_table(name),
            expressions=[exp.to_identifier(column, quoted=True) for column in columns],
        ),
        expression=tree.expression,
    )
    if tree.args.get("with_"):
        insert.set("with_", tree.args["with_"])
    engine.execute(insert.sql(dialect=Dialect))
    return name


def _do_update(table: WorkingTable, source: str, columns: list[str], conflict: exp.Expr) -> None:
    engine, key = table.engine, table.constraints.key
    name = table.bring(table.key_conditions(source))
    # Found before the update, which may change keys.
    added = engine.new_name("s")
    engine.execute(
        f"CREATE TEMP TABLE {added} AS SELECT excluded.* FROM {source} AS excluded "
        f"ANTI JOIN {name} AS held ON {equal_sql(key, 'held', 'excluded')}"
    )
    sets = ", ".join(_assignment(item) for item in conflict.expressions)
    where = conflict.args.get("where")
    more = f" AND ({where.this.sql(dialect=Dialect)})" if where else ""
    alias = quote(table.name.name)
    engine.execute(
        f"UPDATE {name} AS {alias} SET {sets}, {BY} = -1 FROM {source} AS excluded "
        f"WHERE {equal_sql(key, alias, 'excluded')}{more}"
    )
    engine.execute(
        f"INSERT INTO {name} ({columns_sql(columns)}) SELECT {columns_sql(columns)} FROM {added}"
    )


def _assignment(item: exp.Expr) -> str:
    if not isinstance(item, exp.EQ):
        raise EngineError("DO UPDATE SET takes column = value")
    return f"{quote(item.left.name)} = {item.right.sql(dialect=Dialect)}"


def _columns(table: WorkingTable, tree: exp.Expr) -> list[str]:
    """Return the table's names of the columns that the statement lists, or all."""
    if not isinstance(tree.this, exp.Schema):
        return list(table.columns)
    known = {column.lower(): column for column in table.columns}
    given = [item.name for item in tree.this.expressions]
    unknown = [name for name in given if name.lower() not in known]
    if unknown:
        raise Invalid(
            f"{_no_column(table, unknown[0])}.", dataset=str(table.name), column=unknown[0]
        )
    return [known[name.lower()] for name in given]


def _check_key(table: WorkingTable, conflict: exp.Expr | None) -> None:
    key = table.constraints.key
    if not key:
        raise Invalid(
            f"{table.name} has no key, and UPSERT finds rows by key. Add a key with "
            "`headgate schema apply`.",
            dataset=str(table.name),
        )
    listed = conflict.args.get("conflict_keys") if conflict is not None else None
    named = [item.name.lower() for item in listed or []]
    if named and sorted(named) != sorted(column.lower() for column in key):
        raise Invalid(
            f"ON CONFLICT ({', '.join(named)}) does not name the key of {table.name}, which is "
            f"({', '.join(key)}). Name all of its columns, or none.",
            key=list(key),
        )
