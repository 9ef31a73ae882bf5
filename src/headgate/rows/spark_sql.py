"""Statements of Spark SQL that DuckDB answers with equal results, and their translation.

A construct is on the list here only if tests of both engines show equal answers. For another one
`translate` raises `Unlisted`, and Spark answers the statement.
"""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.annotate_types import annotate_types
from sqlglot.optimizer.qualify import qualify

from headgate.errors import InvalidScript
from headgate.model.names import DatasetName
from headgate.rows.script import conditions_on, dataset_name, outside_functions
from headgate.tables.scan import Conditions

_DIALECT = "spark"
# It would report statements that are left to Spark.
logging.getLogger("sqlglot").setLevel(logging.ERROR)


class Unlisted(Exception):
    """A construct that DuckDB may answer differently; the message names it."""


@dataclass(frozen=True, kw_only=True)
class Mention:
    """One place of a statement that reads a table: its names there, and what is read."""

    relation: str
    alias: str
    dataset: DatasetName
    # Names in lower case, as Spark compares them, with the table's own.
    names: Mapping[str, str]
    types: Mapping[str, Any]
    columns: Sequence[str] = ()
    where: Conditions = ()


@dataclass(frozen=True, kw_only=True)
class Translation:
    """A statement in DuckDB's SQL, the tables that it reads, and Spark's names of the columns."""

    sql: str
    mentions: Sequence[Mention]
    columns: Sequence[str]


# Iceberg types by column, or None for a table that does not exist.
FindColumns = Callable[[DatasetName], Mapping[str, Any] | None]


def translate(text: str, find_columns: FindColumns, *, only_listed: bool = True) -> Translation:
    """Return the statement for DuckDB, or raise `Unlisted`.

    :param only_listed: reject constructs that are not known to be answered as Spark answers them.
    """
    if only_listed and "\\" in text:
        raise Unlisted("a backslash")
    try:
        tree, *more = sqlglot.parse(text, dialect=_DIALECT)
        if more or not isinstance(tree, exp.Select):
            raise Unlisted("a statement other than one SELECT")
        for name in outside_functions(tree):
            raise Unlisted(f"{name}(…) in place of a table")
        mentions = _name_tables(tree, find_columns)
        names = [_name_of(one) for one in tree.expressions]
        if only_listed:
            _check_names(tree, names, mentions)
        schema: dict[str, object] = {
            one.relation: {column: _spark_type(kind) for column, kind in one.types.items()}
            for one in mentions
        }
        whole = qualify(tree.copy(), schema=schema, dialect=_DIALECT, identify=True)
        whole = annotate_types(whole, schema=schema, dialect=_DIALECT)
        for select in whole.find_all(exp.Select) if only_listed else ():
            _check_select(select)
        read = [_read_of(whole, one) for one in mentions]
        if None in names:
            real = {lower: name for one in mentions for lower, name in one.names.items()}
            names = [real.get(name, name) for name in whole.named_selects]
        for cte in whole.find_all(exp.CTE):
            # Evaluated once, as its tables are read.
            cte.set("materialized", True)
        sql = whole.transform(_for_duckdb).sql("duckdb")
        return Translation(sql=sql, mentions=read, columns=[str(name) for name in names])
    except (SqlglotError, RecursionError, InvalidScript) as error:
        raise Unlisted(str(error).partition("\n")[0].rstrip(". ")) from error


# Types of Iceberg that have another name in Spark's SQL.
_RENAMED = {
    "long": "bigint",
    "timestamp": "timestamp_ntz",
    "timestamptz": "timestamp",
    "uuid": "string",
}
_AGGREGATES = (exp.Count, exp.Sum, exp.Min, exp.Max, exp.Avg)


def _name_tables(tree: exp.Select, find_columns: FindColumns) -> list[Mention]:
    """Give every mention of a dataset a name of its own, which is one word."""
    found: list[Mention] = []
    local = {cte.alias.lower() for cte in tree.find_all(exp.CTE)}
    for node in [*tree.find_all(exp.Table)]:
        if not node.args.get("db") and node.name.lower() in local:
            continue
        extra = {key for key, value in node.args.items() if value} - {"this", "db", "catalog"}
        if extra - {"alias"} or node.alias_column_names:
            raise Unlisted(f"{', '.join(sorted(extra))} of a table")
        name = dataset_name(node, 1, 1)
        if (types := find_columns(name)) is None:
            raise Unlisted(f"{name} is not a table here")
        names = {column.lower(): column for column in types}
        if len(names) != len(types):
            raise Unlisted(f"columns of {name} that differ in case only")
        relation, alias = f"__table{len(found)}", node.alias or node.name
        lower = {column.lower(): kind for column, kind in types.items()}
        found.append(
            Mention(relation=relation, alias=alias.lower(), dataset=name, names=names, types=lower)
        )
        node.replace(exp.alias_(exp.to_table(relation), alias, table=True, quoted=True))
    return found


def _name_of(one: exp.Expr) -> str | None:
    """Return the name that Spark gives a column of the result; None for a star."""
    if one.is_star and not isinstance(one, exp.Count):
        return None
    if isinstance(one, exp.Alias | exp.Column) or (isinstance(one, exp.Literal) and one.is_int):
        return one.alias_or_name
    inner, distinct = one.this, ""
    if isinstance(inner, exp.Distinct) and len(inner.expressions) == 1:
        inner, distinct = inner.expressions[0], "DISTINCT "
    if isinstance(one, _AGGREGATES) and isinstance(inner, exp.Column | exp.Star):
        return f"{one.key}({distinct}{inner.name.replace('*', '1')})"
    return f"({one.sql(_DIALECT)})"


def _check_names(
    tree: exp.Select, names: Sequence[str | None], mentions: Sequence[Mention]
) -> None:
    """Raise where the engines could take a name for another column, or name one differently."""
    for name in names:
        if name is not None and name.startswith("("):
            raise Unlisted(f"the column {name} without a name: add AS")
    columns = {name for mention in mentions for name in mention.names}
    own = [name for mention in mentions for name in mention.names.values()]
    aliases = list(tree.find_all(exp.Alias))
    if None in names and (len(mentions) > 1 or aliases):
        own += [alias.alias for alias in aliases]
        if own != [name.lower() for name in own]:
            raise Unlisted("a star with names in upper case")
    for alias in aliases:
        hidden = alias.alias.lower()
        if hidden in columns and alias.this.name.lower() != hidden:
            raise Unlisted(f"{alias.alias} is the alias of another column")


def _read_of(tree: exp.Expr, mention: Mention) -> Mention:
    """Return the mention with the columns and conditions that the statement has for it."""
    alias, names = mention.alias, mention.names
    used = {column.name for column in tree.find_all(exp.Column) if column.table == alias}
    [node] = (node for node in tree.find_all(exp.Table) if node.name == mention.relation)
    select = node.find_ancestor(exp.Select)
    where = select.args.get("where") if select else None
    return replace(
        mention,
        columns=[names[name] for name in names if name in used],
        where=[
            replace(condition, column=names[condition.column])
            for condition in conditions_on(where, alias, mention.types, alone=False)
        ],
    )


def _spark_type(kind: Any) -> str:
    """Return a type as Spark's; `variant` for those of which values are only returned."""
    if not isinstance(kind, str) or kind.startswith(("fixed", "time_", "geo", "unknown")):
        return "variant"
    return _RENAMED.get(kind, kind)


# The list: clauses.

_CLAUSES = {"with_", "expressions", "from_", "joins", "where", "group", "having"}
_CLAUSES |= {"order", "limit", "distinct"}
_JOIN_PARTS = {"this", "side", "kind", "on"}
# Of floating numbers, Spark takes -0.0 for 0.0 in groups only, and adds in the order of its parts.
_UNGROUPED = frozenset(("double", "float", "other", "null"))


def _check_select(select: exp.Select) -> None:
    """Raise for a clause, a function or a combination of types that is not on the list."""
    args = {key: value for key, value in select.args.items() if value}
    joins = args.get("joins", [])
    sources = [one.this for one in (*([args["from_"]] if "from_" in args else []), *joins)]
    group, with_ = args.get("group", exp.Group()), args.get("with_", exp.With())
    for is_listed, what in (
        (args.keys() <= _CLAUSES, "this clause"),
        (all({k for k, v in join.args.items() if v} <= _JOIN_PARTS for join in joins), "this JOIN"),
        (all(join.kind in ("", "INNER", "OUTER", "CROSS") for join in joins), "this JOIN"),
        (all(isinstance(one.unnest(), exp.Table | exp.Select) for one in sources), "this FROM"),
        (not with_.args.get("recursive"), "WITH RECURSIVE"),
        ("distinct" not in args or not args["distinct"].args.get("on"), "DISTINCT ON"),
        (not any(v for k, v in group.args.items() if k != "expressions"), "this GROUP BY"),
        ("limit" not in args or args["limit"].expression.is_int, "this LIMIT"),
    ):
        if not is_listed:
            raise Unlisted(what)
    kinds = [_kind(one) for one in select.expressions]
    _conditions(*(args[clause].this for clause in ("where", "having") if clause in args))
    _conditions(*(join.args["on"] for join in joins if join.args.get("on")))
    _grouped(*(kinds if "distinct" in args else ()), *map(_kind, group.expressions))
    for ordered in args["order"].expressions if "order" in args else ():
        if _kind(ordered.this) in ("other", "null"):
            raise Unlisted("ORDER BY of such a value")


def _conditions(*nodes: exp.Expr) -> str:
    if any(_kind(node) not in ("boolean", "null") for node in nodes):
        raise Unlisted("a condition that is not boolean")
    return "boolean"


def _grouped(*kinds: str) -> str:
    for kind in kinds:
        if kind in _UNGROUPED:
            raise Unlisted(f"groups, DISTINCT, min or max of type {kind}")
    return kinds[0] if kinds else "null"


# The list: expressions, by the kinds of their values.

_INTEGERS = frozenset(("int", "long"))
_T = exp.DataType.Type
_KINDS = {
    _T.BOOLEAN: "boolean",
    _T.TINYINT: "int",
    _T.INT: "int",
    _T.BIGINT: "long",
    _T.DECIMAL: "decimal",
    _T.FLOAT: "float",
    _T.DOUBLE: "double",
    _T.TEXT: "string",
    _T.VARCHAR: "string",
    _T.DATE: "date",
    _T.TIMESTAMPTZ: "timestamp",
    _T.TIMESTAMPNTZ: "timestamp_ntz",
}
_TIME = re.compile(r"\d{4}-\d\d-\d\d( \d\d:\d\d:\d\d(\.\d{1,6})?)?")
# The texts that both engines read as these types.
_TEXTS = {"date": re.compile(r"\d{4}-\d\d-\d\d"), "timestamp": _TIME, "timestamp_ntz": _TIME}
_CASTS = frozenset(
    [(kind, "string") for kind in ("int", "long", "date", "boolean")]
    + [("int", "long"), ("int", "double")]
)
# So few digits that no common type of a sum, with ten digits more, and a literal loses one.
_DECIMAL_DIGITS, _LITERAL_DIGITS = 16, 12


def _kind(node: exp.Expr) -> str:
    """Return the kind of an expression's value; raise unless all of it is on the list."""
    match node:
        case exp.Paren() | exp.Alias():
            return _kind(node.this)
        case exp.Column() if isinstance(node.type, exp.DataType):
            return _KINDS.get(node.type.this, "other")
        case exp.Literal() if not node.is_string:
            return _number(node.name)
        case exp.Literal():
            return "string"
        case exp.Null():
            return "null"
        case exp.Boolean():
            return "boolean"
        case exp.Not():
            return _conditions(node.this)
        case exp.And() | exp.Or():
            return _conditions(node.left, node.right)
        case exp.Is() if isinstance(node.expression, exp.Null) and _kind(node.this):
            return "boolean"
        case exp.EQ() | exp.NEQ() | exp.LT() | exp.LTE() | exp.GT() | exp.GTE() | exp.NullSafeEQ():
            return _compared(node.left, node.right)
        case exp.Between() if not node.args.get("symmetric"):
            return _compared(node.this, node.args["low"], node.args["high"])
        case exp.In() if node.expressions:
            return _compared(node.this, *node.expressions)
        case exp.Like() if _kind(node.this) == "string" and node.expression.is_string:
            return "boolean"
        case exp.Case() | exp.Coalesce():
            return _chosen(node)
        case exp.DPipe() if _kind(node.left) == _kind(node.right) == "string":
            return "string"
        case exp.Add() | exp.Sub() | exp.Mul():
            return _whole(node.left, node.right)
        case exp.Div() | exp.Mod() if node.right.is_int and int(node.right.name) != 0:
            return (
                "double" if _whole(node.left) and isinstance(node, exp.Div) else _whole(node.left)
            )
        case exp.Neg():
            return _whole(node.this)
        case exp.Length() if _kind(node.this) == "string":
            return "int"
        case exp.Year() | exp.Month() | exp.Day():
            inner = node.this.this if isinstance(node.this, exp.TsOrDsToDate) else node.this
            if _kind(inner) in _TEXTS:
                return "int"
        case exp.Cast():
            to, inner = _KINDS.get(node.to.this, "other"), node.this
            # The library reads `CAST` as one that returns NULL for what it cannot convert.
            is_strict = not isinstance(node, exp.TryCast)
            if (is_strict and _is_text_of(inner, to)) or (_kind(inner), to) in _CASTS:
                return to
        case exp.Count() if isinstance(node.this, exp.Star) and not node.expressions:
            return "long"
        case exp.Count() if isinstance(node.this, exp.Distinct):
            if len(node.this.expressions) == 1 and _grouped(_kind(node.this.expressions[0])):
                return "long"
        case exp.Count() if not node.expressions and _kind(node.this) != "null":
            return "long"
        case exp.Min() | exp.Max() if not node.expressions:
            return _grouped(_kind(node.this))
        case exp.Sum() if (kind := _kind(node.this)) in ("decimal", *_INTEGERS):
            return "long" if kind != "decimal" or not _digits(node.this) else kind
        case exp.Avg() if _kind(node.this) in _INTEGERS:
            return "double"
    raise Unlisted(node.sql(_DIALECT)[:80])


def _number(text: str) -> str:
    if text.isdigit() and int(text) < 2**63 and int(text) != 2**31:
        return "int" if int(text) < 2**31 else "long"
    digits = text.replace(".", "", 1)
    if digits.isdigit() and len(digits) <= _LITERAL_DIGITS:
        return "decimal"
    raise Unlisted(f"the number {text}")


def _compared(first: exp.Expr, *others: exp.Expr) -> str:
    for other in others:
        kinds = {_kind(first), _kind(other)}
        is_text = any(_is_text_of(a, _kind(b)) for a, b in ((first, other), (other, first)))
        is_number = kinds <= {"decimal", *_INTEGERS}
        exact = {_digits(one) for one in (first, other) if _kind(one) == "decimal"} - {None}
        if (
            # Iceberg leaves out files by bounds that no NaN counts for, which NaN should match.
            kinds & {"other", "float", "double"}
            or not (is_text or is_number or len(kinds) == 1 or "null" in kinds)
            or len(exact) > 1
            or any(digits and digits[0] > _DECIMAL_DIGITS for digits in exact)
        ):
            raise Unlisted(f"{' and '.join(sorted(kinds))} compared")
    return "boolean"


def _is_text_of(node: exp.Expr, kind: str) -> bool:
    return node.is_string and kind in _TEXTS and bool(_TEXTS[kind].fullmatch(node.name))


def _digits(node: exp.Expr) -> tuple[int, int] | None:
    """Return precision and scale of a decimal that is not a literal."""
    if isinstance(node, exp.Literal):
        return None
    kind = node.type
    if not isinstance(kind, exp.DataType) or len(kind.expressions) != 2:
        raise Unlisted("a decimal of unknown precision")
    return int(kind.expressions[0].name), int(kind.expressions[1].name)


def _chosen(node: exp.Expr) -> str:
    """Return the kind that all branches of a choice have."""
    values = [node.this, *node.expressions]
    if isinstance(node, exp.Case):
        for branch in node.args["ifs"]:
            _compared(node.this, branch.this) if node.this else _conditions(branch.this)
        values = [branch.args["true"] for branch in node.args["ifs"]]
        values += [node.args["default"]] if node.args.get("default") else []
    kinds = set(map(_kind, values)) - {"null"}
    if len(kinds) != 1 or kinds & {"decimal", "other"}:
        raise Unlisted(f"a choice of {' and '.join(sorted(kinds)) or 'NULL'}")
    return kinds.pop()


def _whole(*nodes: exp.Expr) -> str:
    """Return the kind of a result of integers: Spark and DuckDB both reject an overflow."""
    kinds = set(map(_kind, nodes))
    if not kinds <= _INTEGERS:
        raise Unlisted(f"arithmetic on {' and '.join(sorted(kinds))}")
    return "long" if "long" in kinds else "int"


# Differences that the translation removes.

# Spark's mean adds doubles, which are exact up to here. Beyond, DuckDB raises and Spark answers.
_MEAN = (
    "(CASE WHEN SUM(ABS(CAST({0} AS HUGEINT))) >= 9007199254740992 THEN "
    "error('the mean is not exact') ELSE CAST(SUM({0}) AS DOUBLE) / COUNT({0}) END)"
)


def _for_duckdb(node: exp.Expr) -> exp.Expr:
    """Give sums and means Spark's types: DuckDB's sum of integers is wider."""
    if not isinstance(node, exp.Sum | exp.Avg) or not isinstance(node.this.type, exp.DataType):
        return node
    kind = _KINDS.get(node.this.type.this)
    if isinstance(node, exp.Avg) and kind in _INTEGERS:
        return sqlglot.parse_one(_MEAN.format(node.this.sql("duckdb")), dialect="duckdb")
    if isinstance(node, exp.Sum) and kind in _INTEGERS:
        return exp.cast(node, "BIGINT", copy=False)
    if isinstance(node, exp.Sum) and kind == "decimal" and (digits := _digits(node.this)):
        return exp.cast(node, f"DECIMAL({min(38, digits[0] + 10)}, {digits[1]})", copy=False)
    return node
