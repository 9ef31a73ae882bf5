"""Spark inside units and jobs: one publication for all, none for a driver that is too late."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headgate.catalog.log import list_publications
from headgate.model.nouns import PublicationKind, TransactionState
from headgate.spark import workplace
from headgate.spark.session import LocalSpark
from headgate.store.embedded import Store
from tests.support.attempts import JobOnMaster, dispatch_job
from tests.support.iceberg import Front, Served
from tests.support.spark import BorrowedSpark, bind
from tests.support.stores import load, new_store

pytestmark = pytest.mark.xdist_group("spark")

# Twenty rows in two tasks, a second long: enough time for a stop in the middle.
_SLOW_INSERT = """
    insert into db.t
    select id, java_method('java.lang.Thread', 'sleep', 100L) as note from range(0, 20, 1, 2)
"""
_PATIENCE_SECONDS = 60


@pytest.fixture
def store(
    local_spark: LocalSpark,
    made_sqlite_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Store]:
    """A store that uses the Spark of this process."""
    monkeypatch.setattr(workplace, "launch_request", lambda *_: None)
    monkeypatch.setattr(workplace, "start", lambda _: BorrowedSpark(local_spark))
    with new_store(made_sqlite_url, tmp_path) as made:
        yield made


def rows(store: Store, context: str, text: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in store.spark(context).sql(text).collect()]


def test_unit_written_by_spark_shows_two_tables_in_one_publication(store: Store) -> None:
    rows(store, "master", "create namespace shop")
    rows(store, "master", "create table shop.a as select 1L as id")
    with store.transaction(branch="master") as unit:
        spark = store.spark(unit.context)
        spark.sql("insert into shop.a values (2)")
        spark.sql("create table shop.b as select id * 10 as id from shop.a")
        spark.sql("insert overwrite shop.a select id + 100 from shop.a")
        assert rows(store, unit.context, "select count(*) from shop.b") == [(2,)]
        assert rows(store, "master", "select id from shop.a") == [(1,)]
    newest = store.database.read(lambda c: list_publications(c, limit=1))[0]
    assert newest.kind is PublicationKind.COMMIT
    assert {str(move.dataset) for move in newest.moves} == {"shop.a", "shop.b"}
    assert rows(store, "master", "select id from shop.a order by id") == [(101,), (102,)]
    assert rows(store, "master", "select id from shop.b order by id") == [(10,), (20,)]


def test_unit_of_spark_that_is_aborted_leaves_both_tables_as_they_were(store: Store) -> None:
    rows(store, "master", "create namespace shop")
    rows(store, "master", "create table shop.a as select 1L as id")
    unit = store.transaction(branch="master")
    store.spark(unit.context).sql("delete from shop.a")
    store.spark(unit.context).sql("create table shop.b as select 5L as id")
    unit.abort()
    assert rows(store, "master", "select id from shop.a") == [(1,)]
    assert rows(store, "master", "show tables in shop") == [("shop", "a", False)]
    with pytest.raises(Exception, match="transaction_not_open"):
        rows(store, unit.context, "select id from shop.a")


class Jobs:
    """Sessions of job attempts on one endpoint."""

    def __init__(self, local: LocalSpark, served: Served) -> None:
        self._local = local
        self._served = served
        self.master = self._session("master", served.token)

    def of(self, job: JobOnMaster) -> Callable[[str], list[tuple[Any, ...]]]:
        return self._session(job.context, job.token)

    def _session(self, context: str, token: str) -> Callable[[str], list[tuple[Any, ...]]]:
        spark = bind(self._local.session, uri=self._served.url, context=context, token=token)
        return lambda text: [tuple(row) for row in spark.sql(text).collect()]


@pytest.fixture
def jobs(local_spark: LocalSpark, store: Store, front: Front) -> Jobs:
    made = Jobs(local_spark, Served(store, front))
    made.master("create namespace db")
    made.master("create table db.t as select 1L as id, 'old' as note")
    return made


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stop the process with SIGSTOP for the length of the block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def wait_for_new_file(warehouse: Path, known: set[Path]) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not data_files(warehouse) - known:
        assert time.monotonic() < deadline, "the driver wrote nothing"
        time.sleep(0.01)


def data_files(warehouse: Path) -> set[Path]:
    return set(warehouse.rglob("*.parquet"))


def test_driver_stopped_in_the_middle_of_a_write_and_superseded_changes_nothing(
    local_spark: LocalSpark, store: Store, jobs: Jobs, tmp_path: Path
) -> None:
    warehouse = tmp_path / "warehouse"
    zombie = dispatch_job(store, "build-1/0", outputs=("db.t",))
    sql = jobs.of(zombie)
    sql("create table db.t (id bigint, note string)")
    known = data_files(warehouse)
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(sql, _SLOW_INSERT)
        wait_for_new_file(warehouse, known)
        with stopped(local_spark._jvm._process.pid):
            newer = dispatch_job(store, "build-1/0", outputs=("db.t",))
        with pytest.raises(Exception, match="attempt_superseded"):
            writing.result(_PATIENCE_SECONDS)
    assert data_files(warehouse) == known
    assert jobs.master("select * from db.t") == [(1, "old")]
    assert load(store, zombie.outputs["db.t"]).state is TransactionState.ABORTED

    jobs.of(newer)("create table db.t as select 2L as id, 'new' as note")
    newer.commit()
    assert jobs.master("select * from db.t") == [(2, "new")]
