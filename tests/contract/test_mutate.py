"""`mutate`: statements over committed and pending rows, constraints, receipts and conflicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headgate.catalog.operations import find_operations
from headgate.errors import (
    ConstraintsViolated,
    DatasetNotFound,
    IdempotencyKeyReused,
    Invalid,
    InvalidScript,
    NotFound,
    UnknownTable,
    ViewConflict,
)
from headgate.model.failpoints import Failpoint
from headgate.model.nouns import TransactionType
from headgate.store.embedded import Store
from headgate.testing.failpoints import calling_at
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


def _ages(store: Store) -> dict[str, Any]:
    return {row["id"]: row["age"] for row in rows_of(store, PERSON)}


def test_mutate_of_many_tables_is_one_publication_with_counts(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with graph_store(made_catalog_url, tmp_path) as store:
        outcome = store.mutate(
            "master",
            f"{insert_people('a', 'b')}; insert into graph.knows values (1, 'a', 'b')",
            actor="bea",
        )
        newest = publications(store)[0]
        assert (newest.number, newest.actor) == (outcome.publication, "bea")
        assert {str(m.dataset) for m in newest.moves} == {PERSON, KNOWS}
        assert outcome.to_json()["counts"] == {
            KNOWS: {"inserted": 1, "updated": 0, "deleted": 0},
            PERSON: {"inserted": 2, "updated": 0, "deleted": 0},
        }
        assert _ages(store) == {"a": 7, "b": 7}


@pytest.mark.parametrize(
    ("sql", "ages"),
    [
        ("update graph.person set age = age + 1 where id = 'a'", {"a": 8, "b": 7}),
        ("update graph.person p set age = 1 where p.id in ('a', 'b')", {"a": 1, "b": 1}),
        ("delete from graph.person where id = 'a'", {"b": 7}),
        ("delete from graph.person", {}),
        ("upsert into graph.person (id, age) values ('a', 1), ('c', 2), ('a', 3)", None),
        (
            (
                "insert into graph.person (id, age) values ('a', 1) "
                "on conflict (id) do update set age = person.age + excluded.age"
            ),
            {"a": 8, "b": 7},
        ),
        (
            "insert into graph.person (id, age) values ('a', 1), ('c', 2) on conflict do nothing",
            {"a": 7, "b": 7, "c": 2},
        ),
        ("insert or ignore into graph.person (id) values ('a'), ('d')", {"a": 7, "b": 7, "d": 7}),
        (
            "update graph.person set age = s.n from (select count(*) as n from graph.person) s",
            {"a": 2, "b": 2},
        ),
        (
            (
                "merge into graph.person p using (select 'a' as id, 5 as age) s on p.id = s.id "
                "when matched then update set age = s.age"
            ),
            {"a": 5, "b": 7},
        ),
        (
            "insert into graph.person (id, age) select id || '2', age from graph.person",
            {"a": 7, "b": 7, "a2": 7, "b2": 7},
        ),
        (
            (
                "with old as (select id from graph.person) delete from graph.person "
                "where id in (select max(id) from old)"
            ),
            {"a": 7},
        ),
    ],
)
def test_mutate_statement_does_what_sql_says(
    made_sqlite_url: str, tmp_path: Path, sql: str, ages: dict[str, Any] | None
) -> None:
    with graph_store(made_sqlite_url, tmp_path, "a", "b") as store:
        store.mutate("master", sql)
        assert _ages(store) == (ages if ages is not None else {"a": 3, "b": 7, "c": 2})


def test_mutate_reads_its_own_writes_in_order(made_sqlite_url: str, tmp_path: Path) -> None:
    with graph_store(made_sqlite_url, tmp_path, "a") as store:
        store.mutate(
            "master",
            "insert into graph.person (id, age) values ('b', 1);"
            "update graph.person set age = age + 10;"
            "insert into graph.person (id, age) select 'c', sum(age) from graph.person;"
            "delete from graph.person where age = 11",
        )
        assert _ages(store) == {"a": 17, "c": 28}


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        (insert_people("a"), "the key id = 'a' occurs 2 times (line 1"),
        (insert_people("x", "x"), "the key id = 'x' occurs 2 times"),
        ("insert into graph.person (id) values (null)", "required column (id"),
        ("update graph.person set id = 'b' where id = 'a'", "the key id = 'b'"),
        ("insert into graph.knows values (1, 'a', 'z')", "dst = 'z' refers to no row"),
        (
            "insert into graph.knows values (1, 'a', 'b'), (2, 'a', 'b')",
            "unique value src = 'a', dst = 'b' occurs 2 times",
        ),
        (
            (
                f"{insert_people('p', 'q')};\ninsert into graph.knows values "
                "(1,'a','a'), (2,'a','b'), (3,'a','p'), (4,'a','q')"
            ),
            "4 rows have src = 'a', at most 3 may (line 2",
        ),
    ],
)
def test_mutate_that_breaks_a_constraint_changes_nothing(
    made_sqlite_url: str, tmp_path: Path, sql: str, words: str
) -> None:
    with graph_store(made_sqlite_url, tmp_path, "a", "b") as store:
        count = len(publications(store))
        with pytest.raises(ConstraintsViolated) as refused:
            store.mutate("master", sql)
        assert words in str(refused.value)
        assert len(publications(store)) == count
        assert ids_of(store, PERSON) == ["a", "b"]


def test_mutate_checks_keys_against_rows_of_other_files(
    made_sqlite_url: str, tmp_path: Path
) -> None:
    with graph_store(made_sqlite_url, tmp_path) as store:
        for id in "abcdef":
            store.mutate("master", insert_people(id))
        with pytest.raises(ConstraintsViolated):
            store.mutate("master", insert_people("g", "c"))
        assert ids_of(store, PERSON) == list("abcdef")


@pytest.mark.parametrize(
    ("sql", "error", "place"),
    [
        ("update graph.person set age = 99999999999", InvalidScript, (1, 1)),
        ("update graph.person\nset agee = 1", InvalidScript, (2, 5)),
        ("update graph.person set age = agee", InvalidScript, (1, 31)),
        ("insert into graph.person (id, nme) values ('x', 'y')", InvalidScript, (1, 31)),
        ("insert into graph.person values (1)", InvalidScript, (1, 1)),
        ("insert into graph.person select * from read_csv('/etc/passwd')", InvalidScript, (1, 1)),
        ("insert into graph.persn values (1)", UnknownTable, (1, 19)),
        ("delete from graph.person where id in (select 1 from no.place)", UnknownTable, (1, 56)),
    ],
)
def test_mutate_with_a_mistake_says_where(
    made_sqlite_url: str, tmp_path: Path, sql: str, error: type[Invalid], place: tuple[int, int]
) -> None:
    with graph_store(made_sqlite_url, tmp_path, "a") as store:
        with pytest.raises(error) as refused:
            store.mutate("master", sql)
        facts = refused.value.facts
        assert (facts["line"], facts["column"]) == place, refused.value
        assert ids_of(store, PERSON) == ["a"]


def test_mutate_of_an_unknown_table_names_the_nearest(made_sqlite_url: str, tmp_path: Path) -> None:
    with graph_store(made_sqlite_url, tmp_path) as store:
        words = r"Table does not exist: graph\.prson on master\. Did you mean 'graph\.person'"
        with pytest.raises(UnknownTable, match=words):
            store.mutate("master", "delete from graph.prson")
        with pytest.raises(NotFound, match="branch 'nowhere' does not exist"):
            store.mutate("nowhere", "delete from graph.person")
        with pytest.raises(NotFound, match=r"Did you mean 'graph\.person'"):
            store.load("master", {"graph.prson": pa.table({"id": ["a"]})}, mode="append")


@pytest.mark.parametrize(
    "sql",
    [
        "update graph.person set age = age",
        "delete from graph.person where id = 'nobody'",
        "delete from graph.person where id = 'a'; insert into graph.person values ('a', 'A', 7)",
        f"{insert_people('x')}; delete from graph.person where id = 'x'",
    ],
)
def test_mutate_without_effect_makes_no_publication(
    made_catalog_url: str, tmp_path: Path, sql: str
) -> None:
    with graph_store(made_catalog_url, tmp_path, "a") as store:
        count = len(publications(store))
        outcome = store.mutate("master", sql, idempotency_key="k")
        assert (outcome.publication, outcome.counts) == (None, {})
        assert store.mutate("master", sql, idempotency_key="k").replayed
        assert len(publications(store)) == count


def test_mutate_types_of_transactions_follow_their_rows(
    made_sqlite_url: str, tmp_path: Path
) -> None:
    with graph_store(made_sqlite_url, tmp_path, "a") as store:
        store.mutate("master", "update graph.person set age = 1")
        store.mutate("master", "delete from graph.person")
        types = [t.type for t in store.dataset(PERSON).branch("master").history()]
        assert types[:3] == [
            TransactionType.DELETE,
            TransactionType.UPDATE,
            TransactionType.APPEND,
        ]


def test_mutate_with_a_key_is_done_once_and_answers_alike(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with graph_store(made_catalog_url, tmp_path, "a") as store:
        sql = "update graph.person set age = age + 1"
        first = store.mutate("master", sql, idempotency_key="k1")
        store.mutate("master", "update graph.person set age = 50")
        again = store.mutate("master", sql, idempotency_key="k1")
        assert (again.publication, again.counts) == (first.publication, first.counts)
        assert again.replayed and _ages(store) == {"a": 50}
        with pytest.raises(IdempotencyKeyReused):
            store.mutate("master", insert_people("z"), idempotency_key="k1")


def test_mutate_that_is_refused_leaves_no_word_of_its_key(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with graph_store(made_catalog_url, tmp_path, "a") as store:
        seen = []

        def ask() -> None:
            seen.extend(store.database.read(lambda c: find_operations(c, "k")))

        with (
            calling_at(Failpoint.MUTATION_STAGED, ask),
            pytest.raises(ConstraintsViolated),
        ):
            store.mutate("master", insert_people("a"), idempotency_key="k")
        assert store.database.read(lambda c: find_operations(c, "k")) == []
        with calling_at(Failpoint.MUTATION_STAGED, ask):
            store.mutate("master", insert_people("b"), idempotency_key="k")
        assert [operation["state"] for operation in seen] == ["in_progress"]


def test_mutate_that_is_interrupted_leaves_no_word_of_its_key(
    made_catalog_url: str, tmp_path: Path
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with graph_store(made_catalog_url, tmp_path, "a") as store:
        with calling_at(Failpoint.MUTATION_STAGED, interrupt), pytest.raises(KeyboardInterrupt):
            store.mutate("master", insert_people("b"), idempotency_key="k")
        assert store.database.read(lambda c: find_operations(c, "k")) == []


_EVERY_TYPE = """
[dataset."shop.t".columns]
id = "int"
n = "long"
f = "float"
d = "decimal(9, 2)"
ok = "boolean"
day = "date"
at = "timestamp"
zoned = "timestamptz"
clock = "time"
raw = "binary"
u = "uuid"
tags = "list<string>"
pairs = "map<string, int>"
inner = "struct<a: int, b: list<long>>"
"""


def test_mutate_keeps_values_of_every_type_when_a_row_is_rewritten(
    made_sqlite_url: str, tmp_path: Path
) -> None:
    with graph_store(made_sqlite_url, tmp_path) as store:
        apply_text(store, _EVERY_TYPE)
        store.mutate(
            "master",
            "insert into shop.t values (1, 2, 0.5, 1.25, true, '2026-01-02', '2026-01-02 03:04:05',"
            "'2026-01-02 03:04:05+02', '03:04:05', '\\xAB'::blob, "
            "'8f14e45f-ceea-467f-a8f4-1d0d3e2b9a11', ['x', null], map {'k': 1}, "
            "{'a': 1, 'b': [2]}), (2, null, null, null, null, null, null, null, null, null, null, "
            "null, null, null)",
        )
        before = rows_of(store, "shop.t")
        store.mutate("master", "update shop.t set n = coalesce(n, 0) + 1")
        full, empty = before
        assert rows_of(store, "shop.t") == [{**full, "n": 3}, {**empty, "n": 1}]
        assert full["zoned"].startswith("2026-01-02T01:04:05")
        assert (full["tags"], full["pairs"]) == (["x", None], {"k": 1})


def test_mutate_with_if_head_refuses_another_view(made_catalog_url: str, tmp_path: Path) -> None:
    with graph_store(made_catalog_url, tmp_path, "a") as store:
        seen = store.dataset(PERSON).branch("master").load().view
        store.mutate("master", insert_people("b"), if_head={PERSON: seen})
        with pytest.raises(ViewConflict) as conflict:
            store.mutate("master", insert_people("c"), if_head={PERSON: seen})
        assert conflict.value.facts["manifest_conflict"]["expected"] == seen
        assert ids_of(store, PERSON) == ["a", "b"]


def test_mutate_with_if_head_of_a_table_that_it_does_not_write_holds_until_the_end(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with graph_store(made_catalog_url, tmp_path, "a", "b") as store:
        seen = store.dataset(KNOWS).branch("master").load().view

        def meddle() -> None:
            store.mutate("master", "insert into graph.knows values (1, 'a', 'b')")

        with calling_at(Failpoint.MUTATION_STAGED, meddle), pytest.raises(ViewConflict):
            store.mutate("master", insert_people("c"), if_head={KNOWS: seen})
        assert ids_of(store, PERSON) == ["a", "b"]


def test_mutate_on_a_chain_reads_the_fallback_and_writes_the_branch(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with graph_store(made_catalog_url, tmp_path, "a") as store:
        store.mutate("feature>master", insert_people("b"))
        assert ids_of(store, PERSON, "feature") == ["a", "b"]
        assert ids_of(store, PERSON) == ["a"]
        with pytest.raises(DatasetNotFound):
            store.dataset("graph.nothing").load()


def test_mutate_of_an_unkeyed_table_updates_and_deletes_rows(
    made_sqlite_url: str, tmp_path: Path
) -> None:
    with graph_store(made_sqlite_url, tmp_path) as store:
        apply_text(store, '[dataset."shop.log"]\ncolumns = {a = "int", b = "double"}')
        store.mutate("master", "insert into shop.log values (1, 0.5), (1, 0.5), (2, 'NaN')")
        outcome = store.mutate(
            "master", "update shop.log set b = 9 where a = 2; delete from shop.log where a = 1"
        )
        assert outcome.counts["shop.log"].to_json() == {"inserted": 0, "updated": 1, "deleted": 2}
        assert rows_of(store, "shop.log") == [{"a": 2, "b": 9.0}]
