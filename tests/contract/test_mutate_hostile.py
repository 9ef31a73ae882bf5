"""Malicious scripts: rejected with the reason, and nothing is changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.errors import ConstraintsViolated, Invalid, InvalidScript, UnknownTable
from tests.support.rows import (
    KNOWS,
    PERSON,
    apply_text,
    graph_store,
    ids_of,
    insert_people,
    publications,
    rows_of,
)

_MERGE = "merge into graph.person t using ({}) s on t.id = s.id "


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("insert into graph.person (id) select name from duckdb_settings()", "duckdb_settings"),
        ("insert into graph.person (id) select current_setting('threads')", "current_setting"),
        ("insert into graph.person (id) select * from query('select 1')", r"query\(…\)"),
        ("insert into graph.person (id) select content from read_text('/etc/hosts')", "read_text"),
        ("insert into graph.person (id) select file from glob('/*')", r"glob\(…\)"),
        ("insert into graph.person values", "something is missing near 'values'"),
        ("insert into graph.person (id, name) values ('x')", "on graph.person: expected 2"),
        ("with x as (select 1) insert into graph.person (id) select id from rows", "namespace"),
    ],
)
def test_mutate_of_a_hostile_script_is_refused(
    made_sqlite_url: str, tmp_path: Path, sql: str, words: str
) -> None:
    with graph_store(made_sqlite_url, tmp_path, "a") as store:
        count = len(publications(store))
        with pytest.raises(InvalidScript, match=words):
            store.mutate("master", sql)
        assert len(publications(store)) == count


def test_mutate_takes_functions_that_make_rows_of_their_arguments(
    made_sqlite_url: str, tmp_path: Path
) -> None:
    with graph_store(made_sqlite_url, tmp_path) as store:
        insert = "insert into graph.person (id) select 'p' || n from "
        store.mutate("master", insert + "range(2) x(n)")
        store.mutate("master", insert + "unnest([7, 8]) x(n)")
        assert ids_of(store, PERSON) == ["p0", "p1", "p7", "p8"]


@pytest.mark.parametrize(
    ("name", "near"), [("GRAPH.Person", "graph.person"), ("graph.nos", "graph.knows")]
)
def test_mutate_of_an_unknown_table_names_the_nearest_whatever_its_letters(
    made_sqlite_url: str, tmp_path: Path, name: str, near: str
) -> None:
    with graph_store(made_sqlite_url, tmp_path) as store:
        with pytest.raises(UnknownTable, match=f"Did you mean '{near}'"):
            store.mutate("master", f"delete from {name}")
        store.dataset("shop.elsewhere").create(branch="other", create=True)
        with pytest.raises(UnknownTable) as refused:
            store.mutate("other", f"delete from {near}")
        assert refused.value.facts["near"] == []


@pytest.mark.parametrize(
    ("column", "value"),
    [("day", "0000-01-01"), ("at", "infinity"), ("at", "10000-01-01"), ("zoned", "-infinity")],
)
def test_mutate_of_a_moment_beyond_the_years_is_refused(
    made_sqlite_url: str, tmp_path: Path, column: str, value: str
) -> None:
    with graph_store(made_sqlite_url, tmp_path) as store:
        columns = '{id = "int", day = "date", at = "timestamp", zoned = "timestamptz"}'
        apply_text(store, f'[dataset."shop.t"]\ncolumns = {columns}\nkey = ["id"]')
        with pytest.raises(Invalid, match="not in the years 1 to 9999"):
            store.mutate("master", f"insert into shop.t (id, {column}) values (1, '{value}')")
        path = tmp_path / "rows.csv"
        path.write_text(f"id,{column}\n1,9999-12-31\n2,{value}\n")
        with pytest.raises(Invalid, match=r"rows\.csv:3"):
            store.load("master", {"shop.t": path})
        assert rows_of(store, "shop.t") == []


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("insert into shop.x values (1, 'abc'::blob)", "'code' cannot hold one of its values"),
        ("upsert into shop.x values (1)", "mismatch for insert: expected 2 columns"),
    ],
)
def test_mutate_of_values_that_do_not_fit_says_so_without_the_engines_own_names(
    made_sqlite_url: str, tmp_path: Path, sql: str, told: str
) -> None:
    with graph_store(made_sqlite_url, tmp_path) as store:
        apply_text(
            store,
            '[dataset."shop.x"]\ncolumns = {id = "int", code = "fixed[4]"}\nkey = ["id"]\n',
        )
        with pytest.raises(Invalid, match=told):
            store.mutate("master", sql)
        store.mutate("master", "insert into shop.x values (1, 'abcd'::blob)")


def test_mutate_that_breaks_more_than_is_listed_says_at_least(
    made_sqlite_url: str, tmp_path: Path
) -> None:
    many = "insert into graph.person (id) select 'p' || i from range(150) t(i)"
    with graph_store(made_sqlite_url, tmp_path) as store:
        store.mutate("master", many)
        with pytest.raises(ConstraintsViolated, match="at least 100 violations") as refused:
            store.mutate("master", many)
        assert len(refused.value.facts["violations"]) == 100


def test_mutate_by_merge_takes_stars_for_all_columns(made_sqlite_url: str, tmp_path: Path) -> None:
    with graph_store(made_sqlite_url, tmp_path, "a") as store:
        rows = "select 'a' as id, 1 as age, 'x' as name union all select 'b', 2, 'y'"
        stars = "when matched then update set * when not matched then insert *"
        store.mutate("master", _MERGE.format(rows) + stars)
        assert [(r["id"], r["age"], r["name"]) for r in rows_of(store, PERSON)] == [
            ("a", 1, "x"),
            ("b", 2, "y"),
        ]


def test_mutate_by_merge_cascades_what_it_deletes_and_not_what_it_renames(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with graph_store(made_catalog_url, tmp_path, "a", "b", "c") as store:
        store.mutate("master", "insert into graph.knows values (1, 'a', 'b'), (2, 'c', 'b')")
        delete = "when matched then delete"
        done = store.mutate("master", _MERGE.format("select 'a' as id") + delete)
        assert done.counts[KNOWS].deleted == 1
        rename = "when matched then update set id = 'd'"
        with pytest.raises(ConstraintsViolated, match="refers to no row"):
            store.mutate("master", _MERGE.format("select 'c' as id") + rename)
        with pytest.raises(ConstraintsViolated, match="refers to no row"):
            store.mutate("master", _MERGE.format("select 'b' as id") + delete)
        assert ids_of(store, KNOWS) == [2]


def test_mutate_by_merge_names_the_line_of_what_it_breaks(
    made_sqlite_url: str, tmp_path: Path
) -> None:
    with graph_store(made_sqlite_url, tmp_path, "a", "b") as store:
        clash = _MERGE.format("select 'a' as id") + "when matched then update set id = 'b'"
        with pytest.raises(ConstraintsViolated) as refused:
            store.mutate("master", f"{insert_people('c')};\n\n{clash}")
        assert refused.value.facts["violations"][0]["line"] == 3


_TREE = """
[dataset."tree.node"]
columns = {id = "int", parent = "int"}
key = ["id"]
references = [{column = "parent", dataset = "tree.node", on_delete = "cascade"}]

[dataset."tree.leaf"]
columns = {id = "int", node = "int"}
key = ["id"]
references = [{column = "node", dataset = "tree.node", on_delete = "cascade"}]
"""


def test_mutate_cascades_down_a_deep_tree_and_around_a_circle(
    made_sqlite_url: str, tmp_path: Path
) -> None:
    """Covers a tree deeper than Python's recursion limit, and rows that refer to each other."""
    with graph_store(made_sqlite_url, tmp_path) as store:
        apply_text(store, _TREE)
        store.mutate(
            "master",
            "insert into tree.node select n, nullif(n - 1, 0) from range(1, 521) x(n);"
            "insert into tree.node values (1001, 1002), (1002, 1001), (1003, null);"
            "insert into tree.leaf values (1, 520), (2, 1001), (3, 1003)",
        )
        done = store.mutate("master", "delete from tree.node where id in (1, 1001)")
        assert done.counts["tree.node"].deleted == 522
        assert (ids_of(store, "tree.node"), ids_of(store, "tree.leaf")) == ([1003], [3])
