"""Row security: what a limited token reads of the catalog, in every query.

A statement of a limited reader gets one common table expression for each table that it names. The
expression has the name of the table and only the rows that the policy shows, so that the statement
needs no change: joins, counts and searches see these rows alone.
"""

import re
from collections.abc import Mapping
from functools import lru_cache

from sqlalchemy import Connection, Engine, event

from headgate.catalog.records import policy_of
from headgate.catalog.schema import metadata
from headgate.model.access import ReadPolicy

# Rows of each table that a policy shows. `{branch:column}` and `{dataset:expression}` become tests
# of a name by the patterns (a dot inside a part is written as a backtick, so that it separates
# nothing); an unqualified name of a table here has only the shown rows.
_ROWS = {
    "datasets": "{dataset:replace(replace(namespace, '.', '`'), {separator}, '.') || '.'"
    " || replace(name, '.', '`')} AND ("
    "EXISTS (SELECT 1 FROM {real}branches b WHERE b.dataset_id = t.id AND {branch:b.name})"
    " OR NOT EXISTS (SELECT 1 FROM {real}branches b WHERE b.dataset_id = t.id))",
    "branches": "{branch:name} AND EXISTS (SELECT 1 FROM datasets d WHERE d.id = t.dataset_id)",
    "deleted_branches": "{branch:name}"
    " AND EXISTS (SELECT 1 FROM datasets d WHERE d.id = t.dataset_id)",
    # By dataset alone: a branch shows transactions that were made on its ancestors. A transaction
    # that a caller names by its id is tested by `records.find_transaction`.
    "transactions": "EXISTS (SELECT 1 FROM datasets d WHERE d.id = t.dataset_id)",
    "units": "{branch:branch_name}",
    "moves": "{branch:branch_name} AND EXISTS (SELECT 1 FROM datasets d WHERE d.id = t.dataset_id)",
    "publications": "EXISTS (SELECT 1 FROM moves m WHERE m.publication = t.number)",
    "tags": "EXISTS (SELECT 1 FROM transactions p WHERE p.id = t.transaction_id"
    " AND {branch:p.branch_name})",
    "protected_branches": "{branch:name}",
    "namespaces": "{dataset:replace(replace(name, '.', '`'), {separator}, '.') || '.'}"
    " OR EXISTS (SELECT 1 FROM datasets d WHERE d.namespace = t.name"
    " OR substr(d.namespace, 1, length(t.name) + 1) = t.name || {separator})",
    "events": "actor = {actor} OR ((branch_name IS NOT NULL OR dataset_id IS NOT NULL)"
    " AND (branch_name IS NULL OR {branch:branch_name})"
    " AND (dataset_id IS NULL OR EXISTS (SELECT 1 FROM datasets d WHERE d.id = t.dataset_id)))",
    "recoveries": "original_actor = {actor}",
    "operations": "principal = {actor}",
    "jobspec_outputs": "{branch:branch} AND {dataset:dataset}",
    "jobspecs": "{branch:branch} AND EXISTS (SELECT 1 FROM jobspec_outputs o"
    " WHERE o.jobspec_id = t.id) AND NOT EXISTS (SELECT 1 FROM {real}jobspec_outputs o"
    " WHERE o.jobspec_id = t.id AND NOT {dataset:o.dataset})",
    "builds": "{branch:branch}",
    "jobs": "EXISTS (SELECT 1 FROM builds b WHERE b.id = t.build_id)",
}
# Tables whose rows name nothing that a policy hides, or are found by an id in rows that it shows.
_UNLIMITED = {
    *("store", "log_counter", "versions", "working_objects", "condemned_objects", "holds"),
    *("task_keys", "attempts", "tickets"),
}
# No limited token reads any other table: they are left empty.
_HIDDEN = frozenset(metadata.tables) - _ROWS.keys() - _UNLIMITED
# Columns that name other branches.
_MASKED = frozenset({"branches.remembered_chain", "deleted_branches.remembered_chain"})
_TEST = re.compile(r"\{(branch|dataset):((?:[^{}]|\{separator\})*)\}")
_WORD = re.compile(r"\w+")
_RECURSIVE, _WITH = "WITH RECURSIVE ", "WITH "


def enforce_policies(engine: Engine) -> None:
    """Limit every statement of the units of work that read under a policy."""
    if not event.contains(engine, "before_cursor_execute", _limit):
        event.listen(engine, "before_cursor_execute", _limit, retval=True)


def _limit(
    connection: Connection,
    _cursor: object,
    statement: str,
    parameters: object,
    _context: object,
    _many: object,
) -> tuple[str, object]:
    policy = policy_of(connection)
    if policy is None or not connection.get_execution_options()["limits_rows"]:
        return statement, parameters
    schema = connection.dialect.default_schema_name or "main"
    return limited(statement, policy, connection.dialect.name, schema), parameters


def limited(statement: str, policy: ReadPolicy, dialect: str, schema: str) -> str:
    """Return a SELECT statement that reads only what the policy shows."""
    named = set(_WORD.findall(statement)) & _expressions(policy, dialect, schema).keys()
    needed = _with_needed(named)
    if not needed:
        return statement
    if not statement.startswith(("SELECT ", _WITH)):
        raise ValueError(f"a limited reader cannot run this statement: {statement}")
    made = _expressions(policy, dialect, schema)
    tables = ", ".join(made[name] for name in needed)
    for start in (_RECURSIVE, _WITH):
        if statement.startswith(start):
            return f"{start}{tables}, {statement.removeprefix(start)}"
    return f"{_WITH}{tables} {statement}"


def _with_needed(named: set[str]) -> list[str]:
    """Return the tables, and those that their expressions read, in an order that resolves them."""
    found: dict[str, None] = {}

    def add(name: str) -> None:
        for other in _ROWS:
            # The tables of the catalog itself, after `{real}`, need no expression.
            if re.search(rf"FROM {other}\b", _ROWS.get(name, "")) and other != name:
                add(other)
        found[name] = None

    for name in sorted(named):
        add(name)
    return list(found)


@lru_cache(maxsize=256)
def _expressions(policy: ReadPolicy, dialect: str, schema: str) -> Mapping[str, str]:
    """Return a common table expression for each table, by its name."""
    real = f'"{schema}".'
    constants = {"separator": "chr(31)" if dialect == "postgresql" else "char(31)"}
    constants |= {"real": real, "actor": _quoted(policy.actor, dialect)}

    def test(found: re.Match[str]) -> str:
        patterns = policy.branches if found[1] == "branch" else policy.datasets
        name = found[2].format(**constants)
        return "(" + " OR ".join(_matches(name, one, dialect) for one in patterns) + ")"

    rows = {name: _TEST.sub(test, where) for name, where in _ROWS.items()}
    rows |= dict.fromkeys(_HIDDEN, "1 = 0")
    return {
        name: f"{name} AS NOT MATERIALIZED (SELECT {_columns(name)} FROM {real}{name} t"
        f" WHERE {_filled(where, constants)})"
        for name, where in rows.items()
    }


def _columns(table: str) -> str:
    return ", ".join(
        f'CAST(NULL AS TEXT) AS "{column.name}"'
        if f"{table}.{column.name}" in _MASKED
        else f't."{column.name}"'
        for column in metadata.tables[table].columns
    )


def _filled(where: str, constants: Mapping[str, str]) -> str:
    for name, value in constants.items():
        where = where.replace(f"{{{name}}}", value)
    return where


def _matches(name: str, pattern: str, dialect: str) -> str:
    """Return the test of a name by a pattern of `fnmatch`."""
    if pattern == "*":
        return "1 = 1"
    if dialect == "postgresql":
        return f"({name}) ~ {_quoted(_regex(pattern), dialect)}"
    # GLOB is `fnmatch` but for the sign that negates a set.
    return f"({name}) GLOB {_quoted(pattern.replace('[!', '[^'), dialect)}"


def _regex(pattern: str) -> str:
    """Return a pattern as a regular expression of PostgreSQL."""
    parts = re.findall(r"\[!?\]?[^\]]*\]|.", pattern)
    return "^" + "".join(_PARTS.get(part) or _part(part) for part in parts) + "$"


_PARTS = {"*": ".*", "?": "."}


def _part(part: str) -> str:
    if len(part) == 1:
        return part if part.isalnum() or part in "_/-" or not part.isascii() else f"\\{part}"
    return part.replace("[!", "[^", 1).replace("\\", "\\\\")


def _quoted(text: str, dialect: str) -> str:
    quoted = "'" + text.replace("'", "''") + "'"
    # Psycopg reads a percent sign as the start of a parameter.
    return quoted.replace("%", "%%") if dialect == "postgresql" else quoted
