"""Scripts of SQL statements, parsed by sqlglot: actions, tables and places in the text.

Also the conditions of a WHERE clause by which files are pruned.
"""

import enum
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.errors import ParseError, SqlglotError, TokenError
from sqlglot.tokenizer_core import Token, TokenType

from headgate.errors import InvalidScript
from headgate.model.names import DatasetName, check_name_part
from headgate.tables.scan import Among, Condition, Within

_CATALOG = "headgate"
_UPSERT = "UPSERT"
# The place of an error in the tokenizer's message.
_PLACE = re.compile(r"(\d+):(\d+)")
_TOKEN = re.compile(r"<Token [^>]*>")
# Table functions that compute their rows from their arguments alone.
_TABLE_FUNCTIONS = frozenset(
    ("generate_series", "range", "repeat", "unnest", "json_each", "json_tree")
)
_ENGINE_FUNCTIONS = frozenset(("current_setting", "getvariable"))
_OPENING = frozenset((TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE))
_CLOSING = frozenset((TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE))
_MIB = 1024 * 1024
# A longer query of a view is not parsed for the datasets that it reads.
_MOST_LETTERS = 50_000
_TOO_DEEP = "the statement is nested too deeply, or cannot be parsed"
# Python's frames for one level of nesting, with a margin.
_FRAMES_PER_LEVEL = 60


class Dialect(DuckDB):
    """DuckDB's SQL, with names in backticks as well, as in Spark."""

    class Tokenizer(DuckDB.Tokenizer):
        IDENTIFIERS = ['"', "`"]  # noqa: RUF012  (the library's own form)


class Action(enum.StrEnum):
    INSERT = "insert"
    UPSERT = "upsert"
    UPDATE = "update"
    DELETE = "delete"
    MERGE = "merge"


@dataclass(frozen=True, kw_only=True)
class Statement:
    action: Action
    tree: exp.Expr
    target: DatasetName
    # The start of the statement in the script.
    line: int
    column: int
    text: str

    @property
    def target_node(self) -> exp.Table:
        return _target_of(self.tree)

    @cached_property
    def tables(self) -> list[tuple[exp.Table, DatasetName]]:
        """Every mention of a dataset except the target."""
        hidden = {cte.alias_or_name.lower() for cte in self.tree.find_all(exp.CTE)}
        target = self.target_node
        return [
            (node, self.name_of(node))
            for node in self.tree.find_all(exp.Table)
            if node is not target
            and isinstance(node.this, exp.Identifier)
            and (node.args.get("db") or node.name.lower() not in hidden | {"excluded"})
        ]

    def name_of(self, node: exp.Table) -> DatasetName:
        line, column = self.place_of(node)
        return dataset_name(node, line, column)

    def place_of(self, node: exp.Expr) -> tuple[int, int]:
        """Return the line and column of a part of the statement in the script."""
        return self._place_of_first(node.find_all(exp.Identifier))

    def place_of_word(self, word: str) -> tuple[int, int]:
        """Return the place of a name's first occurrence in the statement."""
        parts = self.tree.find_all(exp.Identifier)
        return self._place_of_first(part for part in parts if part.name.lower() == word.lower())

    def _place_of_first(self, parts: Iterable[exp.Identifier]) -> tuple[int, int]:
        """Return the place in the script: the parser counts from the start of the statement."""
        for meta in (part.meta for part in parts if "line" in part.meta):
            line, first = meta["line"], meta["start"]
            before = self.text.rfind("\n", 0, first)
            column = first - before + (self.column - 1 if line == 1 else 0)
            return self.line + line - 1, column
        return self.line, self.column

    def too_deep(self) -> InvalidScript:
        return InvalidScript(line=self.line, column=self.column, reason=_TOO_DEEP)


@dataclass(frozen=True, kw_only=True)
class ScriptLimits:
    """Largest size and depth of a script; a server's are set by its settings."""

    size_bytes: int = 16 * _MIB
    # None: as deep as Python's stack allows.
    depth: int | None = None
    # Names the settings, where there are any.
    of_server: bool = False

    def reason(self, what: str, setting: str) -> str:
        by = f", the limit of this server ([server] {setting})" if self.of_server else ""
        return f"{what}{by}"


def parse_script(text: str, limits: ScriptLimits | None = None) -> list[Statement]:
    """Return the statements in order; raise for a statement that is not supported."""
    limits = limits or ScriptLimits()
    if (
        len(text) > limits.size_bytes
        or len(text.encode(errors="surrogatepass")) > limits.size_bytes
    ):
        size = f"the script is over {limits.size_bytes / _MIB:.4g} MiB"
        reason = f"{limits.reason(size, 'script_bytes')}; use `load` for large changes"
        raise InvalidScript(line=1, column=1, reason=reason)
    statements = []
    for tokens in _split(text):
        if limits.depth is not None:
            _check_depth(tokens, limits)
        statements.append(_parse(tokens, text))
    if not statements:
        raise InvalidScript(line=1, column=1, reason="the script has no statement")
    return statements


def _split(text: str) -> Iterator[list[Token]]:
    try:
        tokens = list(Dialect().tokenize(text))
    except TokenError as error:
        found = _PLACE.search(str(error.__cause__ or error))
        line, column = (int(found[1]), int(found[2])) if found else (text.count("\n") + 1, 1)
        reason = "a quote or a comment is not closed"
        raise InvalidScript(line=line, column=column, reason=reason) from error
    current: list[Token] = []
    for token in tokens:
        if token.token_type is TokenType.SEMICOLON:
            if current:
                yield current
            current = []
        else:
            current.append(token)
    if current:
        yield current


def _check_depth(tokens: Sequence[Token], limits: ScriptLimits) -> None:
    """Raise for brackets nested too deeply, and make room on the stack for all others."""
    assert limits.depth is not None
    sys.setrecursionlimit(max(sys.getrecursionlimit(), limits.depth * _FRAMES_PER_LEVEL))
    depth = 0
    for token in tokens:
        depth += (token.token_type in _OPENING) - (token.token_type in _CLOSING)
        if depth > limits.depth:
            what = f"brackets are nested more than {limits.depth} levels deep"
            reason = limits.reason(what, "script_depth")
            raise InvalidScript(line=token.line, column=token.col, reason=reason)


def _parse(tokens: Sequence[Token], text: str) -> Statement:
    first = tokens[0]
    line, column = first.line, first.start - text.rfind("\n", 0, first.start)
    part = text[first.start : tokens[-1].end + 1]
    is_upsert = first.text.upper() == _UPSERT
    sql = "INSERT OR REPLACE" + part[len(_UPSERT) :] if is_upsert else part
    try:
        tree = sqlglot.parse_one(sql, dialect=Dialect)
    except ParseError as error:
        raise _parse_error(error, line, column) from error
    except (SqlglotError, RecursionError) as error:
        raise InvalidScript(line=line, column=column, reason=_TOO_DEEP) from error
    action = _action_of(tree)
    if action is None or isinstance(tree, exp.Command):
        raise InvalidScript(
            line=line,
            column=column,
            reason=f"{first.text.upper()} is not supported: use INSERT, UPDATE, DELETE, UPSERT "
            "or MERGE",
        )
    if problem := _problem(tree):
        raise InvalidScript(line=line, column=column, reason=problem)
    return Statement(
        action=action,
        tree=tree,
        target=dataset_name(_target_of(tree), line, column),
        line=line,
        column=column,
        text=part,
    )


def _action_of(tree: exp.Expr) -> Action | None:
    match tree:
        case exp.Insert():
            is_upsert = tree.args.get("conflict") or tree.args.get("alternative")
            return Action.UPSERT if is_upsert else Action.INSERT
        case exp.Update():
            return Action.UPDATE
        case exp.Delete():
            return Action.DELETE
        case exp.Merge():
            return Action.MERGE
    return None


def _problem(tree: exp.Expr) -> str | None:
    """Return the reason why a statement is not supported."""
    if not isinstance(_target_node(tree), exp.Table):
        return "the statement names no table"
    if tree.args.get("returning"):
        return "RETURNING is not supported"
    for name in outside_functions(tree):
        return f"{name}(…) reads the engine, not tables of the branch"
    if isinstance(tree, exp.Insert):
        if tree.args.get("overwrite"):
            return "INSERT OVERWRITE is not supported: use `load --mode overwrite`"
        if tree.expression is None and not tree.args.get("default"):
            return "INSERT needs VALUES or a SELECT"
    if isinstance(tree, exp.Update) and not tree.expressions:
        return "UPDATE needs SET column = value"
    return None


def outside_functions(tree: exp.Expr) -> Iterator[str]:
    """Return functions that read something other than tables of the branch."""
    for node in tree.find_all(exp.Table):
        if isinstance(node.this, exp.Func):
            called = node.this.name if isinstance(node.this, exp.Anonymous) else ""
            name = (called or node.this.sql_name()).lower()
            if name not in _TABLE_FUNCTIONS:
                yield name
    for call in tree.find_all(exp.Anonymous):
        if call.name.lower() in _ENGINE_FUNCTIONS:
            yield call.name.lower()


def _target_of(tree: exp.Expr) -> exp.Table:
    target = _target_node(tree)
    assert isinstance(target, exp.Table), "checked when the statement was read"
    return target


def _target_node(tree: exp.Expr) -> object:
    return tree.this.this if isinstance(tree.this, exp.Schema) else tree.this


def dataset_name(node: exp.Table, line: int, column: int) -> DatasetName:
    if not isinstance(node.this, exp.Identifier):
        raise InvalidScript(line=line, column=column, reason=f"{node.sql()} is not a table")
    parts = [part.name for part in node.parts if part.name]
    if len(parts) > 2 and parts[0] == _CATALOG:
        parts = parts[1:]
    if len(parts) < 2:
        raise InvalidScript(
            line=line, column=column, reason=f"{'.'.join(parts)!r} needs a namespace: graph.person"
        )
    for part in parts:
        check_name_part(part, what="dataset", whole=".".join(parts))
    return DatasetName(namespace=tuple(parts[:-1]), name=parts[-1])


@lru_cache(maxsize=4096)
def names_read(sql: str, dialect: str) -> tuple[tuple[str, ...], ...]:
    """Return the tables that a query reads, as it writes them; none if it cannot be parsed."""
    if len(sql) > _MOST_LETTERS:
        return ()
    try:
        tree = sqlglot.parse_one(sql, dialect=dialect)
    # ValueError: sqlglot does not know the dialect.
    except (SqlglotError, ValueError, RecursionError):
        return ()
    local = {cte.alias.lower() for cte in tree.find_all(exp.CTE)}
    found = (tuple(part.name for part in node.parts) for node in tree.find_all(exp.Table))
    return tuple(dict.fromkeys(n for n in found if len(n) > 1 or n[0].lower() not in local))


def _parse_error(error: ParseError, line: int, column: int) -> InvalidScript:
    first = error.errors[0] if error.errors else {}
    reason = str(first.get("description") or str(error).strip().split("\n", 1)[0])
    at_line, at_column = int(first.get("line") or 1), int(first.get("col") or 1)
    reason = _TOKEN.sub("", reason).removesuffix(" but got ").rstrip(". ")
    if reason.startswith("Required keyword"):
        # The parser's message names its own classes.
        reason = "something is missing"
    near = str(first.get("highlight") or "").strip()
    at_column = max(1, at_column - len(near) + 1)
    return InvalidScript(
        line=line + at_line - 1,
        column=at_column + (column - 1 if at_line == 1 else 0),
        reason=f"{reason} near {near!r}" if near else reason,
    )


_WHOLE = {"int", "long"}


def conditions_on(
    where: exp.Expr | None, alias: str, types: Mapping[str, Any], *, alone: bool
) -> list[Condition]:
    """Return the conditions that every row of the table must meet, by the types of its columns.

    Only comparisons that mean the same to Iceberg and to the engine count: a column with a literal
    of its own type. `alone`: no other table could own an unqualified column.
    """
    if where is None:
        return []
    condition = where.this if isinstance(where, exp.Where) else where
    found = (_condition(part, alias, types, alone) for part in _conjuncts(condition))
    return [one for one in found if one is not None]


def _conjuncts(node: exp.Expr) -> Iterator[exp.Expr]:
    node = node.unnest()
    if isinstance(node, exp.And):
        yield from _conjuncts(node.left)
        yield from _conjuncts(node.right)
    else:
        yield node


def _condition(
    node: exp.Expr, alias: str, types: Mapping[str, Any], alone: bool
) -> Condition | None:
    def column_of(side: Any) -> str | None:
        if not isinstance(side, exp.Column):
            return None
        if not (side.table.lower() == alias.lower() if side.table else alone):
            return None
        return next((name for name in types if name.lower() == side.name.lower()), None)

    if isinstance(node, exp.In) and not node.args.get("query"):
        column = column_of(node.this)
        values = [_literal(item, types[column]) for item in node.expressions] if column else []
        if column and values and None not in values:
            return Among(column=column, values=frozenset(values))
        return None
    if isinstance(node, exp.Between):
        column = column_of(node.this)
        if column is None:
            return None
        low, high = (_literal(node.args[end], types[column]) for end in ("low", "high"))
        return Within(column=column, low=low, high=high) if None not in (low, high) else None
    return _comparison(node, column_of, types)


def _comparison(node: exp.Expr, column_of: Any, types: Mapping[str, Any]) -> Condition | None:
    if not isinstance(node, exp.EQ | exp.LT | exp.LTE | exp.GT | exp.GTE):
        return None
    column, other, swapped = column_of(node.left), node.right, False
    if column is None:
        column, other, swapped = column_of(node.right), node.left, True
    value = _literal(other, types[column]) if column is not None else None
    if column is None or value is None:
        return None
    if isinstance(node, exp.EQ):
        return Among(column=column, values=frozenset([value]))
    if isinstance(node, exp.GT | exp.GTE) != swapped:
        return Within(column=column, low=value)
    return Within(column=column, high=value)


def _literal(node: Any, kind: Any) -> Any:
    """Return the literal's value where it has the column's own type; else None."""
    sign = 1
    if isinstance(node, exp.Neg):
        node, sign = node.this, -1
    if not isinstance(node, exp.Literal):
        return None
    if node.is_string:
        return node.this if kind == "string" else None
    if kind in _WHOLE and str(node.this).isdigit():
        value = sign * int(node.this)
        limit = 2**31 if kind == "int" else 2**63
        return value if -limit <= value < limit else None
    return None
