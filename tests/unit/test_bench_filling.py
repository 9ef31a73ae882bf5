"""A filled store is in a state that publications through the door can produce."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from bench.filling import DEEP, NAMESPACE, ROOT, Filled, fill
from bench.loading import load
from bench.places import store_trees
from headgate.catalog.branches import create_branch
from headgate.catalog.log import list_history
from headgate.catalog.records import load_branch, load_transaction
from headgate.model.changes import Caller
from headgate.model.ids import Instant
from headgate.store.embedded import Store
from headgate.upkeep.doctor import examine
from tests.support.oracle import assert_rows_sound
from tests.support.stores import new_store, put


def _fill(store: Store, transactions: int) -> Filled:
    trees = store_trees(store.trees)
    until = Instant(time.time_ns() // 1_000)
    return load(store.database, lambda sink: fill(sink, transactions, trees=trees, until=until))


@pytest.mark.parametrize("transactions", [10, 2_500])
def test_filled_store_of_any_size_is_sound(
    transactions: int, catalog_url: str, tmp_path: Path
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        filled = _fill(store, transactions)
        assert filled.transactions == transactions
        assert_rows_sound(store)


def test_filled_store_has_nothing_for_the_doctor(sqlite_url: str, tmp_path: Path) -> None:
    with new_store(sqlite_url, tmp_path) as store:
        _fill(store, 1_000)
        examined = examine(store.settings, deep=True)
        assert [check.name for check in examined.checks if not check.ok] == []


def test_filled_store_goes_on_through_the_door(catalog_url: str, tmp_path: Path) -> None:
    with new_store(catalog_url, tmp_path) as store:
        filled = _fill(store, 120)
        deep = store.dataset(f"{NAMESPACE}.{DEEP}").load()
        create_branch(
            store.database, deep, "new", parent=ROOT, at=filled.old, caller=Caller(actor="ana")
        )
        for branch in store.dataset(str(deep.name)).branches():
            put(store.dataset(str(deep.name)).branch(branch.name), after="filling")
        assert_rows_sound(store)


def test_filled_store_has_forks_and_one_long_history(sqlite_url: str, tmp_path: Path) -> None:
    with new_store(sqlite_url, tmp_path) as store:
        filled = _fill(store, 2_500)
        deep = store.dataset(f"{NAMESPACE}.{DEEP}").load()
        branch = store.database.read(lambda c: load_branch(c, deep, ROOT))
        child = store.database.read(lambda c: load_branch(c, deep, "feature-2"))
        assert len(store.database.read(lambda c: list_history(c, branch))) == 175
        assert len(store.database.read(lambda c: list_history(c, child))) == 88 + 25
        assert store.database.read(lambda c: load_transaction(c, filled.old)).depth == 175 // 3
