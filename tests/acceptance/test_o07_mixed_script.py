"""O07: a script that inserts, updates and deletes is atomic and follows statement order."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.errors import ConstraintsViolated, InvalidScript
from tests.support.oracle import assert_rows_sound
from tests.support.rows import KNOWS, PERSON, graph_store, ids_of, publications, rows_of


def test_o07_mixed_script_is_one_publication(made_catalog_url: str, tmp_path: Path) -> None:
    with graph_store(made_catalog_url, tmp_path, "r", "y") as store:
        outcome = store.mutate(
            "master",
            "insert into graph.person (id) values ('x');"
            "delete from graph.person where id = 'r';"
            "insert into graph.knows values (1, 'x', 'y')",
        )
        assert outcome.publication == publications(store)[0].number
        assert ids_of(store, PERSON) == ["x", "y"]
        assert rows_of(store, KNOWS) == [{"id": 1, "src": "x", "dst": "y"}]
        assert outcome.counts[PERSON].to_json() == {"inserted": 1, "updated": 0, "deleted": 1}
        assert_rows_sound(store)


@pytest.mark.parametrize(
    ("script", "left"),
    [
        ("insert into graph.person (id) values ('k'); delete from graph.person where id = 'k'", []),
        (
            (
                "delete from graph.person where id = 'a';"
                "insert into graph.person (id, age) values ('a', 1);"
                "update graph.person set age = age + 1"
            ),
            [],
        ),
        ("delete from graph.person; insert into graph.person (id) values ('z')", ["z"]),
    ],
)
def test_o07_statements_on_one_key_follow_their_order(
    made_sqlite_url: str, tmp_path: Path, script: str, left: list[str]
) -> None:
    with graph_store(made_sqlite_url, tmp_path, "a") as store:
        store.mutate("master", script)
        assert ids_of(store, PERSON) == (left or ["a"])


def test_o07_cascade_covers_rows_of_the_same_script(made_catalog_url: str, tmp_path: Path) -> None:
    with graph_store(made_catalog_url, tmp_path, "a", "b") as store:
        store.mutate("master", "insert into graph.knows values (1, 'a', 'b')")
        outcome = store.mutate(
            "master",
            "insert into graph.knows values (2, 'a', 'a');"
            "insert into graph.knows values (3, 'b', 'b');"
            "delete from graph.person where id = 'a'",
        )
        assert ids_of(store, KNOWS) == [3]
        assert outcome.counts[KNOWS].to_json() == {"inserted": 1, "updated": 0, "deleted": 1}


def test_o07_reference_that_restricts_keeps_the_row(made_catalog_url: str, tmp_path: Path) -> None:
    with graph_store(made_catalog_url, tmp_path, "a", "b") as store:
        store.mutate("master", "insert into graph.knows values (1, 'a', 'b')")
        with pytest.raises(ConstraintsViolated, match="dst = 'b' refers to no row"):
            store.mutate("master", "delete from graph.person where id = 'b'")
        store.mutate(
            "master",
            "delete from graph.person where id = 'b'; delete from graph.knows where id = 1",
        )
        assert (ids_of(store, PERSON), ids_of(store, KNOWS)) == (["a"], [])


@pytest.mark.parametrize(
    ("last", "error"),
    [
        ("insert into graph.knows values (9, 'x', 'nobody')", ConstraintsViolated),
        ("update graph.person set age = 'much'", InvalidScript),
        ("delete from graph.person where nothing = 1", InvalidScript),
    ],
)
def test_o07_failing_last_statement_leaves_nothing(
    made_sqlite_url: str, tmp_path: Path, last: str, error: type[Exception]
) -> None:
    with graph_store(made_sqlite_url, tmp_path, "a") as store:
        count = len(publications(store))
        with pytest.raises(error):
            store.mutate(
                "master",
                "insert into graph.person (id) values ('x');"
                f"update graph.person set age = 1 where id = 'a'; {last}",
            )
        assert len(publications(store)) == count
        assert [(r["id"], r["age"]) for r in rows_of(store, PERSON)] == [("a", 7)]
        store.mutate("master", "insert into graph.person (id) values ('after')")
