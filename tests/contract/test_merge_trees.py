"""Merge of trees of files: three-way by path, conflicts are listed and change nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from headgate.errors import MergeConflict
from headgate.store.datasets import BranchHandle
from headgate.store.embedded import Store
from tests.support.oracle import assert_store_sound
from tests.support.stores import DATASET, content, files_branch, load, new_store, put

Files = Mapping[str, str]

# Content at the base, on the source and on the target; result: a text, None for no file, or
# the kind of conflict. None is an absent file.
_TABLE = [
    ("1", "1", "1", "1"),
    ("1", "2", "1", "2"),
    ("1", "1", "3", "3"),
    ("1", "2", "2", "2"),
    ("1", "2", "3", "!update_update"),
    ("1", None, "1", None),
    ("1", "1", None, None),
    ("1", None, None, None),
    ("1", None, "3", "!delete_update"),
    ("1", "2", None, "!delete_update"),
    (None, "2", None, "2"),
    (None, None, "3", "3"),
    (None, "2", "2", "2"),
    (None, "2", "3", "!insert_insert"),
]


def _become(branch: BranchHandle, files: Files) -> None:
    """Make the branch show exactly these files."""
    here = content(branch)
    gone = sorted(here.keys() - files.keys())
    if gone:
        branch.remove(*gone)
    changed = {path: text for path, text in files.items() if here.get(path) != text}
    if changed:
        put(branch, **changed)


def _parted(store: Store, base: Files, source: Files, target: Files) -> BranchHandle:
    """Create master with the target's files, and a branch `feature` with the source's."""
    master = files_branch(store)
    put(master, **base)
    feature = store.dataset(DATASET).branch("feature").create(parent="master")
    _become(feature, source)
    _become(master, target)
    return master


def _named(side: int) -> dict[str, str]:
    """Return the files of one column of the table, with a path for each row."""
    # One unchanged file keeps every tree from being empty.
    cells = {f"f{n}": row[side] for n, row in enumerate(_TABLE)}
    return {"kept": "0"} | {path: text for path, text in cells.items() if text is not None}


def _only(cells: list[int]) -> list[dict[str, str]]:
    paths = {"kept", *(f"f{n}" for n in cells)}
    return [{p: t for p, t in _named(side).items() if p in paths} for side in range(4)]


def test_merge_of_trees_follows_the_table(made_catalog_url: str, tmp_path: Path) -> None:
    peaceful = [n for n, row in enumerate(_TABLE) if not (row[3] or "").startswith("!")]
    base, source, target, expected = _only(peaceful)
    with new_store(made_catalog_url, tmp_path) as store:
        master = _parted(store, base, source, target)
        before = content(store.dataset(DATASET).branch("feature"))
        outcome = store.merge("feature", into="master")
        assert content(master) == expected
        assert outcome.counts[DATASET].to_json() == {"inserted": 1, "updated": 1, "deleted": 1}
        assert content(store.dataset(DATASET).branch("feature")) == before
        assert store.merge("feature", into="master").publication is None
        assert_store_sound(store)


def test_merge_of_trees_lists_every_conflict_and_changes_nothing(
    made_catalog_url: str, tmp_path: Path
) -> None:
    told = {f"f{n}": row[3] or "" for n, row in enumerate(_TABLE)}
    kinds = {path: text[1:] for path, text in told.items() if text.startswith("!")}
    with new_store(made_catalog_url, tmp_path) as store:
        master = _parted(store, *(_named(side) for side in range(3)))
        for dry_run in (True, False):
            with pytest.raises(MergeConflict) as refused:
                store.merge("feature", into="master", dry_run=dry_run)
            conflicts = refused.value.facts["conflicts"]
            assert {one["path"]: one["kind"] for one in conflicts} == kinds
            assert all(one["dataset"] == DATASET for one in conflicts)
        assert content(master) == _named(2)
        assert_store_sound(store)


def test_merge_of_trees_where_a_file_meets_a_directory_is_a_conflict(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        master = _parted(store, {"a": "1"}, {"a": "1", "d/x": "2"}, {"a": "1", "d": "3"})
        with pytest.raises(MergeConflict, match="'d' is a file"):
            store.merge("feature", into="master")
        assert content(master) == {"a": "1", "d": "3"}


def test_merge_of_trees_starts_where_the_last_one_ended(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        master = _parted(store, {"a": "1"}, {"a": "1", "b": "2"}, {"a": "1", "c": "3"})
        store.merge("feature", into="master")
        put(store.dataset(DATASET).branch("feature"), b="4")
        put(master, c="5")
        store.merge("feature", into="master")
        assert content(master) == {"a": "1", "b": "4", "c": "5"}
        assert_store_sound(store)


def test_merge_of_trees_at_a_path_where_merge_bases_differ_is_a_conflict(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        master = _parted(store, {"a": "1", "b": "1"}, {"a": "1", "b": "2"}, {"a": "2", "b": "1"})
        feature, first = store.dataset(DATASET).branch("feature"), master.load().view
        assert first is not None
        store.merge("feature", into="master")
        store.merge(first, into="feature")
        assert content(master) == content(feature) == {"a": "2", "b": "2"}
        for path in ("a", "b"):
            # One of the merge bases has this content, the other has "2".
            put(feature, **{path: "1", "c": path})
            with pytest.raises(MergeConflict, match=f"'{path}': both sides changed it"):
                store.merge("feature", into="master")
            put(master, **{path: "1"})
        store.merge("feature", into="master")
        assert content(master) == {"a": "1", "b": "1", "c": "b"}
        assert_store_sound(store)


def test_merge_that_only_points_to_a_tree_says_what_it_did(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        master = _parted(store, {"a": "1", "b": "1"}, {"b": "1", "c": "2"}, {"a": "1", "b": "1"})
        put(store.dataset(DATASET).branch("feature"), d="3")
        outcome = store.merge("feature", into="master")
        assert outcome.counts[DATASET].to_json() == {"inserted": 2, "updated": 0, "deleted": 1}
        shown = load(store, str(master.load().view))
        # The merge both adds and removes, although the source's last step only added.
        assert shown.type == "SNAPSHOT"
        assert content(master) == {"b": "1", "c": "2", "d": "3"}
        assert_store_sound(store)
