"""Merge bases on both databases: histories with merges of many branches, against a model."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, event

from headgate.catalog.merge_base import MERGED, find_merge_bases
from headgate.catalog.publish import publish
from headgate.model.changes import AddTransaction, Caller, Provenance, PublishRequest
from headgate.model.ids import TransactionId, mint_content, mint_version
from headgate.model.nouns import PublicationKind, TransactionType, Version
from headgate.store.datasets import BranchHandle
from headgate.store.transactions import StoreBase
from tests.support.stores import files_branch, load, new_store, put

Graph = dict[str, list[str]]


@pytest.fixture
def master(made_catalog_url: str, tmp_path: Path) -> Iterator[BranchHandle]:
    with new_store(made_catalog_url, tmp_path) as store:
        made = files_branch(store)
        put(made, a="1")
        yield made


def _view(branch: BranchHandle) -> str:
    view = branch.load().view
    assert view is not None
    return view


def _fork(master: BranchHandle, name: str) -> BranchHandle:
    branch = master.dataset.branch(name)
    branch.create(parent=master.name)
    return branch


def _add(branch: BranchHandle, merged: str | None = None, *, version: Version | None = None) -> str:
    """Add a transaction to a branch, as a merge of another one adds it; with other content."""
    here = branch.load()
    facts = {MERGED: {"branch": "other", "transaction": merged}} if merged else {}
    held = version or load(branch.store, _view(branch)).version
    assert held is not None
    content = version.content_id if version else mint_content()
    made = replace(held, id=mint_version(), content_id=content)
    change = AddTransaction(
        branch=here.id,
        expected_head=here.head,
        expected_view=here.view,
        parent=here.view,
        type=TransactionType.UPDATE,
        version=made,
        provenance=Provenance(facts=facts),
    )
    caller = Caller(actor="ana")
    request = PublishRequest(caller=caller, kind=PublicationKind.MERGE, changes=(change,))
    publish(branch.store.database, request)
    return _view(branch)


def _bases(store: StoreBase, one: str, other: str) -> list[str]:
    def find(connection: Connection) -> list[str]:
        found = find_merge_bases(connection, load(store, one), load(store, other))
        return [base.id for base in found]

    return store.database.read(find)


def _base(store: StoreBase, one: str, other: str) -> str | None:
    return next(iter(_bases(store, one, other)), None)


def _statements(store: StoreBase, one: str, other: str) -> int:
    """Count the statements that find a merge base."""
    counted: list[str] = []

    def count(*seen: Any) -> None:
        counted.append(seen[2])

    def find(connection: Connection) -> None:
        sides = load(store, one), load(store, other)
        event.listen(connection, "before_cursor_execute", count)
        find_merge_bases(connection, *sides)
        event.remove(connection, "before_cursor_execute", count)

    store.database.read(find)
    return len(counted)


def test_merge_base_more_than_a_hundred_merges_of_others_later_is_what_was_merged(
    master: BranchHandle,
) -> None:
    feature, other = _fork(master, "feature"), _fork(master, "other")
    merged = _add(feature)
    _add(master, merged)
    for _ in range(101):
        _add(master, _add(other))
    assert _base(master.store, _add(feature), _view(master)) == merged
    assert _base(master.store, _view(master), _view(feature)) == merged


def test_merge_base_more_than_a_hundred_merges_of_the_pair_later_is_the_last_of_them(
    master: BranchHandle,
) -> None:
    feature, apart = _fork(master, "feature"), _fork(master, "apart")
    fork = _view(master)
    last = fork
    for step in range(101):
        giver, taker = (feature, master) if step % 2 else (master, feature)
        last = _add(giver)
        _add(taker, last)
    assert _base(master.store, _add(feature), _add(master)) == last
    assert _base(master.store, _add(apart), _view(master)) == fork


def test_merge_base_of_what_came_by_a_third_branch_is_what_was_merged_there(
    master: BranchHandle,
) -> None:
    develop, feature = _fork(master, "develop"), _fork(master, "feature")
    merged = _add(feature)
    _add(master, _add(develop, merged))
    assert _base(master.store, _add(feature), _add(master)) == merged
    hotfix = _fork(master, "hotfix")
    both = _add(hotfix)
    _add(develop, both)
    _add(feature, both)
    assert _base(master.store, _add(feature), _add(develop)) == both


def test_merge_bases_of_merges_crosswise_are_both_unless_they_have_one_content(
    master: BranchHandle,
) -> None:
    feature = _fork(master, "feature")
    ours, theirs = _add(master), _add(feature)
    _add(master, theirs)
    _add(feature, ours)
    assert _bases(master.store, _add(feature), _add(master)) == [theirs, ours]
    twin = _fork(master, "twin")
    same = load(master.store, _view(master)).version
    ours, theirs = _add(master, version=same), _add(twin, version=same)
    _add(master, theirs)
    _add(twin, ours)
    assert _bases(master.store, _add(twin), _add(master)) == [theirs]


def test_merge_base_after_a_reset_of_the_target_is_no_longer_what_was_merged(
    master: BranchHandle,
) -> None:
    feature, fork = _fork(master, "feature"), _view(master)
    _add(master, _add(feature))
    master.reset(to=fork)
    assert _base(master.store, _add(feature), _add(master)) == fork


def test_merge_base_reads_as_much_as_changed_since_and_not_the_history(
    master: BranchHandle,
) -> None:
    store, feature = master.store, _fork(master, "feature")

    _add(feature)
    few = _statements(store, _view(feature), _view(master))
    # Long histories, many merges, and other datasets: all before the last merge.
    for _ in range(40):
        _add(feature, _add(master, _add(feature)))
    assert _statements(store, _add(feature), _view(master)) <= 3 and few <= 3


def _ancestors(graph: Graph, id: str) -> set[str]:
    found, waiting = set[str](), [id]
    while waiting:
        if (here := waiting.pop()) not in found:
            found.add(here)
            waiting += graph[here]
    return found


def _line(graph: Graph, id: str) -> set[str]:
    """Return a transaction and its first parents, without what was merged."""
    found, here = set[str](), [id]
    while here:
        found.add(here[0])
        here = graph[here[0]][:1]
    return found


@pytest.mark.parametrize("seed", range(3))
def test_merge_base_of_random_histories_is_the_newest_that_both_contain(
    master: BranchHandle, seed: int
) -> None:
    chance = random.Random(seed)
    order = [_view(master)]
    # The first parent of each transaction, then what it merged.
    graph: Graph = {order[0]: [], **{t.id: [] for t in master.history()}}
    for t in master.history():
        graph[t.id] = [t.parent] if t.parent else []
    branches = [master]
    for step in range(40):
        if len(branches) < 5 and chance.random() < 0.2:
            branches.append(_fork(chance.choice(branches), f"b{step}"))
        branch = chance.choice(branches)
        others = [one for one in branches if one is not branch]
        merged = _view(chance.choice(others)) if others and chance.random() < 0.4 else None
        before = _view(branch)
        new = _add(branch, merged)
        graph[new] = [before, merged] if merged else [before]
        order.append(new)
    for _ in range(60):
        one, other = chance.choice(order), chance.choice(order)
        common = _ancestors(graph, one) & _ancestors(graph, other)
        older = {below for id in common for below in _ancestors(graph, id) - {id}}
        newest = common - older
        direct = newest & (_line(graph, one) | _line(graph, other))
        rank = {id: at for at, id in enumerate([*reversed(list(graph)), *order])}
        expected = max(direct or newest, key=rank.__getitem__)
        found = _bases(master.store, TransactionId(one), TransactionId(other))
        assert (found[0], set(found), len(found)) == (expected, newest, len(newest))
