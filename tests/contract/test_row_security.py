"""What a limited token reads of the catalog: patterns mean the same in SQL as in Python."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from headgate.catalog.row_security import limited
from headgate.catalog.schema import metadata
from headgate.errors import Invalid
from headgate.model.access import Grant, ReadPolicy, Role, make_grant
from headgate.store.embedded import Store
from tests.support.stores import files_branch, new_store

BRANCHES = ("main", "a", "ab", "Ab", "a.b", "a_b", "a-b", "ana/x", "ana/x/y", "anb/x", "a1")
PATTERNS = (
    *("*", "a", "a?", "a*", "*b", "ana/*", "ana/x", "a[bc]", "a[!b]", "a[!bc]?", "[am]*", "a.b"),
    *("a_b", "a-b", "é/*", "?/?", "%", "a%", "it's", "a\\b", "a[.]b", "a[b-]b", "a[-b]b"),
    *("a(b)", "a|b", "^a", "a$", "a+", "{a}", "a[0-9]", "", "'; drop table branches; --"),
)
NO_PATTERNS = ("[", "a[b", "a]", "a[]b]", "[^a]*", "[[:alpha:]]*", "[z-a]", "[\\d]", "[!]", "[]")


@pytest.fixture
def store(made_catalog_url: str, tmp_path: Path) -> Iterator[Store]:
    with new_store(made_catalog_url, tmp_path) as opened:
        for name in BRANCHES:
            if name == "main":
                files_branch(opened, "gold.orders", name)
            else:
                opened.dataset("gold.orders").branch(name).create("main")
        yield opened


def test_pattern_of_branches_shows_the_same_names_in_sql_as_in_python(store: Store) -> None:
    for pattern in PATTERNS:
        grant = Grant(actor="bo", role=Role.READER, reads=(pattern, "zz"))
        shown = {branch.name for branch in store.acting_for(grant).branches()}
        assert shown == {name for name in BRANCHES if fnmatchcase(name, pattern)}, pattern


@pytest.mark.parametrize("pattern", NO_PATTERNS)
def test_set_that_databases_read_in_different_ways_is_not_a_pattern(pattern: str) -> None:
    with pytest.raises(Invalid, match="is not a pattern"):
        make_grant("bo", Role.READER, branches=["*"], reads=[pattern], datasets=["*"])


def test_pattern_of_datasets_shows_the_same_names_in_sql_as_in_python(store: Store) -> None:
    names = ("gold.orders", "gold.Orders", "gold.sub.x", "goldx.y", "silver.a_b", "silver.aXb")
    for name in names[1:]:
        files_branch(store, name, "main")
    patterns = ("gold.*", "gold.orders", "*.orders", "gold?*", "*", "*.a_b", "[gs]*.?rders", "gold")
    for pattern in patterns:
        grant = Grant(actor="bo", role=Role.READER, datasets=(pattern,))
        shown = {str(dataset.name) for dataset in store.acting_for(grant).datasets()}
        assert shown == {name for name in names if fnmatchcase(name, pattern)}, pattern


def test_statement_gets_an_expression_for_each_table_that_it_reads_and_no_other() -> None:
    policy = ReadPolicy(actor="bo", role=Role.READER, branches=("main",), datasets=("gold.*",))

    def names(statement: str) -> list[str]:
        text = limited(statement, policy, "sqlite", "main")
        return [part.split()[-1] for part in text.split(" AS NOT MATERIALIZED")[:-1]]

    assert names("SELECT id FROM tags") == ["datasets", "transactions", "tags"]
    assert names("SELECT 1") == []
    assert names("WITH RECURSIVE up AS (SELECT 1) SELECT * FROM units, up") == ["units"]
    for statement in ("UPDATE tags SET name = 1", "select id from tags", " SELECT id FROM tags"):
        with pytest.raises(ValueError, match="a limited reader cannot run"):
            limited(statement, policy, "sqlite", "main")


# Tables that a limited token reads as a whole: their rows are found by ids that it may know.
WHOLE = {
    *("attempts", "condemned_objects", "holds", "log_counter", "store", "task_keys", "tickets"),
    *("versions", "working_objects"),
}


def test_each_table_is_limited_unless_it_is_known_to_name_nothing() -> None:
    policy = ReadPolicy(actor="bo", role=Role.READER, branches=("main",), datasets=("gold.*",))
    statements = {name: f"SELECT 1 FROM {name}" for name in metadata.tables}
    whole = {n for n, s in statements.items() if limited(s, policy, "sqlite", "main") == s}
    assert whole == WHOLE
    for name in ("tokens", "intents", "intent_branches"):
        assert f"{name} t WHERE 1 = 0" in limited(statements[name], policy, "sqlite", "main")


def test_document_loses_what_a_policy_hides_and_nothing_else() -> None:
    policy = ReadPolicy(actor="bo", role=Role.READER, branches=("main",), datasets=("gold.*",))
    document = {
        "outputs": ["gold.a", "hidden.b"],
        "inputs": [{"dataset": "gold.a", "branch": "side"}, {"dataset": "hidden.b"}],
        "transactions": {"gold.a": "t1", "hidden.b": "t2"},
        "fallback": ["main", "side"],
        "adopted_from": {"branch": "side", "transaction": "t3"},
        "labels": {"app/name": "x"},
        "rows": 3,
    }
    assert policy.shown_part(document) == {
        "outputs": ["gold.a"],
        "inputs": [{"dataset": "gold.a", "branch": None}],
        "transactions": {"gold.a": "t1"},
        "fallback": ["main"],
        "adopted_from": {"branch": None, "transaction": "t3"},
        "labels": {"app/name": "x"},
        "rows": 3,
    }
