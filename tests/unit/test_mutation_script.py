"""Scripts: the kind of each statement, and errors with their position."""

from __future__ import annotations

import pytest
from sqlglot import exp

from headgate.errors import InvalidScript
from headgate.rows.script import Action, conditions_on, parse_script
from headgate.tables.scan import Among, Condition, Within


@pytest.mark.parametrize(
    ("sql", "action", "target"),
    [
        ("insert into g.t values (1)", Action.INSERT, "g.t"),
        ("insert into headgate.g.t values (1)", Action.INSERT, "g.t"),
        ("upsert into `g`.`odd name` values (1)", Action.UPSERT, "g.`odd name`"),
        ("insert or replace into a.b.c values (1)", Action.UPSERT, "a.b.c"),
        ("insert into g.t values (1) on conflict do nothing", Action.UPSERT, "g.t"),
        ("update g.t as q set x = 1 where q.id = 2", Action.UPDATE, "g.t"),
        ("delete from g.t using g.s where t.id = s.id", Action.DELETE, "g.t"),
        (
            "merge into g.t using g.s on t.id = s.id when matched then delete",
            Action.MERGE,
            "g.t",
        ),
    ],
)
def test_script_of_one_statement_is_read(sql: str, action: Action, target: str) -> None:
    [statement] = parse_script(sql)
    assert (statement.action, str(statement.target)) == (action, target)


def test_script_of_many_statements_keeps_their_places() -> None:
    text = "insert into g.t values (';');\n\n  update g.t set x = 1\n where y = 2; -- the end\n"
    first, second = parse_script(text)
    assert (first.line, first.column, second.line, second.column) == (1, 1, 3, 3)


def test_script_tables_of_a_statement_leave_out_its_target_and_ctes() -> None:
    [statement] = parse_script(
        "with c as (select * from g.a) insert into g.t select * from c join g.b using (id)"
    )
    assert sorted(str(name) for _, name in statement.tables) == ["g.a", "g.b"]


@pytest.mark.parametrize(
    ("sql", "line", "column", "words"),
    [
        ("", 1, 1, "no statement"),
        ("insert into g.t values (1);\nselect 1", 2, 1, "SELECT is not"),
        ("insert into g.t values (1);\n  insert int g.t values (1)", 2, 14, "near 'g'"),
        ("insert into t values (1)", 1, 1, "namespace"),
        ("drop table g.t", 1, 1, "DROP is not"),
        ("update g.t set", 1, 1, "SET"),
        ("insert overwrite g.t values (1)", 1, 1, ""),
        ("insert into g.t values ('a", 1, 1, "not closed"),
        ("delete from g.t where x = 1 returning x", 1, 1, "RETURNING"),
        ("create table g.t (x int)", 1, 1, "CREATE is not"),
        ("copy g.t to 'x.csv'", 1, 1, "COPY is not"),
        ("attach 'x.db'", 1, 1, "ATTACH is not"),
        ("delete graph", 1, 1, "names no table"),
        ("update (select 1) set x = 1", 1, 1, ""),
        (f"delete from g.t where x = {'(' * 3000}1{')' * 3000}", 1, 1, ""),
        ("set memory_limit = '1GB'", 1, 1, "SET is not"),
    ],
)
def test_script_with_a_mistake_names_its_place(
    sql: str, line: int, column: int, words: str
) -> None:
    with pytest.raises(InvalidScript) as refused:
        parse_script(sql)
    assert refused.value.facts["line"] == line, refused.value
    assert refused.value.facts["column"] >= column
    assert words in str(refused.value)


_TYPES = {"id": "string", "n": "long", "day": "date", "x": "double"}


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ("id = 'a'", [Among(column="id", values=frozenset(["a"]))]),
        ("'a' = T.ID and x > 1", [Among(column="id", values=frozenset(["a"]))]),
        ("n in (1, -2)", [Among(column="n", values=frozenset([1, -2]))]),
        ("n between 1 and 5", [Within(column="n", low=1, high=5)]),
        ("3 <= n and (n < 9)", [Within(column="n", low=3), Within(column="n", high=9)]),
        ("id = 1", []),
        ("n = '1'", []),
        ("n = 99999999999999999999", []),
        ("x = 1", []),
        ("day = '2020-01-01'", []),
        ("id = 'a' or n = 1", []),
        ("not id = 'a'", []),
        ("lower(id) = 'a'", []),
        ("other.id = 'a'", []),
        ("n in (select 1)", []),
    ],
)
def test_pruning_takes_only_conditions_that_mean_the_same_to_both(
    where: str, found: list[Condition]
) -> None:
    [statement] = parse_script(f"delete from g.t where {where}")
    node = statement.tree.args["where"]
    assert isinstance(node, exp.Where)
    assert conditions_on(node, "t", _TYPES, alone=True) == found
