"""Two writers that each read what the other writes: the door never accepts both."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Barrier

import pytest

from headgate.errors import ViewConflict
from headgate.model.changes import AddTransaction, ReadView
from headgate.model.failpoints import Failpoint, reach
from headgate.settings import Settings
from headgate.store.datasets import BranchHandle
from headgate.store.embedded import Store
from headgate.testing.failpoints import pause_at
from tests.support.door import addition, commit_of, knock, seen
from tests.support.oracle import assert_store_sound
from tests.support.processes import finish, let_go, running, wait_until_at
from tests.support.stores import content, files_branch, load, new_settings, new_store, put

NODES, EDGES = "graph.nodes", "graph.edges"


def _graph(store: Store) -> tuple[BranchHandle, BranchHandle]:
    nodes, edges = files_branch(store, NODES), files_branch(store, EDGES)
    put(nodes, n1="node")
    return nodes, edges


def test_write_skew_by_an_addition_is_refused(catalog_url: str, tmp_path: Path) -> None:
    """W1 validates an edge to n1; W2 deletes n1; W1 publishes."""
    with new_store(catalog_url, tmp_path) as store:
        nodes, edges = _graph(store)
        read, edge = seen(nodes), addition(edges, "to-n1")
        nodes.remove("n1")
        with pytest.raises(ViewConflict) as conflict:
            knock(store, edge, reads=(read,))
        [mismatch] = conflict.value.mismatches
        assert (mismatch.dataset, mismatch.field) == (NODES, "view (read)")
        assert (mismatch.expected, mismatch.actual) == (read.view, nodes.load().view)
        assert content(edges) == {}
        assert_store_sound(store)


def test_write_skew_by_a_commit_while_the_head_stays_is_refused(
    catalog_url: str, tmp_path: Path
) -> None:
    """The delete is an OPEN transaction when W1 reads: the head stays, only the view changes."""
    with new_store(catalog_url, tmp_path) as store:
        nodes, edges = _graph(store)
        deleting = nodes.transaction("DELETE")
        deleting.remove("n1")
        read, edge = seen(nodes), addition(edges, "to-n1")
        head = nodes.load().head
        deleting.commit()
        assert nodes.load().head == head
        with pytest.raises(ViewConflict):
            knock(store, edge, reads=(read,))
        assert (content(nodes), content(edges)) == ({}, {})
        assert_store_sound(store)


def test_write_skew_of_two_commits_lets_one_pass(catalog_url: str, tmp_path: Path) -> None:
    with new_store(catalog_url, tmp_path) as store:
        nodes, edges = _graph(store)
        first, second = nodes.transaction(), edges.transaction()
        first.write("n2", b"x")
        second.write("e2", b"x")
        reads = seen(nodes), seen(edges)
        knock(store, commit_of(load(store, first.id)), reads=(reads[1],))
        with pytest.raises(ViewConflict):
            knock(store, commit_of(load(store, second.id)), reads=(reads[0],))
        assert edges.load().is_open
        second.abort()
        assert_store_sound(store)


def _add_edge(settings: Settings, flags: Path) -> None:
    """Read the nodes, and pause inside the door with all locks held; entry point of a process."""
    with Store(settings, recover_first=False) as store:
        nodes, edges = (store.dataset(name).branch("master") for name in (NODES, EDGES))
        pause_at(Failpoint.PUBLISH_APPLIED, flags=flags)
        knock(store, addition(edges, "to-n1"), reads=(seen(nodes),))


def _remove_node(settings: Settings, flags: Path) -> None:
    """Read no edge to the node, wait, and remove it; entry point of a process."""
    with Store(settings, recover_first=False) as store:
        nodes, edges = (store.dataset(name).branch("master") for name in (NODES, EDGES))
        opened = nodes.transaction("DELETE")
        opened.remove("n1")
        prepared, read = commit_of(load(store, opened.id)), seen(edges)
        pause_at(Failpoint.OPEN_COMMITTED, flags=flags)
        reach(Failpoint.OPEN_COMMITTED)
        try:
            knock(store, prepared, reads=(read,))
        except ViewConflict:
            opened.abort()
            raise SystemExit(4) from None


def test_write_skew_of_two_processes_inside_the_door_lets_one_pass(
    catalog_url: str, tmp_path: Path
) -> None:
    """The first holds its locks when the second arrives: the second waits, then fails."""
    settings = new_settings(catalog_url, tmp_path)
    with Store(settings) as store:
        nodes, edges = _graph(store)
        with running(_remove_node, settings, tmp_path) as second:
            wait_until_at(Failpoint.OPEN_COMMITTED, tmp_path)
            with running(_add_edge, settings, tmp_path) as first:
                wait_until_at(Failpoint.PUBLISH_APPLIED, tmp_path)
                let_go(Failpoint.OPEN_COMMITTED, tmp_path)
                time.sleep(0.3)
                assert second.is_alive()
                let_go(Failpoint.PUBLISH_APPLIED, tmp_path)
                assert (finish(first), finish(second)) == (0, 4)
        assert (set(content(nodes)), set(content(edges))) == ({"n1"}, {"to-n1"})
        assert_store_sound(store)


def test_write_skew_tried_many_times_at_once_never_lets_both_pass(
    catalog_url: str, tmp_path: Path, rounds: int
) -> None:
    with new_store(catalog_url, tmp_path) as store, ThreadPoolExecutor(2) as pool:
        nodes, edges = _graph(store)
        for number in range(rounds // 2):
            both = Barrier(2)
            tries = [(nodes, edges), (edges, nodes)]
            prepared = [(addition(mine, f"f{number}"), seen(other)) for mine, other in tries]
            outcomes = list(pool.map(partial(_try, store, both), prepared))
            assert outcomes.count(True) == 1


def _try(store: Store, both: Barrier, prepared: tuple[AddTransaction, ReadView]) -> bool:
    change, read = prepared
    both.wait()
    try:
        knock(store, change, reads=(read,))
    except ViewConflict:
        return False
    return True
