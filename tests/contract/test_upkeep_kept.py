"""Content that cleanup keeps, rule by rule: it stays readable after any number of cleanups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.catalog.attempts import dispatch_attempt, set_attempt_scope
from headgate.catalog.datasets import create_tag
from headgate.catalog.jobspecs import publish_jobspecs
from headgate.errors import VersionExpired
from headgate.model.changes import Caller
from headgate.store.datasets import BranchHandle
from headgate.store.embedded import Store
from tests.support.stores import content, files_branch, hold_for_years, load_dataset, new_store, put
from tests.support.upkeep import (
    assert_untouched,
    condemned_locations,
    is_expired,
    let_days_pass,
    stored_keys,
    tidy,
    tidy_later,
    tidy_twice,
    why_kept,
)


@pytest.fixture
def store(catalog_url: str, tmp_path: Path) -> Iterator[Store]:
    with new_store(catalog_url, tmp_path) as store:
        yield store


@pytest.fixture
def branch(store: Store) -> BranchHandle:
    return files_branch(store)


def test_view_however_old_is_kept(store: Store, branch: BranchHandle) -> None:
    put(branch, a="1", b="2")
    let_days_pass(store, 4000)
    assert_untouched(store)
    assert content(branch) == {"a": "1", "b": "2"}


def test_history_within_the_time_to_retain_is_kept(store: Store, branch: BranchHandle) -> None:
    first = put(branch, a="1")
    put(branch, a="2")
    let_days_pass(store, 27)
    assert_untouched(store)
    assert content(branch, at=first) == {"a": "1"}


def test_deleted_branch_is_kept_and_restored_within_the_time_to_retain(
    store: Store, branch: BranchHandle
) -> None:
    put(branch, a="1")
    feature = branch.dataset.branch("feature").create(parent="master")
    first, last = put(feature, b="2"), put(feature, b="3")
    feature.delete()
    let_days_pass(store, 27)
    assert_untouched(store)
    feature.restore()
    let_days_pass(store, 60)
    tidy_twice(store)
    assert content(feature) == {"a": "1", "b": "3"}
    assert (feature.load().view, is_expired(feature, first)) == (last, True)


def test_deleted_branch_expires_after_the_time_to_retain(
    store: Store, branch: BranchHandle
) -> None:
    put(branch, a="1")
    other = files_branch(store, "raw.other")
    put(other, a="1")
    feature = branch.dataset.branch("feature").create(parent="master")
    put(feature, b="2")
    feature.delete()
    let_days_pass(store, 31)
    later = other.dataset.branch("feature").create(parent="master")
    put(later, b="3")
    later.delete()
    tidy_twice(store)
    with pytest.raises(VersionExpired):
        feature.restore()
    # On all datasets: what is left of the branch.
    store.restore_everywhere("feature")
    assert [str(b.dataset) for b in store.branches() if b.name == "feature"] == ["raw.other"]


def test_old_transaction_that_was_shown_until_lately_is_kept(
    store: Store, branch: BranchHandle
) -> None:
    oldest = put(branch, a="0")
    first = put(branch, a="1")
    let_days_pass(store, 300)
    put(branch, a="2")
    let_days_pass(store, 20)
    tidy_twice(store)
    assert content(branch, at=first) == {"a": "1"}
    assert is_expired(branch, oldest)


def test_history_of_a_child_whose_parent_is_deleted_is_kept(
    store: Store, branch: BranchHandle
) -> None:
    first = put(branch, a="1")
    put(branch, a="2")
    child = branch.dataset.branch("child").create(parent="master")
    branch.delete(force=True)
    let_days_pass(store, 20)
    assert_untouched(store)
    assert (content(child, at=first), content(child)) == ({"a": "1"}, {"a": "2"})


def test_transaction_that_a_reset_took_off_lately_can_be_returned_to(
    store: Store, branch: BranchHandle
) -> None:
    first, second, third = (put(branch, a=text) for text in "123")
    let_days_pass(store, 60)
    branch.reset(to=first)
    let_days_pass(store, 20)
    tidy_twice(store)
    assert is_expired(branch, second)
    branch.reset(to=third)
    assert content(branch) == {"a": "3"}


def test_tagged_transaction_is_kept(store: Store, branch: BranchHandle) -> None:
    first = put(branch, a="1")
    create_tag(store.database, load_dataset(store), "v1", at=first, caller=Caller(actor="ana"))
    put(branch, a="2")
    let_days_pass(store, 400)
    assert_untouched(store)
    assert content(branch, at=first) == {"a": "1"}


def test_open_transaction_and_its_base_are_kept(store: Store, branch: BranchHandle) -> None:
    put(branch, a="1")
    let_days_pass(store, 400)
    opened = branch.transaction()
    hold_for_years(store, opened.id)
    opened.write("b", b"2")
    let_days_pass(store, 300)
    assert_untouched(store)
    opened.write("c", b"3")
    opened.commit()
    assert content(branch) == {"a": "1", "b": "2", "c": "3"}


def test_running_job_keeps_the_transaction_it_reads(store: Store, branch: BranchHandle) -> None:
    first = put(branch, a="1")
    put(branch, a="2")
    let_days_pass(store, 400)
    database = store.database
    ref = dispatch_attempt(database, "build/1/job/0", actor="ana", lease_seconds=60).ref
    scope = {"branch": "master", "inputs": {"raw.scans": {"transaction": first}}, "outputs": {}}
    set_attempt_scope(database, ref, token="secret", scope=scope)
    tidy_later(store, 0)
    assert content(branch, at=first) == {"a": "1"}


def test_what_is_younger_than_the_grace_is_kept(store: Store, branch: BranchHandle) -> None:
    opened = branch.transaction()
    opened.write("a", b"1")
    opened.abort()
    store.trees.store(b"orphan")
    let_days_pass(store, 6.9)
    kept = why_kept(tidy(store))
    assert kept["version", "younger than the grace period"] == 1
    assert kept["object", "younger than the grace period"] == 1
    assert condemned_locations(store) == set()


def test_what_is_younger_than_the_oldest_live_attempt_is_kept(store: Store) -> None:
    store.trees.store(b"before")
    let_days_pass(store, 1)
    dispatch_attempt(store.database, "key", actor="ana", lease_seconds=90 * 24 * 3600)
    store.trees.store(b"since")
    let_days_pass(store, 40)
    cleaned = tidy(store)
    assert (cleaned.condemned, len(condemned_locations(store))) == (1, 1)
    assert why_kept(cleaned)["object", "younger than the grace period"] == 1


def test_object_that_a_kept_version_shares_stays(store: Store, branch: BranchHandle) -> None:
    put(branch, a="same", b="other")
    put(branch, b="new")
    let_days_pass(store, 400)
    put(branch, c="last")
    let_days_pass(store, 400)
    tidy_twice(store)
    assert content(branch) == {"a": "same", "b": "new", "c": "last"}


def test_bundle_that_a_jobspec_names_is_kept(store: Store, branch: BranchHandle) -> None:
    named, unnamed = "a" * 64, "b" * 64
    for digest in (named, unnamed):
        store.objects.put(f"bundles/{digest}.zip", b"code")
    publish_jobspecs(
        store.database,
        branch="master",
        repository="here",
        commit="c",
        clean=True,
        actor="ana",
        specs=[{"outputs": ["raw.made"], "jobspec": {"bundle": named}}],
    )
    let_days_pass(store, 400)
    assert [item.what for item in tidy_twice(store).items] == ["bundle"]
    assert stored_keys(store) == {f"bundles/{named}.zip"}


def test_foreign_keys_are_left_alone_and_named(store: Store) -> None:
    keys = ("tables/mine/x.parquet", "objects/readme", "notes/mine.txt")
    for key in keys:
        store.objects.put(key, b"12345")
    let_days_pass(store, 400)
    cleaned = tidy_twice(store)
    assert stored_keys(store) == set(keys)
    [kept] = cleaned.kept
    assert (kept.what, kept.bytes, set(kept.examples)) == ("unknown", 15, set(keys))


def test_empty_tree_needs_no_object(store: Store, branch: BranchHandle) -> None:
    branch.transaction().commit()
    let_days_pass(store, 400)
    assert_untouched(store)
    assert content(branch) == {}


def test_versions_of_two_datasets_with_one_tree_live_by_themselves(
    store: Store, branch: BranchHandle
) -> None:
    other = files_branch(store, "raw.other")
    first, _ = put(branch, a="1"), put(branch, a="2")
    put(other, a="1")
    let_days_pass(store, 400)
    tidy_twice(store)
    assert is_expired(branch, first)
    assert content(other) == {"a": "1"}
