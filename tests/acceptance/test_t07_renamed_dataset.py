"""T07: history, moments, diff and merge follow a renamed dataset to its earlier name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from headgate.errors import MergeConflict, NotInHistory
from headgate.model.access import make_grant
from headgate.store.documents import Json
from headgate.store.embedded import Store
from headgate.upkeep.doctor import check_rows
from tests.support.rows import apply_text, ids_of, publications, rows_of, table_store
from tests.support.tables import iceberg_client

ITEM, THING, PART = "shop.item", "shop.thing", "shop.part"
Rename = Callable[[Store, str, str, str], None]


def _by_iceberg(store: Store, branch: str, old: str, new: str) -> None:
    with iceberg_client(store, branch) as client:
        client.rename_table(old, new)


def _by_schema(store: Store, branch: str, old: str, new: str) -> None:
    columns = 'columns = {id = "long", x = "int"}\nkey = ["id"]'
    text = f'[dataset."{new}"]\nrenamed_from = "{old}"\n{columns}'
    apply_text(store, text, branch=branch)


@pytest.fixture(params=[_by_iceberg, _by_schema], ids=["iceberg", "schema"])
def rename(request: pytest.FixtureRequest) -> Rename:
    found: Rename = request.param
    return found


def _shop(catalog_url: str, root: Path) -> Store:
    """Create a store with a table of two rows on master, and a branch `feature` of it."""
    store = table_store(catalog_url, root, ITEM, {"x": "int"})
    store.mutate("master", f"insert into {ITEM} values (1, 1), (2, 2)")
    store.dataset(ITEM).branch("feature").create(parent="master")
    return store


def _insert(store: Store, branch: str, name: str, id: int, x: int = 0) -> str:
    store.mutate(branch, f"insert into {name} values ({id}, {x})")
    view = store.dataset(name).branch(branch).load().view
    assert view is not None
    return view


def _history(store: Store, name: str, branch: str = "master") -> list[tuple[str, str]]:
    return [(str(t.dataset), t.id) for t in store.dataset(name).branch(branch).history()]


def _differences(store: Store, before: str, after: str) -> list[Json]:
    found = store.differences(before, after)
    assert isinstance(found, list)
    return found


def _tables(store: Store, context: str) -> list[str]:
    with iceberg_client(store, context) as client:
        return sorted(name for _, name in client.list_tables("shop"))


def test_t07_history_and_moments_follow_a_rename(
    made_catalog_url: str, tmp_path: Path, rename: Rename
) -> None:
    with _shop(made_catalog_url, tmp_path) as store:
        before = _history(store, ITEM)
        moment = publications(store)[0].number
        rename(store, "master", ITEM, THING)
        later = _insert(store, "master", THING, 3)

        found = _history(store, THING)
        assert found[0] == (THING, later)
        assert [name for name, _ in found[:2]] == [THING, THING]
        assert found[2:] == before
        limited = store.dataset(THING).branch("master").history(limit=3)
        assert [t.id for t in limited] == [id for _, id in found[:3]]

        # The moment lists the name of then; the new name leads there too.
        assert (_tables(store, f"master@{moment}"), _tables(store, "master")) == (
            ["item"],
            ["thing"],
        )
        for name in (ITEM, THING):
            shown = store.dataset(name).show(f"master@{moment}", rows=9)
            assert (shown["transaction"], shown["row_count"]) == (before[0][1], 2)
        # Other branches keep the old name.
        assert _tables(store, "feature") == ["item"]
        assert ids_of(store, ITEM, "feature") == [1, 2]
        with pytest.raises(NotInHistory):
            store.dataset(THING).branch("master").reset(to=before[0][1])
        checks = store.database.read(lambda connection: check_rows(connection, deep=True))
        assert [check for check in checks if not check.ok] == []


def test_t07_diff_compares_the_names_of_one_table(
    made_catalog_url: str, tmp_path: Path, rename: Rename
) -> None:
    with _shop(made_catalog_url, tmp_path) as store:
        moment = publications(store)[0].number
        rename(store, "feature", ITEM, THING)
        [only_renamed] = _differences(store, "master", "feature")
        assert (only_renamed["dataset"], only_renamed["renamed_from"]) == (THING, ITEM)
        assert only_renamed["identical"]
        _insert(store, "feature", THING, 3)

        [listed] = _differences(store, "master", "feature")
        one = store.differences("master", "feature", dataset=THING)
        past = store.differences(f"feature@{moment}", "feature", dataset=THING)
        for found in (listed, one, past):
            assert isinstance(found, dict)
            assert (found["dataset"], found["renamed_from"]) == (THING, ITEM)
            counts = found["counts"]
            assert (counts["added"], counts["removed"], counts["changed"]) == (1, 0, 0)
        [back] = _differences(store, "feature", "master")
        assert (back["dataset"], back["renamed_from"]) == (ITEM, THING)
        assert back["counts"]["removed"] == 1


def test_t07_merge_carries_a_rename_to_rows_that_changed_since(
    made_catalog_url: str, tmp_path: Path, rename: Rename
) -> None:
    with _shop(made_catalog_url, tmp_path) as store:
        rename(store, "feature", ITEM, THING)
        _insert(store, "feature", THING, 3)
        store.mutate("feature", f"update {THING} set x = 20 where id = 2")
        old = _insert(store, "master", ITEM, 4)
        store.mutate("master", f"update {ITEM} set x = 10 where id = 1")

        before = len(publications(store))
        outcome = store.merge("feature", into="master")
        assert len(publications(store)) == before + 1
        assert outcome.counts[THING].inserted == 1
        assert _tables(store, "master") == ["thing"]
        merged = [{"id": i, "x": x} for i, x in ((1, 10), (2, 20), (3, 0), (4, 0))]
        assert rows_of(store, THING) == merged
        assert (ITEM, old) in _history(store, THING)

        # The next merges of both directions start from what was merged.
        store.mutate("master", f"delete from {THING} where id = 3")
        _insert(store, "feature", THING, 5)
        store.merge("feature", into="master")
        assert ids_of(store, THING) == [1, 2, 4, 5]
        store.merge("master", into="feature")
        assert rows_of(store, THING, "feature") == rows_of(store, THING)
        assert store.merge("feature", into="master").publication is None


def test_t07_merge_of_the_old_name_changes_the_new_one(
    made_catalog_url: str, tmp_path: Path, rename: Rename
) -> None:
    with _shop(made_catalog_url, tmp_path) as store:
        rename(store, "feature", ITEM, THING)
        _insert(store, "feature", THING, 3)
        _insert(store, "master", ITEM, 4)
        store.merge("master", into="feature")
        assert ids_of(store, THING, "feature") == [1, 2, 3, 4]
        assert (_tables(store, "feature"), _tables(store, "master")) == (["thing"], ["item"])

        store.mutate("feature", f"update {THING} set x = 40 where id = 4")
        _insert(store, "master", ITEM, 5)
        store.merge("master", into="feature")
        assert ids_of(store, THING, "feature") == [1, 2, 3, 4, 5]
        store.merge("feature", into="master")
        assert rows_of(store, THING) == rows_of(store, THING, "feature")
        assert _tables(store, "master") == ["thing"]


def test_t07_merge_of_a_rename_alone_keeps_the_rows_of_the_target(
    made_sqlite_url: str, tmp_path: Path, rename: Rename
) -> None:
    with _shop(made_sqlite_url, tmp_path) as store:
        rename(store, "feature", ITEM, THING)
        _insert(store, "master", ITEM, 3)
        assert store.merge("feature", into="master", dry_run=True).publication is None
        [review] = store.review("feature")
        assert (review["dataset"], review["renamed_from"]) == (THING, ITEM)
        assert review["counts"] == {"from": 3, "to": 3, "added": 0, "removed": 0, "changed": 0}
        store.merge("feature", into="master")
        assert store.review("feature") == []
        assert (_tables(store, "master"), ids_of(store, THING)) == (["thing"], [1, 2, 3])
        _insert(store, "master", THING, 4)


def test_t07_conflicts_of_a_renamed_table_are_listed_under_its_new_name(
    made_sqlite_url: str, tmp_path: Path
) -> None:
    with _shop(made_sqlite_url, tmp_path) as store:
        _by_schema(store, "feature", ITEM, THING)
        store.mutate("feature", f"update {THING} set x = 7 where id = 1")
        store.mutate("master", f"update {ITEM} set x = 8 where id = 1")
        with pytest.raises(MergeConflict) as refused:
            store.merge("feature", into="master")
        [conflict] = refused.value.facts["conflicts"]
        assert (conflict["dataset"], conflict["kind"]) == (THING, "update_update")
        assert _tables(store, "master") == ["item"]

        _by_schema(store, "master", ITEM, PART)
        with pytest.raises(MergeConflict, match=PART) as refused:
            store.merge("feature", into="master")
        assert "renamed" in {one["kind"] for one in refused.value.facts["conflicts"]}
        assert _tables(store, "master") == ["part"]


def test_t07_two_renames_and_one_back_are_one_history(
    made_catalog_url: str, tmp_path: Path, rename: Rename
) -> None:
    with _shop(made_catalog_url, tmp_path) as store:
        first = _history(store, ITEM)
        rename(store, "master", ITEM, THING)
        second = _insert(store, "master", THING, 3)
        moment = publications(store)[0].number
        rename(store, "master", THING, PART)
        third = _insert(store, "master", PART, 4)
        found = _history(store, PART)
        assert found[0] == (PART, third) and found[2] == (THING, second)
        assert found[4:] == first
        assert store.dataset(PART).show(f"master@{moment}")["row_count"] == 3
        assert store.dataset(PART).show(f"master@{moment - 2}")["row_count"] == 2

        rename(store, "master", PART, ITEM)
        last = _insert(store, "master", ITEM, 5)
        assert _tables(store, "master") == ["item"]
        back = _history(store, ITEM)
        assert (back[0], back[2:]) == ((ITEM, last), found)
        _insert(store, "feature", ITEM, 6)
        store.merge("feature", into="master")
        assert ids_of(store, ITEM) == [1, 2, 3, 4, 5, 6]


def test_t07_reader_without_the_earlier_name_gets_the_history_of_the_new_one(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with _shop(made_catalog_url, tmp_path) as store:
        _by_iceberg(store, "master", ITEM, THING)
        _insert(store, "master", THING, 3)
        grant = make_grant("bo", "reader", branches=["*"], reads=["*"], datasets=[THING])
        limited = store.acting_for(grant)
        assert {name for name, _ in _history(limited, THING)} == {THING}
