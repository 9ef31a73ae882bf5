"""F12: a branch that forks from a branch with an OPEN head shares that transaction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headgate.builds.attempt import JobWork
from headgate.catalog.branches import delete_branches
from headgate.catalog.log import list_events, list_publications
from headgate.errors import OpenTransactionAlreadyExists, TransactionNotOpen
from headgate.model.changes import Caller
from headgate.model.nouns import Publication, TransactionState
from headgate.store.datasets import BranchHandle
from headgate.store.embedded import Store
from headgate.store.transactions import TransactionHandle
from tests.support.oracle import assert_rows_sound, assert_store_sound
from tests.support.pipelines import FileJobs, build, files_spec, publish, states
from tests.support.stores import (
    branches_by_name,
    content,
    expire_just_now,
    files_branch,
    load,
    new_store,
    put,
)


def _shared(store: Store) -> tuple[BranchHandle, BranchHandle, TransactionHandle, str]:
    """Create master with an OPEN transaction, and a child that forks from it."""
    master = files_branch(store)
    view = put(master, a="1")
    opened = master.transaction()
    opened.write("b", b"2")
    child = master.dataset.branch("child").create(parent="master")
    return master, child, opened, view


def _newest(store: Store) -> Publication:
    return store.database.read(lambda c: list_publications(c, limit=1))[0]


def test_f12_child_shares_head_and_view_while_it_is_open(catalog_url: str, tmp_path: Path) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master, child, opened, view = _shared(store)
        for branch in (master, child):
            assert (branch.load().head, branch.load().view) == (opened.id, view)
            assert content(branch) == {"a": "1"}
            with pytest.raises(OpenTransactionAlreadyExists) as refused:
                branch.transaction()
            assert refused.value.facts["transaction"] == opened.id
        created = _newest(store)
        assert [(m.branch, m.to_transaction) for m in created.moves] == [("child", view)]
        assert_rows_sound(store)


def test_f12_commit_moves_every_branch_whose_head_it_is(catalog_url: str, tmp_path: Path) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master, child, opened, view = _shared(store)
        grandchild = child.dataset.branch("grandchild").create(parent="child")
        opened.commit()
        for branch in (master, child, grandchild):
            assert (branch.load().head, branch.load().view) == (opened.id, opened.id)
            assert content(branch) == {"a": "1", "b": "2"}
        moved = {(m.branch, m.from_transaction, m.to_transaction) for m in _newest(store).moves}
        assert moved == {(name, view, opened.id) for name in ("master", "child", "grandchild")}
        put(child, c="3")
        assert content(master) == {"a": "1", "b": "2"}
        assert_store_sound(store)


def test_f12_abort_sets_every_head_back_and_is_no_publication(
    catalog_url: str, tmp_path: Path
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master, child, opened, view = _shared(store)
        before = _newest(store)
        opened.abort()
        for branch in (master, child):
            assert (branch.load().head, branch.load().view) == (view, view)
        assert _newest(store) == before
        events = store.database.read(list_events)
        assert [(e["kind"], e["transaction"]) for e in events] == [("aborted", opened.id)]
        assert_store_sound(store)


@pytest.mark.parametrize("first", ["master", "child"])
def test_f12_deleting_the_last_sharing_branch_aborts_the_transaction(
    catalog_url: str, tmp_path: Path, first: str
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        _, _, opened, _ = _shared(store)
        known = branches_by_name(store)
        last = next(name for name in known if name != first)
        opened_on = store.dataset("raw.scans")
        opened_on.branch(first).delete(force=True)
        assert load(store, opened.id).state is TransactionState.OPEN
        assert opened_on.branch(last).load().head == opened.id
        opened_on.branch(last).delete(force=True)
        assert load(store, opened.id).state is TransactionState.ABORTED
        with pytest.raises(TransactionNotOpen):
            opened.commit()
        assert_store_sound(store)


def test_f12_both_branches_deleted_in_one_publication_abort_it_once(
    catalog_url: str, tmp_path: Path
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        _, _, opened, _ = _shared(store)
        delete_branches(
            store.database,
            list(branches_by_name(store).values()),
            caller=Caller(actor="ana"),
            force=True,
        )
        assert load(store, opened.id).state is TransactionState.ABORTED
        assert branches_by_name(store) == {}
        assert_store_sound(store)


def test_f12_transaction_is_committed_through_the_branch_that_is_left(
    catalog_url: str, tmp_path: Path
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master, child, opened, _ = _shared(store)
        master.delete(force=True)
        opened.write("c", b"3")
        opened.commit()
        assert (child.load().parent, content(child)) == (None, {"a": "1", "b": "2", "c": "3"})
        assert_store_sound(store)


def test_f12_taking_over_on_one_branch_frees_the_other(catalog_url: str, tmp_path: Path) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master, child, opened, view = _shared(store)
        expire_just_now(store, opened.id)
        mine = child.transaction()
        assert load(store, opened.id).state is TransactionState.ABORTED
        assert (child.load().head, master.load().head) == (mine.id, view)
        put(master, m="1")
        mine.commit()
        assert_store_sound(store)


def test_f12_child_at_an_earlier_transaction_does_not_share(
    catalog_url: str, tmp_path: Path
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master, _, opened, view = _shared(store)
        apart = master.dataset.branch("apart").create(parent="master", at=view)
        put(apart, z="1")
        opened.commit()
        assert content(apart) == {"a": "1", "z": "1"}
        assert_store_sound(store)


def test_f12_branch_off_the_open_head_of_a_build_starts_at_the_view(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        master = files_branch(store, "s.b")
        view = put(master, old="1")
        publish(store, "master", files_spec("s.b"))
        aside = master.dataset.branch("aside")

        class Forking(FileJobs):
            def start(self, work: JobWork) -> Any:
                assert master.load().head != view
                aside.create(parent="master")
                put(aside, mine="2")
                return super().start(work)

        outcome = build(store, "s.b", jobs=Forking(store=store))

        assert states(outcome) == {"s.b": "succeeded"}
        assert master.load().view != view
        assert (aside.load().parent, content(aside)) == ("master", {"old": "1", "mine": "2"})
        [built] = store.database.read(lambda c: list_publications(c, limit=1))
        assert [move.branch for move in built.moves] == ["master"]
        assert_store_sound(store)


def test_f12_intermediate_branch_deleted_moves_no_transaction(
    catalog_url: str, tmp_path: Path
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        _, child, opened, _ = _shared(store)
        leaf = child.dataset.branch("leaf").create(parent="child")
        opened.commit()
        before = leaf.load()
        child.delete(force=True)
        after = leaf.load()
        assert (after.parent, after.head, after.view) == ("master", before.head, before.view)
        again = child.create(parent="leaf").load()
        assert (again.parent, leaf.load().parent) == ("leaf", "master")
        assert_store_sound(store)


def test_f12_seed_example_holds_while_an_output_is_open_on_master(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        masters = {name: files_branch(store, name) for name in ("s.a", "s.b", "s.c")}
        views = {name: put(master, made="1") for name, master in masters.items()}
        opened = masters["s.b"].transaction()
        publish(store, "feature", files_spec("s.b", "s.a"), files_spec("s.c", "s.b"))
        before = {name: master.load() for name, master in masters.items()}

        outcome = build(store, "s.c", branch="feature", fallback=["master"])

        assert states(outcome) == {"s.b": "succeeded", "s.c": "succeeded"}
        made = masters["s.b"].dataset.branch("feature").history()
        assert [t.id for t in made][1:] == [views["s.b"]]
        assert set(branches_by_name(store, "s.a")) == {"master"}
        assert {name: master.load() for name, master in masters.items()} == before
        opened.commit()
        assert branches_by_name(store, "s.b")["feature"].view == made[0].id
        assert_store_sound(store)
