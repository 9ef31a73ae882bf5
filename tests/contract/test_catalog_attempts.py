"""Attempt fence on both databases: only the newest epoch of a key may act."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import insert

from headgate.attempts import CommitOptions, commit_transactions
from headgate.catalog.attempts import dispatch_attempt, end_attempt, heartbeat
from headgate.catalog.schema import condemned_objects
from headgate.catalog.transactions import (
    Opener,
    Opening,
    abort_transactions,
    open_transactions,
)
from headgate.errors import (
    AttemptSuperseded,
    OpenTransactionAlreadyExists,
    TransactionNotOpen,
)
from headgate.files.edits import FileEdit, root_of, stage_edit
from headgate.model.changes import Caller
from headgate.model.ids import BranchId
from headgate.model.nouns import (
    AttemptRef,
    AttemptState,
    Transaction,
    TransactionState,
    TransactionType,
)
from headgate.store.embedded import Store
from headgate.store.transactions import store_bytes
from tests.support.door import addition, commit_of, knock
from tests.support.oracle import assert_store_sound
from tests.support.stores import content, expire_just_now, files_branch, load, new_store, put

KEY = "build-1/job-1"


def _dispatch(store: Store, key: str = KEY, *, carry: bool = False) -> AttemptRef:
    made = dispatch_attempt(
        store.database, key, actor="worker", lease_seconds=60, carry_transactions=carry
    )
    return made.ref


def _open(store: Store, branch: BranchId, ref: AttemptRef, type: str = "UPDATE") -> Transaction:
    opener = Opener(caller=Caller(actor="worker", attempt=ref), lease_seconds=60)
    opening = Opening(branch=branch, type=TransactionType(type))
    [opened] = open_transactions(store.database, [opening], opener)
    return opened


def _stage(store: Store, opened: Transaction, ref: AttemptRef | None, text: str) -> Transaction:
    edit = FileEdit(put=[store_bytes(store, "made", text.encode())])
    return stage_edit(store.database, store.trees, opened, edit, attempt=ref)


def _commit(store: Store, opened: Transaction, ref: AttemptRef | None) -> None:
    options = CommitOptions(caller=Caller(actor="worker", attempt=ref))
    commit_transactions(store.database, store.contents, [opened.id], options)


def test_epochs_of_a_key_count_up_and_keys_are_apart(catalog_url: str, tmp_path: Path) -> None:
    with new_store(catalog_url, tmp_path) as store:
        assert [_dispatch(store).epoch for _ in range(3)] == [1, 2, 3]
        assert _dispatch(store, "other").epoch == 1


def test_newer_epoch_aborts_the_older_ones_transactions_at_once(
    catalog_url: str, tmp_path: Path
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master = files_branch(store)
        old = _dispatch(store)
        opened = _stage(store, _open(store, master.load().id, old), old, "old")
        new = _dispatch(store)
        assert load(store, opened.id).state is TransactionState.ABORTED
        mine = _stage(store, _open(store, master.load().id, new), new, "new")
        _commit(store, mine, new)
        assert content(master) == {"made": "new"}
        assert_store_sound(store)


def test_newer_epoch_refuses_every_act_of_the_older(catalog_url: str, tmp_path: Path) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master, free = files_branch(store), files_branch(store, "raw.free")
        old = _dispatch(store)
        opened = _stage(store, _open(store, master.load().id, old), old, "old")
        new = _dispatch(store, carry=True)
        acts: list[Callable[[], object]] = [
            lambda: _stage(store, opened, old, "late"),
            lambda: _commit(store, opened, old),
            lambda: abort_transactions(
                store.database, [opened.id], caller=Caller(actor="w", attempt=old)
            ),
            lambda: _open(store, free.load().id, old),
            lambda: knock(store, addition(free, "late"), attempt=old),
            lambda: heartbeat(store.database, old),
        ]
        for act in acts:
            with pytest.raises(AttemptSuperseded) as refused:
                act()
            assert (refused.value.facts["epoch"], refused.value.facts["newest"]) == (1, 2)
        assert (content(master), content(free)) == ({}, {})
        heartbeat(store.database, new)
        _commit(store, load(store, opened.id), new)
        assert_store_sound(store)


def test_transaction_of_an_attempt_refuses_whoever_is_not_it(
    catalog_url: str, tmp_path: Path
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master = files_branch(store)
        mine, other = _dispatch(store), _dispatch(store, "other")
        opened = _stage(store, _open(store, master.load().id, mine), mine, "mine")
        for stranger in (None, other):
            with pytest.raises(AttemptSuperseded):
                _stage(store, opened, stranger, "stolen")
            with pytest.raises(AttemptSuperseded):
                _commit(store, opened, stranger)
        with pytest.raises(AttemptSuperseded):
            abort_transactions(store.database, [opened.id], caller=Caller(actor="w", attempt=other))
        _commit(store, opened, mine)
        assert content(master) == {"made": "mine"}


@pytest.mark.parametrize("type", ["UPDATE", "SNAPSHOT"])
def test_carried_transaction_starts_again_from_its_base(
    catalog_url: str, tmp_path: Path, type: str
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master = files_branch(store)
        put(master, base="1")
        old = _dispatch(store)
        opened = _open(store, master.load().id, old, type)
        edit = FileEdit(put=[store_bytes(store, "dead", b"x")])
        staged = stage_edit(store.database, store.trees, opened, edit, attempt=old)
        _condemn(store, staged, "dead")
        new = _dispatch(store, carry=True)
        carried = load(store, opened.id)
        assert (carried.attempt, carried.version) == (new, opened.version)
        assert master.load().head == opened.id
        _commit(store, _stage(store, carried, new, "new"), new)
        assert content(master) == ({"made": "new"} | ({"base": "1"} if type == "UPDATE" else {}))
        assert_store_sound(store)


def test_expired_lease_alone_refuses_nobody(catalog_url: str, tmp_path: Path) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master = files_branch(store)
        ref = _dispatch(store)
        opened = _stage(store, _open(store, master.load().id, ref), ref, "slow")
        expire_just_now(store, opened.id)
        heartbeat(store.database, ref)
        with pytest.raises(OpenTransactionAlreadyExists):
            master.transaction()
        expire_just_now(store, opened.id)
        _commit(store, opened, ref)
        assert content(master) == {"made": "slow"}


@pytest.mark.parametrize("state", [AttemptState.SUCCEEDED, AttemptState.FAILED])
def test_attempt_that_has_ended_may_do_nothing_more(
    catalog_url: str, tmp_path: Path, state: AttemptState
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master = files_branch(store)
        ref = _dispatch(store)
        opened = _open(store, master.load().id, ref)
        end_attempt(store.database, ref, state)
        for act in (
            lambda: _stage(store, opened, ref, "late"),
            lambda: _commit(store, opened, ref),
            lambda: heartbeat(store.database, ref),
        ):
            with pytest.raises(AttemptSuperseded) as refused:
                act()
            assert refused.value.facts["state"] == state
        end_attempt(store.database, ref, AttemptState.SUPERSEDED)
        _dispatch(store)
        with pytest.raises(TransactionNotOpen):
            abort_transactions(store.database, [opened.id], caller=Caller(actor="w"))


def test_attempt_below_another_ends_with_it(catalog_url: str, tmp_path: Path) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master = files_branch(store)
        build = _dispatch(store, "build")
        job = dispatch_attempt(
            store.database, "build/job", actor="w", lease_seconds=60, parent=build
        ).ref
        opened = _open(store, master.load().id, job)
        _dispatch(store, "build")
        with pytest.raises(AttemptSuperseded):
            knock(store, commit_of(opened), attempt=job)
        with pytest.raises(AttemptSuperseded):
            dispatch_attempt(store.database, "build/x", actor="w", lease_seconds=60, parent=build)
        assert load(store, opened.id).state is TransactionState.ABORTED
        assert_store_sound(store)


def _condemn(store: Store, staged: Transaction, path: str) -> None:
    """Condemn the content that the dead attempt would reuse, as cleanup does."""
    entry = store.trees.find(root_of(staged.version), path)
    assert entry is not None
    location = store.trees.objects.location(entry.digest)
    row = {"location": location, "condemned_at": 1, "bytes": 1}
    store.database.write(lambda c: c.execute(insert(condemned_objects), [row]))
