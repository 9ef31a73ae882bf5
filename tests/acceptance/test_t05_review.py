"""T05: review and `diff BRANCH` show exactly what the merge's dry run does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headgate.errors import MergeConflict
from headgate.model.access import Grant, Role
from headgate.server.web.page import Visit
from headgate.server.web.review_page import review_page
from headgate.store.embedded import Store
from headgate.store.rows import merge_target
from tests.support.pages import text_of, visit
from tests.support.rows import GRAPH, KNOWS, PERSON, apply_text, graph_store, insert_people
from tests.support.stores import files_branch, put
from tests.support.tables import iceberg_client

NESTED = """
[dataset."deep.events"]
columns.id = "long"
columns.tags = "list<string>"
columns.at = "struct<x: int, y: list<int>>"
columns.more = "map<string, long>"
key = ["id"]
"""


@pytest.fixture
def store(made_catalog_url: str, tmp_path: Path) -> Iterator[Store]:
    with graph_store(made_catalog_url, tmp_path, *"abc") as made:
        yield made


def fork(store: Store, name: str, parent: str, *datasets: str) -> None:
    for dataset in datasets or (PERSON, KNOWS):
        store.dataset(dataset).branch(name).create(parent=parent)


def events(rows: list[dict[str, Any]]) -> pa.Table:
    at = pa.struct([("x", pa.int32()), ("y", pa.list_(pa.int32()))])
    kinds = {"id": pa.int64(), "tags": pa.list_(pa.string()), "at": at}
    more = pa.map_(pa.string(), pa.int64())
    return pa.Table.from_pylist(rows, pa.schema([*kinds.items(), ("more", more)]))


def reviewed(store: Store, branch: str, into: str | None = None) -> dict[str, dict[str, Any]]:
    """Return the review by dataset, after comparing it with the dry run and with the page."""
    found = {one["dataset"]: one for one in store.review(branch, into=into)}
    target = into or merge_target(store, branch)
    page = text_of(review_page(visit(store, branch=branch, base=into or "")))
    try:
        counts = store.merge(branch, into=target, dry_run=True).counts
        conflicts = 0
    except MergeConflict as refused:
        counts = {}
        conflicts = len(refused.facts["conflicts"])
    assert sum(len(one["conflicts"]) for one in found.values()) == conflicts
    if not conflicts:
        assert found.keys() == counts.keys()
        for name, count in counts.items():
            told = found[name]["counts"]
            assert (count.inserted, count.updated, count.deleted) == (
                told["added"],
                told["changed"],
                told["removed"],
            )
    assert f"{len(found)} dataset" in page
    for name in (PERSON, KNOWS):
        assert (f">{name}</a>" in page) == (name in found)
    for one in found.values():
        for row in one["conflicts"]:
            assert row["kind"] and "Conflicts" in page
    return found


def test_t05_branch_off_a_branch_off_master_shows_its_own_changes_only(store: Store) -> None:
    fork(store, "develop", "master", PERSON)
    store.mutate("develop", insert_people("develop-only"))
    fork(store, "feature", "develop", PERSON)
    store.dataset(KNOWS).branch("feature").create(parent="master")
    store.mutate("feature", "update graph.person set age = 1 where id = 'a'")
    store.mutate("feature", "insert into graph.knows values (1, 'a', 'b')")
    found = reviewed(store, "feature")
    assert found[PERSON]["counts"] == {"from": 4, "to": 4, "added": 0, "removed": 0, "changed": 1}
    assert found[PERSON]["samples"]["changed"] == [
        {"key": {"id": "a"}, "from": {"age": 7}, "to": {"age": 1}}
    ]
    # Develop has no branch of it and falls back to master: one row is new, none is deleted.
    assert found[KNOWS]["counts"] == {"from": 0, "to": 1, "added": 1, "removed": 0, "changed": 0}
    store.merge("feature", into="develop")
    assert reviewed(store, "feature") == {}
    [branch] = [b for b in store.branches(KNOWS) if b.name == "develop"]
    assert branch.parent == "master"


def test_t05_base_that_moved_on_is_not_shown_as_the_branchs_change(store: Store) -> None:
    fork(store, "feature", "master")
    store.mutate("feature", insert_people("new"))
    store.mutate("master", insert_people("theirs") + "; delete from graph.person where id = 'b'")
    store.mutate("master", "insert into graph.knows values (1, 'a', 'c')")
    found = reviewed(store, "feature")
    assert list(found) == [PERSON]
    assert found[PERSON]["counts"] == {"from": 3, "to": 4, "added": 1, "removed": 0, "changed": 0}
    assert [row["id"] for row in found[PERSON]["samples"]["added"]] == ["new"]


def test_t05_conflicts_are_listed_with_the_rows_of_both_sides(store: Store) -> None:
    fork(store, "feature", "master")
    store.mutate("feature", "update graph.person set age = 1 where id = 'a'")
    store.mutate("feature", "insert into graph.knows values (1, 'a', 'b')")
    store.mutate("master", "update graph.person set age = 2 where id = 'a'")
    store.mutate("master", "delete from graph.person where id = 'b'")
    found = reviewed(store, "feature")
    [row] = found[PERSON]["conflicts"]
    assert (row["kind"], row["source"]["age"], row["target"]["age"]) == ("update_update", 1, 2)
    assert [one["kind"] for one in found[KNOWS]["conflicts"]] == ["orphan"]
    page = text_of(review_page(visit(store, branch="feature")))
    assert "2 conflicts" in page and "&#39;age&#39;: 2" in page.replace("&#34;", "&#39;")


def test_t05_large_table_says_that_its_conflicts_were_not_checked(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork(store, "feature", "master")
    store.mutate("feature", "update graph.person set age = 1 where id = 'a'")
    store.mutate("master", "update graph.person set age = 2 where id = 'a'")
    page = text_of(review_page(visit(store, branch="feature")))
    assert "1 conflict" in page and "not checked" not in page
    monkeypatch.setattr("headgate.server.web.review_page._ROWS_AT_MOST", 2)
    page = text_of(review_page(visit(store, branch="feature")))
    assert "1 conflict" not in page and "1 not checked for conflicts" in page
    assert "headgate merge feature --into master --dry-run" in page
    # The command line and the merge search all rows, whatever their number.
    assert [len(one["conflicts"]) for one in store.review("feature")] == [1]
    with pytest.raises(MergeConflict):
        store.merge("feature", into="master", dry_run=True)
    # What needs no rows is found on the page too.
    for branch, kind in (("feature", "int"), ("master", "string")):
        text = GRAPH.replace('name = "string"', f'name = "string", more = "{kind}"')
        apply_text(store, text, branch=branch)
    page = text_of(review_page(visit(store, branch="feature")))
    assert "1 conflict" in page and "not checked" not in page


def test_t05_large_table_dropped_on_one_side_is_a_conflict_on_the_page(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate.server.web.review_page._ROWS_AT_MOST", 2)
    fork(store, "feature", "master")
    store.mutate("feature", insert_people("new"))
    with iceberg_client(store, "master") as client:
        client.drop_table(KNOWS)
        client.drop_table(PERSON)
    page = text_of(review_page(visit(store, branch="feature")))
    assert "one side dropped it" in page and "1 conflict" in page


def test_t05_branch_without_changes_shows_nothing(store: Store) -> None:
    fork(store, "feature", "master")
    assert reviewed(store, "feature") == {}
    store.mutate("master", insert_people("later"))
    assert reviewed(store, "feature") == {}


def test_t05_nested_types_are_shown_and_conflict(store: Store) -> None:
    apply_text(store, GRAPH + NESTED)
    rows = [{"id": 1, "tags": ["a"], "at": {"x": 1, "y": [1]}, "more": [("k", 1)]}]
    store.load("master", {"deep.events": events(rows)})
    fork(store, "feature", "master", "deep.events")
    theirs = [rows[0] | {"at": {"x": 2, "y": [1, 2]}}, rows[0] | {"id": 2, "tags": None}]
    store.load("feature", {"deep.events": events(theirs)}, mode="merge")
    found = reviewed(store, "feature")["deep.events"]
    assert (found["counts"]["added"], found["counts"]["changed"]) == (1, 1)
    [changed] = found["samples"]["changed"]
    assert changed["to"] == {"at": {"x": 2, "y": [1, 2]}}
    store.load("master", {"deep.events": events([rows[0] | {"tags": ["b"]}])}, mode="merge")
    [conflict] = reviewed(store, "feature")["deep.events"]["conflicts"]
    assert conflict["target"]["tags"] == ["b"] and conflict["source"]["at"]["y"] == [1, 2]


def test_t05_datasets_only_on_the_branch_dropped_there_and_files(store: Store) -> None:
    scans = files_branch(store)
    put(scans, **{"a.csv": "1", "b.csv": "2"})
    fork(store, "feature", "master", PERSON, KNOWS, "raw.scans")
    put(store.dataset("raw.scans").branch("feature"), **{"b.csv": "changed", "c.csv": "3"})
    put(scans, **{"d.csv": "4"})
    apply_text(store, NESTED, branch="feature")
    store.load("feature", {"deep.events": [{"id": 1, "tags": ["a"]}]})
    with iceberg_client(store, "feature") as client:
        client.drop_table(KNOWS)
    found = reviewed(store, "feature")
    assert set(found) == {"deep.events", KNOWS, "raw.scans"}
    assert found["raw.scans"]["counts"] == {
        "from": 3,
        "to": 4,
        "added": 1,
        "removed": 0,
        "changed": 1,
    }
    assert found["deep.events"]["counts"]["added"] == 1
    page = text_of(review_page(visit(store, branch="feature")))
    assert "A merge drops it on master." in page
    put(scans, **{"b.csv": "other"})
    [conflict] = reviewed(store, "feature")["raw.scans"]["conflicts"]
    assert conflict["path"] == "b.csv"


def test_t05_limited_reader_sees_conflicts_without_hidden_names(store: Store) -> None:
    fork(store, "feature", "master")
    store.mutate("feature", "insert into graph.knows values (1, 'a', 'b')")
    store.mutate("master", "delete from graph.person where id = 'b'")
    grant = Grant(actor="bo", role=Role.READER, datasets=(KNOWS,))
    reader = store.acting_for(grant)
    [found] = reader.review("feature")
    assert (found["dataset"], [c["kind"] for c in found["conflicts"]]) == (KNOWS, ["hidden"])
    page = text_of(review_page(Visit(store=reader, grant=grant, query={"branch": "feature"})))
    assert PERSON not in page and KNOWS in page


def test_t05_limited_reader_reviews_a_branch_beside_merges_of_hidden_ones(store: Store) -> None:
    for name in ("feature", "secret"):
        fork(store, name, "master", PERSON)
        store.mutate(name, insert_people(name))
    store.mutate("master", insert_people("theirs"))
    store.merge("secret", into="master")
    grant = Grant(actor="bo", role=Role.READER, reads=("master", "feature"))
    [found] = store.acting_for(grant).review("feature")
    assert (found["counts"]["added"], found["conflicts"]) == (1, [])
