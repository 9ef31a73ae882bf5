"""Units over both databases: several datasets' transactions that end together, or not at all."""

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
        with store.transaction(branch="fresh") as unit:
            unit.dataset("raw.scans").write("x", b"1")
        fresh = master.dataset.branch("fresh")
        assert (fresh.load().parent, content(fresh)) == (None, {"x": "1"})
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
        second.delete()
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
        abort_transactions(store.database, [TransactionId(one.id)], actor="admin")
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
        protect_branch(store.database, "release", actor="admin")
        for name in ("master", "release"):
            with pytest.raises(BranchProtected):
                store.transaction(branch=name).dataset("raw.scans")
        assert [b.name for b in master.dataset.branches()] == ["master"]
