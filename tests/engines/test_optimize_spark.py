"""`optimize --engine spark`: same result as without Spark, and no branch is locked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.model.failpoints import Failpoint
from headgate.rows import optimize
from headgate.rows.outcome import OptimizeState
from headgate.spark.session import LocalSpark
from headgate.spark.workplace import EmbeddedEndpoint
from headgate.store.embedded import Store
from headgate.store.rows import Rows
from headgate.tables.inspect import partitioning_of
from headgate.testing.failpoints import calling_at
from tests.support.oracle import assert_rows_sound
from tests.support.rows import PERSON, graph_store, ids_of, insert_people, rows_of
from tests.support.spark import bind

pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture
def scattered(
    made_sqlite_url: str, tmp_path: Path, local_spark: LocalSpark
) -> Iterator[tuple[Store, Rows]]:
    """Six people in six files, and row operations with a Spark."""
    with graph_store(made_sqlite_url, tmp_path) as store:
        for id in "abcdef":
            store.mutate("master", insert_people(id))
        endpoint = EmbeddedEndpoint(store.database, store.tables, store.rules)

        def session(context: str) -> Any:
            token = endpoint.issue("ana")
            return bind(local_spark.session, uri=endpoint.url, context=context, token=token)

        try:
            yield store, Rows(store, session)
        finally:
            endpoint.stop()


def _branches(store: Store) -> list[str]:
    return [branch.name for branch in store.dataset(PERSON).branches()]


def test_optimize_by_spark_keeps_rows_and_content_id_and_leaves_no_branch(
    scattered: tuple[Store, Rows],
) -> None:
    store, rows = scattered
    before = rows_of(store, PERSON)
    done = rows.optimize(PERSON, branch="master", keep_snapshots=3, engine="spark")
    assert (done.state, done.files_before, done.files_after) == ("optimized", 6, 2)
    assert done.snapshots_dropped == 4
    assert rows_of(store, PERSON) == before
    new, old = store.dataset(PERSON).branch("master").history()[:2]
    assert new.version is not None and old.version is not None
    assert new.version.content_id == old.version.content_id
    assert _branches(store) == ["master"]
    store.mutate("master", "update graph.person set age = 1 where id = 'a'")
    assert_rows_sound(store)


def test_optimize_by_spark_beside_a_writer_loses_and_hurts_nobody(
    scattered: tuple[Store, Rows],
) -> None:
    store, rows = scattered

    def write() -> None:
        store.mutate("master", insert_people("z"))

    with calling_at(Failpoint.MUTATION_DATA_WRITTEN, write, nth=1):
        done = rows.optimize(PERSON, branch="master", engine="spark")
    assert (done.state, done.publication) == (OptimizeState.LOST, None)
    assert ids_of(store, PERSON) == [*"abcdef", "z"]
    assert _branches(store) == ["master"]


def test_optimize_by_spark_of_a_grown_table_gives_it_more_buckets(
    scattered: tuple[Store, Rows], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, rows = scattered
    monkeypatch.setattr(optimize, "_ROWS_AT_MOST", 2)
    monkeypatch.setattr(optimize, "_ROWS_WANTED", 1)
    before = rows_of(store, PERSON)
    assert rows.optimize(PERSON, branch="master", engine="spark").publication is not None
    view = store.dataset(PERSON).branch("master").history()[0].version
    assert view is not None
    assert partitioning_of(store.tables.read(view.location).metadata) == ["bucket(8, id)"]
    assert rows_of(store, PERSON) == before
