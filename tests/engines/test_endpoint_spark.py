"""Spark, unmodified, as a client of the endpoint."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog
from starlette.types import Receive, Scope, Send

from headgate.errors import AttemptSuperseded
from headgate.iceberg.app import IcebergApp
from headgate.iceberg.service import ServedVersions
from headgate.model.nouns import TransactionType
from headgate.spark.session import LocalSpark
from tests.support.iceberg import Front, Served
from tests.support.spark import bind
from tests.support.stores import new_store

pytestmark = pytest.mark.xdist_group("spark")


class Interrupted:
    """An application that calls a function once, just before a chosen request."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._wanted: Callable[[Scope], bool] = lambda _scope: False
        self._act: Callable[[], None] = lambda: None

    def before(self, wanted: Callable[[Scope], bool], act: Callable[[], None]) -> None:
        self._wanted, self._act = wanted, act

    def restart(self, served: Served) -> None:
        """Continue with an application that remembers no client."""
        self._app = IcebergApp(replace(served.service, served=ServedVersions()))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._wanted(scope):
            self._wanted = lambda _scope: False
            # In a thread of its own: the function sends requests to this server too.
            thread = threading.Thread(target=self._act)
            thread.start()
            while thread.is_alive():
                await asyncio.sleep(0.01)
        await self._app(scope, receive, send)


class World:
    """One endpoint, and Spark sessions on its contexts."""

    def __init__(self, local: LocalSpark, served: Served, front: Front) -> None:
        self._local = local
        self.served = served
        self.app = Interrupted(served.app)
        front.app = self.app

    def session(self, context: str = "master") -> Callable[[str], list[tuple[Any, ...]]]:
        """Return a function that runs SQL in a new session on a context."""
        served = self.served
        spark = bind(self._local.session, uri=served.url, context=context, token=served.token)
        return lambda text: [tuple(row) for row in spark.sql(text).collect()]

    def arrow(self, context: str = "master") -> RestCatalog:
        served = self.served
        return RestCatalog("headgate", uri=served.url, warehouse=context, token=served.token)

    def data_files(self) -> set[Path]:
        return set((self.served.store.settings.root / "warehouse").rglob("*.parquet"))


@pytest.fixture
def world(
    local_spark: LocalSpark, made_sqlite_url: str, tmp_path: Path, front: Front
) -> Iterator[World]:
    with new_store(made_sqlite_url, tmp_path) as store:
        made = World(local_spark, Served(store, front), front)
        made.session()("create namespace db")
        yield made


def refresh_of(table: str) -> Callable[[Scope], bool]:
    """Match Spark's second load of a table, just before it commits."""
    return lambda scope: (
        scope["method"] == "GET"
        and scope["raw_path"].endswith(f"/tables/{table}".encode())
        and not scope["query_string"]
    )


@pytest.mark.parametrize("version", ["2", "3"])
def test_statements_of_every_kind_do_what_they_say(world: World, version: str) -> None:
    sql = world.session()
    options = f"tblproperties ('format-version' = '{version}')"
    sql(f"create table db.t {options} as select id, id % 2 as half from range(4)")
    sql("insert into db.t values (10, 0)")
    assert sql("select sum(id) from db.t") == [(16,)]
    sql("insert overwrite db.t values (1, 1), (2, 0)")
    sql(
        "merge into db.t using (select 2L id union select 3L) s on t.id = s.id "
        "when matched then update set half = 7 "
        "when not matched then insert (id, half) values (s.id, 9)"
    )
    sql("update db.t set half = 8 where id = 1")
    sql("delete from db.t where id = 3")
    assert sql("select * from db.t order by id") == [(1, 8), (2, 7)]
    sql("alter table db.t add column note string")
    sql("alter table db.t rename column half to part")
    sql("alter table db.t set tblproperties ('a' = 'b')")
    sql("insert into db.t values (5, 5, 'n')")
    assert sql("select * from db.t where note = 'n'") == [(5, 5, "n")]
    assert len(sql("select * from db.t.snapshots")) == 7
    sql("drop table db.t")
    assert sql("show tables in db") == []


def test_changes_by_spark_are_told_apart(world: World) -> None:
    sql = world.session()
    sql("create table db.t as select 1 as id")
    sql("insert into db.t values (2)")
    sql("delete from db.t where id = 2")
    sql("alter table db.t set tblproperties ('a' = 'b')")
    sql("create or replace table db.t as select 5 as id")
    history = world.served.history()
    assert [transaction.type for transaction in history] == [
        TransactionType.SNAPSHOT,
        TransactionType.APPEND,
        TransactionType.DELETE,
        TransactionType.UPDATE,
        TransactionType.SNAPSHOT,
    ]
    contents = [one.version.content_id for one in history if one.version]
    assert contents[2] == contents[3]
    assert len(set(contents)) == 4


def test_layout_follows_its_statements(world: World) -> None:
    sql = world.session()
    sql("create table db.t (id bigint, day date) partitioned by (months(day))")
    sql("insert into db.t values (1, date'2026-01-02')")
    sql("alter table db.t add partition field bucket(4, id)")
    sql("alter table db.t write ordered by id")
    sql("insert into db.t values (2, date'2026-02-02')")
    sql("alter table db.t drop partition field bucket(4, id)")
    assert sql("select count(*), count(distinct spec_id) from db.t.files") == [(2, 2)]
    assert sql("select id from db.t where day < date'2026-02-01'") == [(1,)]


def test_feature_branch_changes_both_tables_and_master_neither(world: World) -> None:
    master, feature = world.session(), world.session("feature>master")
    master("create table db.a as select 1 as id")
    master("create table db.b as select 1 as id")
    feature("insert into db.a values (2)")
    feature("insert into db.b select id + 10 from db.a")
    assert feature("select a.id from db.a a join db.b b on a.id + 10 = b.id order by 1") == [
        (1,),
        (2,),
    ]
    assert master("select count(*) from db.a") == master("select count(*) from db.b") == [(1,)]


@pytest.mark.parametrize(
    "statement",
    [
        "insert overwrite db.t select 100L as id",
        "create or replace table db.t as select 100L as id",
    ],
)
@pytest.mark.parametrize("restarted", [False, True], ids=["same server", "after a restart"])
def test_replacement_never_loses_another_sessions_append(
    world: World, statement: str, restarted: bool
) -> None:
    sql = world.session()
    sql("create table db.t as select 1L as id")
    other = world.arrow()
    rows = pa.table({"id": pa.array([2], pa.int64())})

    def append() -> None:
        other.load_table("db.t").append(rows)
        if restarted:
            world.app.restart(world.served)

    world.app.before(refresh_of("t"), append)
    with pytest.raises(Exception, match=r"stale_replacement|requirement_failed"):
        sql(statement)
    assert sql("select id from db.t order by id") == [(1,), (2,)]
    sql(statement)
    assert sql("select id from db.t") == [(100,)]


def test_append_made_meanwhile_is_kept_beside_ones_own(world: World) -> None:
    sql = world.session()
    sql("create table db.t as select 1L as id")
    other = world.arrow()
    rows = pa.table({"id": pa.array([2], pa.int64())})
    world.app.before(refresh_of("t"), lambda: other.load_table("db.t").append(rows))
    sql("insert into db.t values (3)")
    assert sql("select id from db.t order by id") == [(1,), (2,), (3,)]


def test_superseded_attempt_fails_at_once_and_leaves_no_files(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sql = world.session()
    sql("create table db.t as select 1L as id")
    before = world.data_files()

    def refuse(*_: object) -> None:
        raise AttemptSuperseded(key="k", epoch=1, newest=2, state="superseded")

    with monkeypatch.context() as patch:
        patch.setattr(world.served.catalog, "commit", refuse)
        with pytest.raises(Exception, match="attempt_superseded"):
            sql("insert into db.t values (2)")
    assert world.data_files() == before
    assert sql("select id from db.t") == [(1,)]


@pytest.mark.parametrize(
    "statement",
    [
        "drop table db.t purge",
        "call headgate.system.expire_snapshots('db.t', timestamp '2099-01-01 00:00:00')",
        "call headgate.system.remove_orphan_files('db.t')",
    ],
)
def test_statement_that_deletes_shared_files_is_refused(world: World, statement: str) -> None:
    sql = world.session()
    sql("create table db.t as select 1L as id")
    sql("insert overwrite db.t values (2)")
    sql("alter table db.t set tblproperties ('gc.enabled' = 'true')")
    before = world.data_files()
    with pytest.raises(Exception, match=r"GC is disabled|gc\.enabled|headgate cleanup"):
        sql(statement)
    assert world.data_files() == before
    assert sql("select id from db.t") == [(2,)]


def test_files_by_their_path_are_read_beside_tables(world: World, tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text('{"id": 7}\n')
    assert world.session()(f"select id from json.`{tmp_path}/rows.json`") == [(7,)]
