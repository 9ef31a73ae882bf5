"""O08: three-way merge by key, cell by cell; all conflicts are listed, and change nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.catalog.merge_base import MERGED
from headgate.errors import Conflict, Invalid, MergeConflict, NotFound, TransactionNotCommitted
from headgate.model.failpoints import Failpoint
from headgate.model.nouns import PublicationKind
from headgate.store.embedded import Store
from headgate.testing.failpoints import calling_at
from tests.support.oracle import assert_rows_sound
from tests.support.rows import (
    GRAPH,
    KNOWS,
    PERSON,
    apply_text,
    graph_store,
    ids_of,
    insert_people,
    publications,
    rows_of,
)
from tests.support.stores import content, files_branch, put

_ABSENT = "delete from graph.person where id = 'k'"


def _set(age: int) -> str:
    return f"upsert into graph.person (id, name, age) values ('k', 'K', {age})"


def _fork(store: Store, *datasets: str) -> None:
    for name in datasets or (PERSON, KNOWS):
        store.dataset(name).branch("feature").create(parent="master")


def _ages(store: Store, branch: str = "master") -> dict[str, int]:
    return {row["id"]: row["age"] for row in rows_of(store, PERSON, branch)}


# Original age; change on the source and on the target (None: no change); result: an age, None
# for no row, or the kind of conflict.
_TABLE = [
    (1, None, None, 1),
    (1, _set(2), None, 2),
    (1, None, _set(3), 3),
    (1, _set(2), _set(2), 2),
    (1, _set(2), _set(3), "update_update"),
    (1, _ABSENT, None, None),
    (1, None, _ABSENT, None),
    (1, _ABSENT, _ABSENT, None),
    (1, _ABSENT, _set(3), "delete_update"),
    (1, _set(2), _ABSENT, "delete_update"),
    (None, _set(2), None, 2),
    (None, None, _set(3), 3),
    (None, _set(2), _set(2), 2),
    (None, _set(2), _set(3), "insert_insert"),
]


@pytest.mark.parametrize(("was", "theirs", "ours", "outcome"), _TABLE)
def test_o08_row_changed_on_each_side_merges_as_the_table_says(
    made_sqlite_url: str,
    tmp_path: Path,
    was: int | None,
    theirs: str | None,
    ours: str | None,
    outcome: int | str | None,
) -> None:
    with graph_store(made_sqlite_url, tmp_path, "other") as store:
        if was is not None:
            store.mutate("master", _set(was))
        _fork(store, PERSON)
        for branch, sql in (("feature", theirs), ("master", ours)):
            if sql is not None:
                store.mutate(branch, sql)
        # The target always has a commit of its own, so no merge is a fast-forward.
        store.mutate("master", insert_people("target-only"))
        if isinstance(outcome, str):
            before = rows_of(store, PERSON)
            with pytest.raises(MergeConflict) as refused:
                store.merge("feature", into="master")
            [conflict] = refused.value.facts["conflicts"]
            assert (conflict["kind"], conflict["key"]) == (outcome, {"id": "k"})
            assert rows_of(store, PERSON) == before
            return
        store.merge("feature", into="master")
        assert _ages(store).get("k") == outcome
        assert {"other", "target-only"} <= set(_ages(store))
        assert_rows_sound(store)


def test_o08_conflicts_of_all_tables_and_kinds_are_listed(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with graph_store(made_catalog_url, tmp_path, *"abcde") as store:
        store.mutate("master", "insert into graph.knows values (1, 'a', 'b')")
        _fork(store)
        store.mutate(
            "feature",
            "update graph.person set age = 1 where id = 'a';"
            "insert into graph.knows values (2, 'b', 'e'), (3, 'c', 'd'), (4, 'd', 'a'),"
            "(5, 'd', 'b')",
        )
        store.mutate(
            "master",
            "update graph.person set age = 2 where id = 'a';"
            "delete from graph.person where id = 'e';"
            "insert into graph.knows values (12, 'c', 'd'), (13, 'd', 'c'), (14, 'd', 'd')",
        )
        before = rows_of(store, PERSON), rows_of(store, KNOWS), len(publications(store))
        with pytest.raises(MergeConflict) as refused:
            store.merge("feature", into="master")
        kinds = sorted(conflict["kind"] for conflict in refused.value.facts["conflicts"])
        assert kinds == ["cardinality", "duplicate_unique", "orphan", "update_update"]
        with pytest.raises(MergeConflict):
            store.merge("feature", into="master", dry_run=True)
        after = rows_of(store, PERSON), rows_of(store, KNOWS), len(publications(store))
        assert after == before


def test_o08_merge_of_many_datasets_is_one_publication(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with graph_store(made_catalog_url, tmp_path, "a", "b") as store:
        _fork(store)
        store.mutate("feature", f"{insert_people('c')}; insert into graph.knows values (1,'c','a')")
        store.mutate("master", insert_people("z"))
        preview = store.merge("feature", into="master", dry_run=True)
        outcome = store.merge("feature", into="master", actor="bea")
        assert preview.counts == outcome.counts
        newest = publications(store)[0]
        assert (newest.kind, newest.actor) == (PublicationKind.MERGE, "bea")
        assert {str(m.dataset) for m in newest.moves} == {PERSON, KNOWS}
        assert ids_of(store, PERSON) == ["a", "b", "c", "z"]
        assert store.merge("feature", into="master").publication is None


def test_o08_fast_forward_only_points_to_the_source(made_catalog_url: str, tmp_path: Path) -> None:
    with graph_store(made_catalog_url, tmp_path, "a") as store:
        _fork(store)
        store.mutate("feature", "update graph.person set age = 9")
        outcome = store.merge("feature", into="master")
        assert outcome.counts[PERSON].to_json() == {"inserted": 0, "updated": 1, "deleted": 0}
        [ours], [theirs] = (
            store.dataset(PERSON).branch(name).history()[:1] for name in ("master", "feature")
        )
        assert ours.version == theirs.version
        assert ours.provenance["merged"]["transaction"] == theirs.id


def test_o08_fast_forward_that_orphans_rows_is_a_conflict(
    made_catalog_url: str, tmp_path: Path
) -> None:
    """The source adds an edge, the target deletes its node: only both tables show the conflict."""
    with graph_store(made_catalog_url, tmp_path, "a", "b") as store:
        _fork(store)
        store.mutate("feature", "insert into graph.knows values (1, 'a', 'b')")
        store.mutate("master", "delete from graph.person where id = 'b'")
        with pytest.raises(MergeConflict, match="dst = 'b' refers to no row"):
            store.merge("feature", into="master")


def test_o08_second_merge_starts_where_the_first_ended(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with graph_store(made_catalog_url, tmp_path, "k", "z") as store:
        _fork(store)
        store.mutate("master", "update graph.person set age = 5 where id = 'z'")
        store.mutate("feature", _set(2))
        store.merge("feature", into="master")
        store.mutate("master", _set(3))
        assert store.merge("feature", into="master").publication is None
        store.mutate("feature", insert_people("n"))
        store.merge("feature", into="master")
        assert _ages(store) == {"k": 3, "z": 5, "n": 7}
        store.merge("master", into="feature")
        assert _ages(store, "feature") == _ages(store)


def _merge_crosswise(store: Store, dataset: str, ours: str, theirs: str) -> None:
    """Merge two branches into each other as they were before: both states are newest bases."""
    master, feature = (store.dataset(dataset).branch(name) for name in ("master", "feature"))
    feature.create(parent="master")
    store.mutate("master", ours)
    first = master.load().view
    assert first is not None
    store.mutate("feature", theirs)
    store.merge("feature", into="master", datasets=[dataset])
    store.merge(first, into="feature")


@pytest.mark.parametrize("changed", ["feature", "master"])
def test_o08_row_at_which_merge_bases_differ_is_a_conflict_until_the_sides_agree(
    made_catalog_url: str, tmp_path: Path, changed: str
) -> None:
    with graph_store(made_catalog_url, tmp_path, "a", "b", "k") as store:
        _merge_crosswise(store, PERSON, _set(2), insert_people("f"))
        assert _ages(store) == _ages(store, "feature") == {"a": 7, "b": 7, "f": 7, "k": 2}
        # One base has the value that this side gives the row again, the other base has 2.
        store.mutate(changed, _set(7))
        store.mutate("feature", "delete from graph.person where id = 'a'")
        store.mutate("master", "update graph.person set age = 8 where id = 'b'")
        before = rows_of(store, PERSON)
        with pytest.raises(MergeConflict, match="id = 'k': both sides changed it") as caught:
            store.merge("feature", into="master")
        [conflict] = caught.value.facts["conflicts"]
        assert (conflict["kind"], conflict["key"]) == ("update_update", {"id": "k"})
        assert {conflict["source"]["age"], conflict["target"]["age"]} == {2, 7}
        assert rows_of(store, PERSON) == before
        other = "master" if changed == "feature" else "feature"
        store.mutate(other, _set(7))
        store.merge("feature", into="master")
        assert _ages(store) == {"b": 8, "f": 7, "k": 7}
        assert_rows_sound(store)


def test_o08_row_that_one_merge_base_lacks_is_not_deleted_silently(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with graph_store(made_catalog_url, tmp_path, "a") as store:
        _merge_crosswise(store, PERSON, insert_people("m"), insert_people("f"))
        for id in ("m", "f"):
            store.mutate("feature", f"delete from graph.person where id = '{id}'")
            with pytest.raises(MergeConflict, match=f"id = '{id}': one side deleted it"):
                store.merge("feature", into="master")
            store.mutate("master", f"delete from graph.person where id = '{id}'")
        store.mutate("feature", insert_people("n"))
        store.merge("feature", into="master")
        assert ids_of(store, PERSON) == ["a", "n"]


def test_o08_schema_in_which_merge_bases_differ_is_a_conflict_unless_the_sides_agree(
    made_sqlite_url: str, tmp_path: Path
) -> None:
    with graph_store(made_sqlite_url, tmp_path, "a") as store:
        _fork(store, PERSON)
        mail = GRAPH.replace('name = "string"', 'name = "string", mail = "string"')
        apply_text(store, mail)
        first = store.dataset(PERSON).branch("master").load().view
        assert first is not None
        store.mutate("feature", insert_people("f"))
        store.merge("feature", into="master", datasets=[PERSON])
        store.merge(first, into="feature")
        store.mutate("feature", "update graph.person set mail = 'm' where id = 'a'")
        more = mail.replace("mail =", 'tel = "string", mail =')
        apply_text(store, more)
        with pytest.raises(MergeConflict, match="both sides merged each other, from states"):
            store.merge("feature", into="master", datasets=[PERSON])
        store.rows.apply_schema_text(more, file="s", branch="feature>master")
        store.merge("feature", into="master", datasets=[PERSON])
        assert {row["id"]: row["mail"] for row in rows_of(store, PERSON)} == {"a": "m", "f": None}


def test_o08_rows_without_a_key_are_not_doubled_by_merges_crosswise(
    made_sqlite_url: str, tmp_path: Path
) -> None:
    with graph_store(made_sqlite_url, tmp_path) as store:
        apply_text(store, _LOG)
        insert = "insert into shop.log values ({})"
        _merge_crosswise(store, "shop.log", insert.format(1), insert.format(2))
        store.mutate("feature", insert.format(3))
        store.mutate("master", insert.format(4))
        with pytest.raises(MergeConflict, match="no key"):
            store.merge("feature", into="master")
        assert sorted(row["a"] for row in rows_of(store, "shop.log")) == [1, 2, 4]


_LOG = '[dataset."shop.log"]\ncolumns = {a = "int"}\n'


@pytest.mark.parametrize(
    ("theirs", "ours", "outcome"),
    [
        ("insert into shop.log values (2)", "insert into shop.log values (3)", [1, 2, 3]),
        ("insert into shop.log values (2)", "insert into shop.log values (2)", [1, 2, 2]),
        ("delete from shop.log", "insert into shop.log values (3)", None),
        ("insert into shop.log values (2)", "update shop.log set a = 9", None),
    ],
)
def test_o08_table_without_a_key_merges_appends_only(
    made_sqlite_url: str, tmp_path: Path, theirs: str, ours: str, outcome: list[int] | None
) -> None:
    with graph_store(made_sqlite_url, tmp_path) as store:
        apply_text(store, _LOG)
        store.mutate("master", "insert into shop.log values (1)")
        store.dataset("shop.log").branch("feature").create(parent="master")
        store.mutate("feature", theirs)
        store.mutate("master", ours)
        if outcome is None:
            with pytest.raises(MergeConflict, match="no key"):
                store.merge("feature", into="master")
            return
        store.merge("feature", into="master")
        assert sorted(row["a"] for row in rows_of(store, "shop.log")) == outcome


def test_o08_appended_files_are_re_used_where_nothing_else_changed(
    made_sqlite_url: str, tmp_path: Path
) -> None:
    with graph_store(made_sqlite_url, tmp_path, "a") as store:
        _fork(store, PERSON)
        store.mutate("feature", insert_people("b"))
        store.mutate("master", insert_people("c"))
        data = set((tmp_path / "warehouse").rglob("*.parquet"))
        store.merge("feature", into="master")
        assert set((tmp_path / "warehouse").rglob("*.parquet")) == data
        assert ids_of(store, PERSON) == ["a", "b", "c"]


def test_o08_columns_added_on_both_sides_keep_their_values(
    made_catalog_url: str, tmp_path: Path
) -> None:
    """Both branches assign one field id to different columns: rows match by column name."""
    with graph_store(made_catalog_url, tmp_path, "a", "b") as store:
        _fork(store)
        for branch, column in (("feature", "mail"), ("master", "city")):
            text = GRAPH.replace('name = "string"', f'name = "string", {column} = "string"')
            apply_text(store, text, branch=branch)
        store.mutate("feature", "update graph.person set mail = 'x@y' where id = 'a'")
        store.mutate("master", "update graph.person set city = 'Oslo' where id = 'b'")
        store.merge("feature", into="master")
        shown = {r["id"]: (r["city"], r["mail"]) for r in rows_of(store, PERSON)}
        assert shown == {"a": (None, "x@y"), "b": ("Oslo", None)}


def test_o08_schema_of_the_source_comes_along(made_catalog_url: str, tmp_path: Path) -> None:
    with graph_store(made_catalog_url, tmp_path, "a") as store:
        _fork(store)
        text = GRAPH.replace('name = "string"', 'label = {type = "string", renamed_from = "name"}')
        apply_text(store, text, branch="feature")
        store.mutate("master", insert_people("b"))
        store.merge("feature", into="master")
        assert [row["label"] for row in rows_of(store, PERSON)] == ["A", "B"]


def test_o08_dataset_new_on_the_source_comes_whole(made_catalog_url: str, tmp_path: Path) -> None:
    with graph_store(made_catalog_url, tmp_path, "a") as store:
        apply_text(store, _LOG, branch="feature>master")
        store.mutate("feature", "insert into shop.log values (4)")
        outcome = store.merge("feature", into="master")
        assert outcome.counts["shop.log"].inserted == 1
        assert rows_of(store, "shop.log") == [{"a": 4}]


def test_o08_merge_of_what_is_not_there_is_refused(made_sqlite_url: str, tmp_path: Path) -> None:
    with graph_store(made_sqlite_url, tmp_path) as store:
        with pytest.raises(NotFound, match="'nowhere'"):
            store.merge("nowhere", into="master")
        with pytest.raises(NotFound, match=r"no\.thing"):
            store.merge("master", into="feature", datasets=["no.thing"])
        with pytest.raises(NotFound, match="'mastre'"):
            store.merge("master", into="mastre")
        with pytest.raises(Invalid, match="itself"):
            store.merge("master", into="master")
        assert issubclass(MergeConflict, Conflict)


def test_o08_merge_from_a_transaction_of_a_deleted_branch_finds_the_base_by_ancestry(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with graph_store(made_catalog_url, tmp_path, "a") as store:
        _fork(store, PERSON)
        store.mutate("feature", insert_people("b"))
        first = store.dataset(PERSON).branch("feature").load().view
        store.mutate("feature", insert_people("c"))
        last = store.dataset(PERSON).branch("feature").load().view
        store.mutate("master", insert_people("m"))
        store.dataset(PERSON).branch("feature").delete()
        assert first is not None and last is not None
        outcome = store.merge(first, into="master")
        assert outcome.counts[PERSON].inserted == 1
        assert ids_of(store, PERSON) == ["a", "b", "m"]
        store.mutate("master", "delete from graph.person where id = 'b'")
        # The base is now what was merged: the row deleted since does not come back.
        store.merge(last, into="master")
        assert ids_of(store, PERSON) == ["a", "c", "m"]
        with pytest.raises(NotFound):
            store.merge(last, into="master", datasets=[KNOWS])
        assert_rows_sound(store)


def test_o08_merge_from_an_open_transaction_is_refused(
    made_sqlite_url: str, tmp_path: Path
) -> None:
    with graph_store(made_sqlite_url, tmp_path, "a") as store:
        _fork(store, PERSON)
        opened = store.dataset(PERSON).branch("feature").transaction()
        with pytest.raises(TransactionNotCommitted):
            store.merge(opened.id, into="master")


def test_o08_merge_has_what_its_source_shows_when_it_is_published(
    made_catalog_url: str, tmp_path: Path
) -> None:
    """A reader of both branches never sees a change of the source that the merge has missed."""
    with graph_store(made_catalog_url, tmp_path, "k") as store:
        _fork(store)
        store.mutate("feature", _set(1))

        def change_source() -> None:
            store.mutate("feature", _set(2))

        with calling_at(Failpoint.MUTATION_STAGED, change_source):
            merged = store.merge("feature", into="master")
        last = store.dataset(PERSON).branch("feature").load().view
        assert _ages(store)["k"] == _ages(store, "feature")["k"]
        made = store.dataset(PERSON).branch("master").history()[0]
        assert made.provenance[MERGED]["transaction"] == last and merged.losses == 1
        assert_rows_sound(store)


def test_o08_merge_of_files_has_what_its_source_shows_when_it_is_published(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with graph_store(made_catalog_url, tmp_path) as store:
        master = files_branch(store)
        put(master, a="1")
        feature = master.dataset.branch("feature").create(parent="master")
        put(feature, b="1")

        def change_source() -> None:
            put(feature, c="2")

        with calling_at(Failpoint.MUTATION_STAGED, change_source):
            store.merge("feature", into="master")
        assert content(master) == content(feature) == {"a": "1", "b": "1", "c": "2"}
