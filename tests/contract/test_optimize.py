"""`optimize`: fewer files, the same rows and content id; blocks no writer, loses its races."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.model.failpoints import Failpoint
from headgate.rows import optimize
from headgate.rows.outcome import OptimizeState
from headgate.settings import Settings
from headgate.store.embedded import Store
from headgate.tables.inspect import partitioning_of
from headgate.testing.failpoints import calling_at, die_at
from tests.support.oracle import assert_rows_sound
from tests.support.processes import assert_killed
from tests.support.rows import PERSON, graph_store, ids_of, insert_people, made_settings, rows_of


def _scattered(catalog_url: str, root: Path) -> Store:
    store = graph_store(catalog_url, root)
    for id in "abcdef":
        store.mutate("master", insert_people(id))
    return store


def test_optimize_keeps_rows_and_content_id_and_drops_old_snapshots(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with _scattered(made_catalog_url, tmp_path) as store:
        before = rows_of(store, PERSON)
        done = store.rows.optimize(PERSON, branch="master", keep_snapshots=3)
        assert (done.state, done.files_before, done.files_after) == ("optimized", 6, 2)
        assert done.snapshots_dropped == 4
        assert rows_of(store, PERSON) == before
        new, old = store.dataset(PERSON).branch("master").history()[:2]
        assert new.version is not None and old.version is not None
        assert new.version.content_id == old.version.content_id
        again = store.rows.optimize(PERSON, branch="master")
        assert (again.state, again.publication) == (OptimizeState.UNCHANGED, None)
        store.mutate("master", "update graph.person set age = 1 where id = 'a'")
        assert_rows_sound(store)


def test_optimize_with_a_key_sent_again_gets_the_first_answer(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with _scattered(made_catalog_url, tmp_path) as store:
        first = store.rows.optimize(PERSON, branch="master", idempotency_key="k")
        assert (first.state, first.files_before) == ("optimized", 6)
        store.mutate("master", insert_people("z"))
        assert store.rows.optimize(PERSON, branch="master", idempotency_key="k") == first


def test_optimize_beside_a_writer_loses_and_hurts_nobody(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with _scattered(made_catalog_url, tmp_path) as store:

        def write() -> None:
            store.mutate("master", insert_people("z"))

        with calling_at(Failpoint.MUTATION_DATA_WRITTEN, write):
            done = store.rows.optimize(PERSON, branch="master")
        assert (done.state, done.publication) == (OptimizeState.LOST, None)
        assert ids_of(store, PERSON) == [*"abcdef", "z"]


def test_optimize_meanwhile_lets_our_own_writer_prepare_again(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with _scattered(made_catalog_url, tmp_path) as store:

        def compact() -> None:
            store.rows.optimize(PERSON, branch="master")

        with calling_at(Failpoint.MUTATION_PREPARED, compact):
            outcome = store.mutate("master", "update graph.person set age = 2 where id = 'c'")
        assert outcome.losses == 1
        assert [r["age"] for r in rows_of(store, PERSON) if r["id"] == "c"] == [2]


def test_optimize_of_a_branch_that_is_open_skips_it(made_catalog_url: str, tmp_path: Path) -> None:
    with _scattered(made_catalog_url, tmp_path) as store:
        held = store.dataset(PERSON).branch("master").transaction("UPDATE")
        done = store.rows.optimize(PERSON, branch="master")
        assert done.state is OptimizeState.SKIPPED
        held.abort()


def test_optimize_of_a_grown_table_gives_it_more_buckets(
    made_sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optimize, "_ROWS_AT_MOST", 2)
    monkeypatch.setattr(optimize, "_ROWS_WANTED", 1)
    with _scattered(made_sqlite_url, tmp_path) as store:
        before = rows_of(store, PERSON)
        store.rows.optimize(PERSON, branch="master")
        view = store.dataset(PERSON).branch("master").history()[0].version
        assert view is not None
        assert partitioning_of(store.tables.read(view.location).metadata) == ["bucket(8, id)"]
        assert rows_of(store, PERSON) == before
        store.mutate("master", "delete from graph.person where id in ('a', 'b')")
        assert ids_of(store, PERSON) == [*"cdef"]


def _optimize(settings: Settings, point: Failpoint) -> None:
    with Store(settings, recover_first=False) as store:
        die_at(point)
        store.rows.optimize(PERSON, branch="master")


@pytest.mark.parametrize("point", [Failpoint.MUTATION_STAGED, Failpoint.PUBLISH_APPLIED])
def test_o01_optimize_killed_leaves_the_table_as_it_was(
    made_catalog_url: str, tmp_path: Path, point: Failpoint
) -> None:
    with _scattered(made_catalog_url, tmp_path) as store:
        history = store.dataset(PERSON).branch("master").history()
        assert_killed(_optimize, made_settings(made_catalog_url, tmp_path), point)
        assert store.dataset(PERSON).branch("master").history() == history
        assert store.rows.optimize(PERSON, branch="master").state is OptimizeState.OPTIMIZED
