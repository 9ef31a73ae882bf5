"""Units on both databases: transactions of several datasets that end together, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.catalog.branches import protect_branch
from headgate.catalog.transactions import abort_transactions
from headgate.errors import (
    BranchProtected,
    Invalid,
    OpenTransactionAlreadyExists,
    TransactionNotOpen,
)
from headgate.model.changes import Caller
from headgate.model.ids import TransactionId
from headgate.model.nouns import TransactionState
from tests.support.oracle import assert_store_sound
from tests.support.stores import content, expire_just_now, files_branch, load, new_store, put


def test_unit_commits_all_its_datasets_in_one_publication(catalog_url: str, tmp_path: Path) -> None:
    with new_store(catalog_url, tmp_path) as store:
        first, second = files_branch(store, "raw.a"), files_branch(store, "raw.b")
        unit = store.transaction(branch="master")
        unit.dataset("raw.a").write("x", b"1")
        unit.dataset("raw.b").write("y", b"2")
        assert unit.dataset("raw.a").id == first.load().head
        assert (content(first), content(second)) == ({}, {})
        receipt = unit.commit()
        assert set(receipt.transactions) == {first.load().id, second.load().id}
        assert (content(first), content(second)) == ({"x": "1"}, {"y": "2"})
        with pytest.raises(TransactionNotOpen):
            unit.dataset("raw.a")
        assert_store_sound(store)


def test_unit_makes_a_missing_branch_at_its_first_write(catalog_url: str, tmp_path: Path) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master = files_branch(store)
        with store.transaction(branch="fresh", create=True) as unit:
            unit.dataset("raw.scans").write("x", b"1")
        fresh = master.dataset.branch("fresh")
        assert (fresh.load().parent, content(fresh)) == (None, {"x": "1"})
        assert_store_sound(store)


def test_unit_that_is_aborted_takes_the_branches_along_that_it_made(
    catalog_url: str, tmp_path: Path
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        datasets = [files_branch(store, name).dataset for name in ("raw.a", "raw.b")]
        unit = store.transaction(branch="fresh", create=True)
        unit.dataset("raw.a").write("x", b"1")
        unit.dataset("raw.b")
        unit.abort()
        assert [[b.name for b in each.branches()] for each in datasets] == [["master"]] * 2
        assert_store_sound(store)


def test_unit_that_is_aborted_leaves_a_branch_that_others_use(
    catalog_url: str, tmp_path: Path
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        dataset = files_branch(store).dataset
        lost = store.transaction(branch="fresh", create=True)
        expire_just_now(store, lost.dataset("raw.scans").id)
        held = dataset.branch("fresh").transaction()
        held.write("x", b"of another")
        store.recover()
        held.commit()
        with pytest.raises(TransactionNotOpen):
            lost.abort()
        store.recover()
        assert content(dataset.branch("fresh")) == {"x": "of another"}
        assert_store_sound(store)


def test_unit_that_died_leaves_its_empty_branches_to_recovery(
    catalog_url: str, tmp_path: Path
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        datasets = [files_branch(store, name).dataset for name in ("raw.a", "raw.b")]
        dead = store.transaction(branch="fresh", create=True)
        dead.dataset("raw.a")
        expire_just_now(store, dead.dataset("raw.b").id)
        put(datasets[1].branch("fresh"), y="of another")
        store.recover(dry_run=True)
        assert datasets[0].branch("fresh").exists()
        store.recover()
        assert [datasets[n].branch("fresh").exists() for n in (0, 1)] == [False, True]
        assert_store_sound(store)


def test_unit_that_fails_leaves_nothing_visible(catalog_url: str, tmp_path: Path) -> None:
    with new_store(catalog_url, tmp_path) as store:
        branches = [files_branch(store, name) for name in ("raw.a", "raw.b")]
        with pytest.raises(RuntimeError), store.transaction(branch="master") as unit:
            opened = [unit.dataset(name) for name in ("raw.a", "raw.b")]
            opened[0].write("x", b"1")
            raise RuntimeError("user code")
        assert [load(store, t.id).state for t in opened] == [TransactionState.ABORTED] * 2
        assert [content(branch) for branch in branches] == [{}, {}]
        assert_store_sound(store)


def test_unit_whose_commit_is_refused_gives_its_branches_back(
    catalog_url: str, tmp_path: Path
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        branches = [files_branch(store, name) for name in ("raw.a", "raw.b")]
        with pytest.raises(BranchProtected), store.transaction(branch="master") as unit:
            opened = [unit.dataset(name) for name in ("raw.a", "raw.b")]
            opened[0].write("x", b"1")
            store.protect("master")
        assert [load(store, t.id).state for t in opened] == [TransactionState.ABORTED] * 2
        assert [branch.load().is_open for branch in branches] == [False, False]
        assert_store_sound(store)


def test_unit_that_lost_one_transaction_during_its_block_gives_the_rest_back(
    catalog_url: str, tmp_path: Path
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        first, second = files_branch(store, "raw.a"), files_branch(store, "raw.b")
        with pytest.raises(TransactionNotOpen), store.transaction(branch="master") as unit:
            unit.dataset("raw.a").write("x", b"1")
            expire_just_now(store, unit.dataset("raw.b").id)
            put(second, y="of another")
        assert (content(first), content(second)) == ({}, {"y": "of another"})
        assert [branch.load().is_open for branch in (first, second)] == [False, False]
        assert_store_sound(store)


def test_unit_that_lost_one_transaction_cannot_commit_the_rest(
    catalog_url: str, tmp_path: Path
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        first, second = files_branch(store, "raw.a"), files_branch(store, "raw.b")
        unit = store.transaction(branch="master")
        kept, lost = unit.dataset("raw.a"), unit.dataset("raw.b")
        kept.write("x", b"1")
        expire_just_now(store, lost.id)
        put_in = second.transaction()
        with pytest.raises(TransactionNotOpen):
            unit.commit()
        assert load(store, kept.id).state is TransactionState.ABORTED
        assert content(first) == {}
        put_in.commit()
        assert_store_sound(store)


def test_unit_whose_branch_was_deleted_cannot_commit_the_rest(
    catalog_url: str, tmp_path: Path
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        first, second = files_branch(store, "raw.a"), files_branch(store, "raw.b")
        unit = store.transaction(branch="master")
        unit.dataset("raw.a").write("x", b"1")
        unit.dataset("raw.b").write("y", b"1")
        second.delete(force=True)
        with pytest.raises(TransactionNotOpen):
            unit.commit()
        assert content(first) == {}


def test_transaction_of_a_unit_does_not_end_alone(catalog_url: str, tmp_path: Path) -> None:
    with new_store(catalog_url, tmp_path) as store:
        for name in ("raw.a", "raw.b"):
            files_branch(store, name)
        unit = store.transaction(branch="master")
        one, two = unit.dataset("raw.a"), unit.dataset("raw.b")
        for end in (one.commit, one.abort):
            with pytest.raises(Invalid):
                end()
        abort_transactions(store.database, [TransactionId(one.id)], caller=Caller(actor="admin"))
        assert load(store, two.id).state is TransactionState.ABORTED


def test_another_unit_takes_over_every_branch_of_an_expired_one(
    catalog_url: str, tmp_path: Path
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        for name in ("raw.a", "raw.b"):
            files_branch(store, name)
        dead = store.transaction(branch="master")
        held = [dead.dataset(name).id for name in ("raw.a", "raw.b")]
        for id in held:
            expire_just_now(store, id)
        with store.transaction(branch="master") as unit:
            unit.dataset("raw.a").write("x", b"1")
            unit.dataset("raw.b").write("x", b"1")
        assert_store_sound(store)


def test_unit_meets_a_held_or_protected_branch_like_anybody(
    catalog_url: str, tmp_path: Path
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master = files_branch(store)
        put(master, a="1")
        held = master.transaction()
        with pytest.raises(OpenTransactionAlreadyExists):
            store.transaction(branch="master").dataset("raw.scans")
        held.abort()
        protect_branch(store.database, "master", actor="admin")
        files_branch(store, "raw.other", branch="release")
        protect_branch(store.database, "release", actor="admin")
        for name in ("master", "release"):
            with pytest.raises(BranchProtected):
                store.transaction(branch=name).dataset("raw.scans")
        assert [b.name for b in master.dataset.branches()] == ["master"]
