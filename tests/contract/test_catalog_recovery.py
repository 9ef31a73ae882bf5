"""Recovery of transactions whose owner is dead, and its audit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from sqlalchemy import Connection, update

from headgate.catalog.database import now
from headgate.catalog.log import list_events, list_recoveries
from headgate.catalog.schema import transactions
from headgate.catalog.transactions import renew_transactions
from headgate.model.ids import TransactionId
from headgate.model.nouns import TransactionState
from headgate.model.recovery import RECOVERY_ACTOR
from headgate.store.embedded import Store
from tests.support.oracle import assert_store_sound
from tests.support.stores import (
    branches_by_name,
    content,
    everything,
    expire_leases,
    files_branch,
    load,
    new_settings,
    new_store,
    put,
)

T = TypeVar("T")


def _expired_leases_ago(store: Store, id: str, leases: float) -> None:
    store.database.write(
        lambda c: c.execute(
            update(transactions)
            .where(transactions.c.id == id)
            .values(lease_until=now(c) - int(leases * 900 * 1_000_000))
        )
    )


def test_abandoned_transaction_is_aborted_with_an_event_and_an_audit_row(
    catalog_url: str, tmp_path: Path
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master = files_branch(store)
        view = put(master, a="1")
        opened = master.transaction()
        opened.write("a", b"lost")
        _expired_leases_ago(store, opened.id, 5.01)
        assert store.recover().aborted_transactions == [opened.id]
        assert load(store, opened.id).state is TransactionState.ABORTED
        assert (master.load().head, content(master)) == (view, {"a": "1"})
        [event] = store.database.read(lambda c: list_events(c, actor=RECOVERY_ACTOR))
        assert (event["kind"], event["original_actor"]) == ("abandoned", "ana")
        [audit] = store.database.read(list_recoveries)
        assert (audit["kind"], audit["original_actor"]) == ("abort", "ana")
        assert audit["outcomes"][0]["restored_to"] == view
        assert_store_sound(store)


@pytest.mark.parametrize("leases", [-0.5, 0.5, 4.9])
def test_transaction_that_expired_not_long_ago_is_left_to_its_owner(
    catalog_url: str, tmp_path: Path, leases: float
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master = files_branch(store)
        opened = master.transaction()
        _expired_leases_ago(store, opened.id, leases)
        before = everything(store)
        assert store.recover().aborted_transactions == []
        assert everything(store) == before
        opened.commit()


def test_owner_who_comes_back_while_recovery_looks_keeps_the_transaction(
    catalog_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        opened = files_branch(store).transaction()
        _expired_leases_ago(store, opened.id, 6)
        write = store.database.write

        def write_after_the_owner(work: Callable[[Connection], T]) -> T:
            monkeypatch.undo()
            renew_transactions(store.database, [TransactionId(opened.id)])
            return write(work)

        # The first write of recovery is the abort that it decided on.
        monkeypatch.setattr(store.database, "write", write_after_the_owner)
        assert store.recover().aborted_transactions == []
        opened.commit()


def test_abandoned_transaction_shared_by_branches_sets_every_head_back(
    catalog_url: str, tmp_path: Path
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master = files_branch(store)
        view = put(master, a="1")
        master.transaction()
        master.dataset.branch("child").create(parent="master")
        expire_leases(store)
        assert len(store.recover().aborted_transactions) == 1
        assert {b.head for b in branches_by_name(store).values()} == {view}
        assert_store_sound(store)


def test_recoveries_are_listed_newest_first_by_actor_and_kind(
    catalog_url: str, tmp_path: Path
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master = files_branch(store)
        opened = []
        for _ in range(3):
            opened.append(master.transaction().id)
            expire_leases(store)
            store.recover()
        found = store.recoveries()
        assert [row["operation"] for row in found] == opened[::-1]
        assert [row["operation"] for row in store.recoveries(limit=1, skip=1)] == [opened[1]]
        assert store.recoveries(actor="ana", kind="abort") == found
        assert store.recoveries(actor="bo") == [] == store.recoveries(kind="workspace landed")


def test_recovery_happens_when_a_store_is_opened(catalog_url: str, tmp_path: Path) -> None:
    settings = new_settings(catalog_url, tmp_path)
    with Store(settings) as store:
        opened = files_branch(store).transaction()
        expire_leases(store)
    with Store(settings) as store:
        assert load(store, opened.id).state is TransactionState.ABORTED


def test_dry_run_names_what_is_abandoned_and_leaves_it(catalog_url: str, tmp_path: Path) -> None:
    with new_store(catalog_url, tmp_path) as store:
        opened = files_branch(store).transaction()
        expire_leases(store)
        before = everything(store)
        assert store.recover(dry_run=True).aborted_transactions == [opened.id]
        assert everything(store) == before
