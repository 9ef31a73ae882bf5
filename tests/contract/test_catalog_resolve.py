"""Resolution of chains and contexts on both databases: the version that readers get."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event

from headgate.catalog.resolve import (
    find_all_on_chain,
    find_all_shown,
    find_on_chain,
    find_shown,
    load_shown,
)
from headgate.errors import BranchNotFound, InvalidContext, TransactionNotFound, TransactionNotOpen
from headgate.model.contexts import parse_context
from headgate.store.embedded import Store
from tests.support.stores import files_branch, load_dataset, new_store, put

CHAIN = ("feature", "develop", "master")


@pytest.fixture
def store(catalog_url: str, tmp_path: Path) -> Iterator[Store]:
    with new_store(catalog_url, tmp_path) as store:
        yield store


def view(store: Store, name: str, branch: str = "master") -> str | None:
    return store.dataset(name).branch(branch).load().view


def statements(store: Store, read: Callable[[Connection], Any]) -> int:
    sent: list[str] = []

    def count(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        sent.append(statement)

    event.listen(Engine, "before_cursor_execute", count)
    try:
        store.database.read(read)
    finally:
        event.remove(Engine, "before_cursor_execute", count)
    return len(sent)


def test_chain_is_the_first_branch_with_a_view_and_passes_over_empty_ones(store: Store) -> None:
    for name in ("raw.own", "raw.empty", "raw.below"):
        put(files_branch(store, name), a="1")
    own = store.dataset("raw.own").branch("feature")
    own.create(parent="master")
    put(own, b="2")
    files_branch(store, "raw.other", branch="elsewhere")
    files_branch(store, "raw.new", branch="feature")
    store.dataset("raw.empty").branch("feature").create()
    names = ("raw.own", "raw.empty", "raw.below", "raw.other", "raw.new")
    ids = [load_dataset(store, name).id for name in names]
    found = store.database.read(lambda c: find_all_on_chain(c, CHAIN, ids))
    assert [(on.own and on.own.name, on.source and on.source.name) for on in found.values()] == [
        ("feature", "feature"),
        ("feature", "master"),
        (None, "master"),
        (None, None),
        ("feature", None),
    ]
    assert store.database.read(lambda c: find_on_chain(c, CHAIN, ids[1])) == found[ids[1]]


@pytest.mark.parametrize("context", ["feature>master", "unit"])
def test_many_datasets_take_as_many_statements_as_one(store: Store, context: str) -> None:
    names = [f"raw.d{number}" for number in range(5)]
    for name in names:
        put(files_branch(store, name), a="1")
    unit = store.transaction(branch="master")
    unit.dataset("raw.d0").write("b", b"2")
    where = parse_context(unit.context if context == "unit" else context)
    datasets = [load_dataset(store, name) for name in names]
    shown = store.database.read(lambda c: find_all_shown(c, where, datasets))
    assert [shown[d.id].dataset for d in datasets] == [d.name for d in datasets]
    all_of_them = statements(store, lambda c: find_all_shown(c, where, datasets[1:]))
    assert all_of_them == statements(store, lambda c: find_shown(c, where, datasets[1]))


def test_unit_shows_its_own_and_then_its_branch_while_open_and_once_committed(
    store: Store,
) -> None:
    for name in ("raw.a", "raw.b"):
        put(files_branch(store, name), a="1")
    datasets = [load_dataset(store, name) for name in ("raw.a", "raw.b")]
    unit = store.transaction(branch="master")
    unit.dataset("raw.a").write("b", b"2")
    own, context = unit.dataset("raw.a").id, parse_context(unit.context)

    def shown() -> list[str]:
        found = store.database.read(lambda c: find_all_shown(c, context, datasets))
        return [found[dataset.id].id for dataset in datasets]

    assert shown() == [own, view(store, "raw.b")]
    unit.commit()
    for name in ("raw.a", "raw.b"):
        put(store.dataset(name).branch("master"), c="3")
    assert shown() == [own, view(store, "raw.b")]
    assert own != view(store, "raw.a")


def test_unit_that_was_aborted_or_never_opened_shows_nothing(store: Store) -> None:
    put(files_branch(store), a="1")
    dataset = load_dataset(store)
    unit = store.transaction(branch="master")
    unit.abort()
    with pytest.raises(TransactionNotOpen):
        store.database.read(lambda c: find_shown(c, parse_context(unit.context), dataset))
    with pytest.raises(TransactionNotFound):
        store.database.read(lambda c: find_shown(c, parse_context("txn:none"), dataset))


def test_job_shows_its_output_and_its_pin_only_to_the_holder_of_its_scope(store: Store) -> None:
    for name in ("raw.made", "raw.read", "raw.other"):
        put(files_branch(store, name), a="1")
    datasets = [load_dataset(store, name) for name in ("raw.made", "raw.read", "raw.other")]
    pinned = view(store, "raw.read")
    put(store.dataset("raw.read").branch("master"), b="2")
    output = store.dataset("raw.made").branch("master").transaction("UPDATE")
    context = parse_context("job:key:1")
    scope = {
        "branch": "master",
        "inputs": {"raw.read": {"transaction": pinned, "branch": "master"}},
        "outputs": {"raw.made": output.id},
    }
    found = store.database.read(lambda c: find_all_shown(c, context, datasets, scope=scope))
    assert {str(t.dataset): t.id for t in found.values()} == {
        "raw.made": output.id,
        "raw.read": pinned,
    }
    with pytest.raises(InvalidContext):
        store.database.read(lambda c: find_all_shown(c, context, datasets))
    output.abort()
    with pytest.raises(TransactionNotOpen):
        store.database.read(lambda c: find_all_shown(c, context, datasets, scope=scope))


def test_context_that_names_no_branch_is_an_error_only_where_the_caller_named_it(
    store: Store,
) -> None:
    put(files_branch(store), a="1")
    dataset, context = load_dataset(store), parse_context("missing>absent")
    assert store.database.read(lambda c: find_shown(c, context, dataset)) is None
    with pytest.raises(BranchNotFound):
        store.database.read(lambda c: load_shown(c, context, dataset))
