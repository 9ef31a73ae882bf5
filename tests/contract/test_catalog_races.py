"""Concurrent operations on both databases: exactly one wins, and the rows stay consistent."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Barrier

import pytest

from headgate.catalog.attempts import dispatch_attempt, dispatch_once
from headgate.catalog.branches import delete_branches
from headgate.errors import (
    BranchExists,
    Conflict,
    HeadgateError,
    NotFound,
    OpenTransactionAlreadyExists,
)
from headgate.model.changes import Caller, OperationKey, Receipt
from headgate.model.nouns import Attempt
from tests.support.door import addition, knock
from tests.support.oracle import assert_rows_sound, assert_store_sound
from tests.support.stores import (
    branches_by_name,
    content,
    expire_just_now,
    files_branch,
    load,
    new_store,
    put,
)

_MANY = 6


def _at_once(*acts: Callable[[], object]) -> list[object]:
    """Call all functions at the same moment; return their results, or the errors raised."""
    barrier = Barrier(len(acts))

    def start(act: Callable[[], object]) -> object:
        barrier.wait()
        try:
            return act()
        except HeadgateError as error:
            return error

    with ThreadPoolExecutor(len(acts)) as pool:
        return list(pool.map(start, acts))


def _errors(outcomes: list[object]) -> list[type]:
    return [type(o) for o in outcomes if isinstance(o, HeadgateError)]


def test_openers_at_once_have_one_winner(catalog_url: str, tmp_path: Path) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master = files_branch(store)
        outcomes = _at_once(*[master.transaction] * _MANY)
        assert _errors(outcomes) == [OpenTransactionAlreadyExists] * (_MANY - 1)
        assert_store_sound(store)


def test_takers_over_at_once_have_one_winner(catalog_url: str, tmp_path: Path) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master = files_branch(store)
        dead = master.transaction()
        child = master.dataset.branch("child").create(parent="master")
        expire_just_now(store, dead.id)
        outcomes = _at_once(*[master.transaction, child.transaction] * (_MANY // 2))
        assert _errors(outcomes) == [OpenTransactionAlreadyExists] * (_MANY - 2)
        assert master.load().head != child.load().head
        assert load(store, dead.id).state == "ABORTED"
        assert_store_sound(store)


def test_creators_of_one_branch_at_once_have_one_winner(catalog_url: str, tmp_path: Path) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master = files_branch(store)
        put(master, a="1")
        feature = master.dataset.branch("feature")
        outcomes = _at_once(*[lambda: feature.create(parent="master")] * _MANY)
        assert _errors(outcomes) == [BranchExists] * (_MANY - 1)
        assert_store_sound(store)


def test_one_operation_sent_many_times_at_once_happens_once(
    catalog_url: str, tmp_path: Path
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master = files_branch(store)
        key = OperationKey(principal="a", kind="k", branch="master", key="1", request_hash="h")
        change = addition(master, "x")
        outcomes = _at_once(*[lambda: knock(store, change, operation=key)] * _MANY)
        assert _errors(outcomes) == []
        receipts = [o for o in outcomes if isinstance(o, Receipt)]
        assert (len(receipts), len({r.operation for r in receipts})) == (_MANY, 1)
        assert len([r for r in receipts if not r.replayed]) == 1
        assert [t.type for t in master.history()] == ["UPDATE"]


def test_dispatches_at_once_have_an_epoch_each(catalog_url: str, tmp_path: Path) -> None:
    with new_store(catalog_url, tmp_path) as store:
        outcomes = _at_once(
            *[lambda: dispatch_attempt(store.database, "k", actor="w", lease_seconds=9)] * _MANY
        )
        epochs = sorted(o.ref.epoch for o in outcomes if isinstance(o, Attempt))
        assert epochs == list(range(1, _MANY + 1))


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_children_made_while_a_transaction_ends_share_its_fate(
    catalog_url: str, tmp_path: Path, end: str, rounds: int
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master = files_branch(store)
        put(master, a="1")
        for n in range(max(2, rounds // 10)):
            opened = master.transaction()
            opened.write(f"f{n}", b"x")
            names = [f"child-{n}-{i}" for i in range(4)]
            outcomes = _at_once(
                getattr(opened, end),
                *[partial(master.dataset.branch(name).create, parent="master") for name in names],
            )
            assert not isinstance(outcomes[0], HeadgateError)
            assert all(issubclass(e, Conflict) for e in _errors(outcomes))
            view = master.load().view
            for branch in branches_by_name(store).values():
                if branch.name in names:
                    assert not branch.is_open
                    assert branch.view in (view, load(store, str(view)).parent)
            assert_rows_sound(store)
        assert_store_sound(store)


def test_related_branches_deleted_at_once_leave_a_sound_ancestry(
    catalog_url: str, tmp_path: Path, rounds: int
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        dataset = files_branch(store).dataset
        for _ in range(max(2, rounds // 10)):
            parent = "master"
            for name in ("a", "b", "c", "d"):
                dataset.branch(name).create(parent=parent)
                parent = name
            known = branches_by_name(store)
            outcomes = _at_once(
                *[
                    partial(
                        delete_branches,
                        store.database,
                        [known[name]],
                        caller=Caller(actor="x"),
                        force=True,
                    )
                    for name in ("a", "b", "c")
                ]
            )
            assert _errors(outcomes) == []
            assert branches_by_name(store)["d"].parent == "master"
            dataset.branch("d").delete(force=True)
        assert_store_sound(store)


def test_publishers_and_a_deleter_at_once_leave_nothing_half_done(
    catalog_url: str, tmp_path: Path, rounds: int
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master = files_branch(store)
        for n in range(max(2, rounds // 10)):
            feature = master.dataset.branch(f"f{n}").create(parent="master")
            changes = [addition(feature, f"x{i}") for i in range(3)]
            # Read before the race, as the publishers did: all four expect the same view.
            seen = feature.load()
            outcomes = _at_once(
                partial(
                    delete_branches, store.database, [seen], caller=Caller(actor="bo"), force=True
                ),
                *[partial(knock, store, change) for change in changes],
            )
            assert len(_errors(outcomes)) == 3
            assert all(issubclass(e, Conflict | NotFound) for e in _errors(outcomes))
            assert_rows_sound(store)
        assert content(master) == {}


def test_branches_are_created_while_their_parent_moves_all_the_time(
    catalog_url: str, tmp_path: Path
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master = files_branch(store)
        created = [
            partial(store.dataset("raw.scans").branch(f"child-{n}").create, parent="master")
            for n in range(_MANY)
        ]
        moving = [partial(put, master, **{f"f{n}": str(n)}) for n in range(_MANY)]
        assert _errors(_at_once(*created, *moving)) == []
        assert_store_sound(store)


def test_dispatch_that_is_sent_many_times_at_once_is_one_attempt(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        once = partial(
            dispatch_once,
            store.database,
            "key",
            actor="ana",
            lease_seconds=60,
            token="of this attempt",
            scope={},
            check_holder=lambda holder: None,
        )
        made = _at_once(*[once] * _MANY)
        assert [one.ref.epoch for one in made if isinstance(one, Attempt)] == [1] * _MANY
