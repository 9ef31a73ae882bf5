"""Transactions on both databases: one OPEN per branch, owners and leases, types, times."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import update

from headgate.attempts import CommitOptions, commit_transactions
from headgate.catalog.log import list_events
from headgate.catalog.schema import transactions
from headgate.catalog.transactions import (
    Opener,
    Opening,
    abort_transactions,
    open_transactions,
    renew_transactions,
    stage_version,
)
from headgate.errors import (
    BranchNotFound,
    Invalid,
    OpenTransactionAlreadyExists,
    PlanChanged,
    TransactionNotFound,
    TransactionNotOpen,
    TransactionTypeViolated,
    ViewConflict,
)
from headgate.files.edits import tree_version
from headgate.files.tree import EMPTY
from headgate.model.changes import Caller
from headgate.model.ids import BranchId, TransactionId
from headgate.model.nouns import TransactionState, TransactionType
from tests.support.door import commit_of, knock
from tests.support.oracle import assert_rows_sound, assert_store_sound
from tests.support.stores import (
    branch_id,
    content,
    expire_just_now,
    files_branch,
    load,
    new_store,
    put,
)


def _opener(actor: str = "bo", lease_seconds: int = 900) -> Opener:
    return Opener(caller=Caller(actor=actor), lease_seconds=lease_seconds)


def _opening(branch: BranchId) -> Opening:
    return Opening(branch=branch, type=TransactionType.UPDATE)


def test_open_transaction_is_the_head_and_changes_no_view(catalog_url: str, tmp_path: Path) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master = files_branch(store)
        view = put(master, a="1")
        opened = master.transaction()
        opened.write("b", b"2")
        branch = master.load()
        assert (branch.head, branch.view, branch.is_open) == (opened.id, view, True)
        assert content(master) == {"a": "1"}
        opened.commit()
        assert content(master) == {"a": "1", "b": "2"}
        assert_store_sound(store)


def test_second_opener_is_refused_and_told_who_holds_it(catalog_url: str, tmp_path: Path) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master = files_branch(store)
        opened = master.transaction(lease_seconds=100)
        with pytest.raises(OpenTransactionAlreadyExists) as refused:
            open_transactions(store.database, [_opening(branch_id(master))], _opener())
        facts = refused.value.facts
        assert (facts["transaction"], facts["holder"]) == (opened.id, "ana")
        assert 0 < facts["lease_left_seconds"] <= 100


def test_expired_holder_is_taken_over_and_nothing_of_it_is_seen(
    catalog_url: str, tmp_path: Path
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master = files_branch(store)
        opened = master.transaction()
        opened.write("a", b"dead")
        expire_just_now(store, opened.id)
        second = master.transaction()
        assert load(store, opened.id).state is TransactionState.ABORTED
        for act in (lambda: opened.write("b", b"x"), opened.commit, opened.abort):
            with pytest.raises(TransactionNotOpen):
                act()
        second.commit()
        assert content(master) == {}
        assert_store_sound(store)


def test_expired_holder_is_taken_over_by_a_write_of_its_own_and_the_event_says_by_whom(
    catalog_url: str, tmp_path: Path
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master = files_branch(store)
        opened = master.transaction()
        opened.write("a", b"dead")
        with pytest.raises(OpenTransactionAlreadyExists):
            put(master, b="1")
        expire_just_now(store, opened.id)
        put(master, b="1")
        assert load(store, opened.id).state is TransactionState.ABORTED
        assert content(master) == {"b": "1"}
        taken = store.database.read(lambda c: list_events(c, kind="taken_over"))
        assert [event["transaction"] for event in taken] == [opened.id]
        assert_store_sound(store)


def test_expired_holder_refuses_a_reset_since_its_head_is_open(
    catalog_url: str, tmp_path: Path
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master = files_branch(store)
        first = put(master, a="1")
        opened = master.transaction()
        expire_just_now(store, opened.id)
        with pytest.raises(OpenTransactionAlreadyExists):
            master.reset(to=first)
        opened.abort()


def test_expired_holder_whom_nobody_took_over_from_commits(
    catalog_url: str, tmp_path: Path
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master = files_branch(store)
        opened = master.transaction()
        opened.write("a", b"slow")
        expire_just_now(store, opened.id)
        opened.commit()
        assert content(master) == {"a": "slow"}


@pytest.mark.parametrize("use", ["stage", "renew"])
def test_use_of_a_transaction_renews_its_lease(catalog_url: str, tmp_path: Path, use: str) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master = files_branch(store)
        opened = master.transaction()
        expire_just_now(store, opened.id)
        if use == "stage":
            opened.write("a", b"x")
        else:
            renew_transactions(store.database, [TransactionId(opened.id)])
        with pytest.raises(OpenTransactionAlreadyExists):
            master.transaction()


def test_opening_several_branches_is_all_or_none(catalog_url: str, tmp_path: Path) -> None:
    with new_store(catalog_url, tmp_path) as store:
        first, second = files_branch(store, "raw.a"), files_branch(store, "raw.b")
        held = second.transaction()
        both = [_opening(branch_id(first)), _opening(branch_id(second))]
        with pytest.raises(OpenTransactionAlreadyExists):
            open_transactions(store.database, both, _opener())
        assert not first.load().is_open
        held.abort()
        opened = open_transactions(store.database, both, _opener())
        assert [t.id for t in opened] == [first.load().head, second.load().head]


def test_opening_a_branch_twice_in_one_call_is_refused(catalog_url: str, tmp_path: Path) -> None:
    with new_store(catalog_url, tmp_path) as store:
        same = _opening(branch_id(files_branch(store)))
        with pytest.raises(Invalid):
            open_transactions(store.database, [same, same], _opener())
        assert_store_sound(store)


def test_opening_what_moved_since_it_was_planned_is_refused(
    catalog_url: str, tmp_path: Path
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master = files_branch(store)
        planned = put(master, a="1")
        put(master, a="2")
        opening = Opening(
            branch=branch_id(master),
            type=TransactionType.UPDATE,
            planned=True,
            planned_view=planned,
        )
        with pytest.raises(PlanChanged):
            open_transactions(store.database, [opening], _opener())
        with pytest.raises(BranchNotFound):
            open_transactions(store.database, [_opening(BranchId("b-gone"))], _opener())


def test_aborting_what_is_not_open_is_refused(catalog_url: str, tmp_path: Path) -> None:
    with new_store(catalog_url, tmp_path) as store:
        view = put(files_branch(store), a="1")
        with pytest.raises(TransactionNotOpen):
            abort_transactions(store.database, [view], caller=Caller(actor="ana"))
        with pytest.raises(TransactionNotFound):
            abort_transactions(
                store.database, [TransactionId("t-unknown")], caller=Caller(actor="ana")
            )


def test_commit_of_another_working_version_than_was_checked_is_refused(
    catalog_url: str, tmp_path: Path
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master = files_branch(store)
        opened = master.transaction()
        opened.write("a", b"1")
        behind = load(store, opened.id)
        opened.write("a", b"2")
        with pytest.raises(ViewConflict) as conflict:
            knock(store, commit_of(behind))
        assert conflict.value.mismatches[0].field == "working version"
        with pytest.raises(ViewConflict):
            stage_version(
                store.database,
                behind.id,
                tree_version(EMPTY),
                expected=behind.version.id if behind.version else None,
            )
        opened.commit()
        assert content(master) == {"a": "2"}


@pytest.mark.parametrize(
    ("type", "allowed"),
    [("SNAPSHOT", True), ("APPEND", False), ("UPDATE", True), ("DELETE", False)],
)
def test_overwriting_a_path_is_checked_at_commit_by_type(
    catalog_url: str, tmp_path: Path, type: str, allowed: bool
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master = files_branch(store)
        put(master, a="1")
        opened = master.transaction(type)
        opened.write("a", b"2")
        if allowed:
            opened.commit()
            assert content(master) == {"a": "2"}
        else:
            with pytest.raises(TransactionTypeViolated):
                opened.commit()
            assert (content(master), master.load().head) == ({"a": "1"}, opened.id)
            opened.abort()
        assert_store_sound(store)


def test_times_keep_their_order_when_the_clock_goes_back(catalog_url: str, tmp_path: Path) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master = files_branch(store)
        opened = master.transaction()
        future = load(store, opened.id).opened_at + 10**12
        store.database.write(
            lambda c: c.execute(
                update(transactions).where(transactions.c.id == opened.id).values(opened_at=future)
            )
        )
        opened.commit()
        for end in ("abort", "commit"):
            following = master.transaction()
            getattr(following, end)()
            assert load(store, following.id).opened_at > future
        assert_rows_sound(store)


def test_open_and_abort_within_one_tick_of_the_clock_end_after_they_began(
    catalog_url: str, tmp_path: Path
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master = files_branch(store)
        for n in range(5):
            put(master, a=str(n))
            master.transaction().abort()
        assert_rows_sound(store)


def test_commit_of_several_is_one_publication_or_none(catalog_url: str, tmp_path: Path) -> None:
    with new_store(catalog_url, tmp_path) as store:
        first, second = files_branch(store, "raw.a"), files_branch(store, "raw.b")
        one, two = first.transaction(), second.transaction()
        one.write("x", b"1")
        two.write("y", b"2")
        ids = [TransactionId(one.id), TransactionId(two.id)]
        two.abort()
        with pytest.raises(TransactionNotOpen):
            commit_transactions(
                store.database, store.contents, ids, CommitOptions(caller=Caller(actor="ana"))
            )
        assert (content(first), first.load().head) == ({}, one.id)
        again = second.transaction()
        ids[1] = TransactionId(again.id)
        receipt = commit_transactions(
            store.database, store.contents, ids, CommitOptions(caller=Caller(actor="ana"))
        )
        assert set(receipt.transactions.values()) == set(ids)
        assert_store_sound(store)
