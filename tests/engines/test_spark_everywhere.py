"""Spark, unmodified, on branch contexts: the same locally, on a cluster and over Connect."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog

from headgate.spark.session import catalog_conf
from tests.support.engine_packages import blocks_of_page
from tests.support.iceberg import Front, Served
from tests.support.rows import GRAPH, KNOWS, PERSON, apply_text, ids_of, insert_people
from tests.support.spark_places import Place
from tests.support.stores import new_store

pytestmark = pytest.mark.xdist_group("spark")


class Session:
    """One Spark session on one context."""

    def __init__(self, spark: Any) -> None:
        self.spark = spark

    def __call__(self, text: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.spark.sql(text).collect()]

    def write(self, query: str, table: str) -> Any:
        """Return a writer of a query's rows into a table."""
        return self.spark.sql(query).writeTo(table).using("iceberg")


class World:
    """One endpoint, and sessions on its contexts."""

    def __init__(self, place: Place, served: Served) -> None:
        self._place = place
        self.served = served

    def session(self, context: str = "feature>master") -> Session:
        served = self.served
        conf = catalog_conf(uri=served.url, warehouse=context, token=served.token)
        return Session(self._place.session(conf))

    def by_page(self, context: str) -> Session:
        """Return a session with the settings of the page on Spark."""
        (block,) = blocks_of_page("spark", "properties")
        conf = dict(line.split(maxsplit=1) for line in block.splitlines())
        # The JVM has them already: a session cannot load extensions.
        del conf["spark.sql.extensions"]
        own = {"uri": self.served.url, "warehouse": context, "token": self.served.token}
        conf |= {f"spark.sql.catalog.headgate.{name}": value for name, value in own.items()}
        return Session(self._place.session(conf))

    def arrow(self, context: str) -> RestCatalog:
        served = self.served
        return RestCatalog("headgate", uri=served.url, warehouse=context, token=served.token)


@pytest.fixture
def world(
    spark_place: Place, made_sqlite_url: str, tmp_path: Path, front: Front
) -> Iterator[World]:
    with new_store(made_sqlite_url, tmp_path) as store:
        made = World(spark_place, Served(store, front))
        made.arrow("master").create_namespace("db")
        yield made


def test_rows_are_inserted_and_overwritten_by_partition_static_and_dynamic(world: World) -> None:
    sql = world.session()
    sql("create table db.t partitioned by (day) as select 1L as id, 'mon' as day")
    sql("insert into db.t values (2, 'tue'), (3, 'wed')")
    sql("insert overwrite db.t partition (day = 'mon') values (10)")
    assert sql("select * from db.t order by id") == [(2, "tue"), (3, "wed"), (10, "mon")]
    sql.spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    sql("insert overwrite db.t values (20, 'tue')")
    assert sql("select * from db.t order by id") == [(3, "wed"), (10, "mon"), (20, "tue")]
    sql.spark.conf.set("spark.sql.sources.partitionOverwriteMode", "static")
    sql("insert overwrite db.t values (30, 'thu')")
    assert sql("select * from db.t") == [(30, "thu")]
    assert world.served.history(branch="feature")[0].branch == "feature"


def test_rows_are_merged_updated_and_deleted(world: World) -> None:
    change_rows(world, 3, "merge-on-read")


# The other combinations differ in the files that Spark writes, not in where it runs.
@pytest.mark.parametrize("spark_place", ["local"], indirect=True)
@pytest.mark.parametrize(
    ("version", "mode"), [(2, "copy-on-write"), (2, "merge-on-read"), (3, "copy-on-write")]
)
def test_rows_are_merged_updated_and_deleted_in_either_mode(
    world: World, version: int, mode: str
) -> None:
    change_rows(world, version, mode)


def change_rows(world: World, version: int, mode: str) -> None:
    sql = world.session()
    modes = ", ".join(f"'write.{one}.mode' = '{mode}'" for one in ("merge", "update", "delete"))
    sql(
        f"create table db.t tblproperties ('format-version' = '{version}', {modes}) "
        "as select id, id * 10 as n from range(6)"
    )
    sql(
        "merge into db.t using (select 5L as id union select 6L) s on t.id = s.id "
        "when matched then update set n = -1 when not matched then insert (id, n) values (s.id, 60)"
    )
    sql("update db.t set n = n + 1 where id < 2")
    sql("delete from db.t where id = 3")
    assert sql("select id, n from db.t order by id") == [
        *((0, 1), (1, 11), (2, 20), (4, 40), (5, -1), (6, 60)),
    ]
    formats = {row[0] for row in sql("select file_format from db.t.delete_files")}
    assert formats == (
        set() if mode == "copy-on-write" else {"PARQUET" if version == 2 else "PUFFIN"}
    )


def test_columns_are_added_dropped_renamed_and_widened_on_their_branch_only(world: World) -> None:
    master, feature = world.session("master"), world.session()
    master("create table db.t (id int, gone string, f float, d decimal(4, 2))")
    master("insert into db.t values (1, 'x', 1.5, 2.25)")
    for change in (
        "add column note string after id",
        "drop column gone",
        "rename column f to rate",
        "alter column id type bigint",
        "alter column rate type double",
        "alter column d type decimal(10, 2)",
    ):
        feature(f"alter table db.t {change}")
    feature("insert into db.t values (5000000000, 'new', 0.5, 12345678.25)")
    assert feature("select id, note, rate from db.t order by id") == [
        *((1, None, 1.5), (5_000_000_000, "new", 0.5)),
    ]
    assert [row[:2] for row in feature("describe db.t")[:4]] == [
        *(("id", "bigint"), ("note", "string"), ("rate", "double"), ("d", "decimal(10,2)")),
    ]
    assert [row[0] for row in master("describe db.t")[:4]] == ["id", "gone", "f", "d"]
    assert master("select count(*) from db.t") == [(1,)]


def test_tables_and_views_are_renamed_and_dropped_on_their_branch_only(world: World) -> None:
    master, feature = world.session("master"), world.session()
    master("create table db.t as select 1L as id")
    feature("alter table db.t rename to db.u")
    feature("create view db.v as select id + 1 as next from db.u")
    assert feature("select * from db.v") == [(2,)]
    feature("alter view db.v rename to db.w")
    feature("create or replace view db.w as select id + 2 as next from db.u")
    assert feature("select * from db.w") == [(3,)]
    assert [row[1] for row in feature("show tables in db")] == ["u"]
    feature("drop view db.w")
    feature("drop table db.u")
    assert feature("show tables in db") == feature("show views in db") == []
    assert master("select id from db.t") == [(1,)]


def test_of_two_changes_of_one_row_one_is_rejected_with_the_reason(world: World) -> None:
    first, second = world.session("master"), world.session("master")
    first("create table db.t as select 1L as id, 0L as n")
    # Both have read the table before either writes.
    assert first("select n from db.t") == second("select n from db.t") == [(0,)]
    with ThreadPoolExecutor(2) as pool:
        changes = [
            pool.submit(sql, "update db.t set n = n + 1 where id = 1") for sql in (first, second)
        ]
    failed = [str(call.exception()) for call in changes if call.exception() is not None]
    assert all("ommit" in reason or "conflict" in reason.lower() for reason in failed), failed
    assert first("select n from db.t") == [(2 - len(failed),)]


def test_partitioning_evolves_and_old_files_are_still_found(world: World) -> None:
    sql = world.session()
    sql("create table db.t (id bigint, day date) partitioned by (months(day))")
    sql("insert into db.t values (1, date'2026-01-02')")
    sql("alter table db.t replace partition field months(day) with days(day)")
    sql("alter table db.t add partition field bucket(4, id)")
    sql("insert into db.t values (2, date'2026-02-02')")
    sql("alter table db.t drop partition field bucket(4, id)")
    sql("insert into db.t values (3, date'2026-02-03')")
    assert sql("select count(distinct spec_id) from db.t.files") == [(3,)]
    assert sql("select id from db.t where day >= date'2026-02-01' order by id") == [(2,), (3,)]


def test_time_is_travelled_by_version_timestamp_tag_and_publication(world: World) -> None:
    sql = world.session("master")
    sql("create table db.t as select 1L as id")
    [(first,)] = sql("select snapshot_id from db.t.snapshots")
    sql("alter table db.t create tag before_all")
    publication = world.served.publications
    between = datetime.now(UTC)
    time.sleep(0.01)
    sql("insert into db.t values (2)")
    moment = between.strftime("%Y-%m-%d %H:%M:%S.%f")
    at_first = [(1,)]
    assert sql(f"select id from db.t version as of {first}") == at_first
    assert sql("select id from db.t version as of 'before_all'") == at_first
    assert sql(f"select id from db.t timestamp as of '{moment}'") == at_first
    for context in (f"master@{publication}", f"master@{between.isoformat()}"):
        assert world.session(context)("select id from db.t") == at_first
    assert sql("select count(*) from db.t") == [(2,)]
    with pytest.raises(Exception, match="context_read_only"):
        world.session(f"master@{publication}")("insert into db.t values (3)")


def test_unit_is_written_whole_or_not_at_all(world: World) -> None:
    sql, store = world.session("master"), world.served.store
    sql("create table db.t as select 1L as id")
    for commits in (False, True):
        unit = store.transaction(branch="master")
        inside = world.session(unit.context)
        inside("insert into db.t values (2)")
        inside("delete from db.t where id = 1")
        inside("create table db.u as select id * 10 as id from db.t")
        assert inside("select id from db.u") == [(20,)]
        assert sql("select id from db.t") == [(1,)]
        if commits:
            unit.commit()
        else:
            unit.abort()
    assert (sql("select id from db.t"), sql("select id from db.u")) == ([(2,)], [(20,)])


def test_e05_rules_of_rows_bind_spark(world: World) -> None:
    store = world.served.store
    apply_text(store, GRAPH)
    store.mutate("master", insert_people("ana", "bo"))
    for context in ("master", "feature>master"):
        with pytest.raises(Exception, match=r"graph.person: the key id = 'ana' occurs 2 times"):
            world.session(context)(
                "insert into graph.person values ('cy', 'C', 7), ('ana', 'A', 7)"
            )
    sql = world.session("master")
    with pytest.raises(Exception, match=r"dst = 'eve' refers to no row of graph.person"):
        sql("insert into graph.knows values (1, 'ana', 'eve')")
    sql("insert into graph.knows values (1, 'ana', 'bo')")
    with pytest.raises(Exception, match=r"graph.knows: dst = 'bo' refers to no row"):
        sql("delete from graph.person where id = 'bo'")
    sql("update graph.person set age = 9 where id = 'bo'")
    sql(
        "merge into graph.person p using (select 'bo' as id) n on p.id = n.id "
        "when matched then update set name = 'Bo'"
    )
    assert sql("select name, age from graph.person where id = 'bo'") == [("Bo", 9)]
    assert (ids_of(store, PERSON), ids_of(store, KNOWS)) == (["ana", "bo"], [1])


def test_settings_of_the_page_read_a_branch_its_fallback_and_a_moment(world: World) -> None:
    master = world.session("master")
    master("create table db.t as select 1 as id")
    moment = f"master@{world.served.publications}"
    master("insert into db.t values (3)")
    trial = world.by_page("trial>master")
    trial("insert into db.t values (2)")
    found = {
        context: world.by_page(context)("select id from db.t order by id")
        for context in ("trial>master", "master", moment)
    }
    assert found == {"trial>master": [(1,), (2,), (3,)], "master": [(1,), (3,)], moment: [(1,)]}


def test_metadata_tables_tell_what_was_done(world: World) -> None:
    sql = world.session()
    sql("create table db.t partitioned by (half) as select id, id % 2 as half from range(4)")
    sql("delete from db.t where half = 1")
    counts = {
        **dict.fromkeys(("snapshots", "history"), 2),
        **dict.fromkeys(("files", "data_files", "partitions", "refs"), 1),
        "delete_files": 0,
    }
    found = {name: sql(f"select count(*) from db.t.{name}")[0][0] for name in counts}
    assert found == counts
    assert sql("select operation from db.t.snapshots order by committed_at") == [
        *(("append",), ("delete",)),
    ]
    for name in ("manifests", "entries", "all_data_files", "metadata_log_entries"):
        assert sql(f"select count(*) from db.t.{name}")[0][0] >= 2 - (name == "manifests")


def test_frames_are_written_in_every_mode(world: World) -> None:
    sql = world.session()
    rows = "select {} as id, '{}' as day"
    sql.write(rows.format(1, "mon"), "db.t").partitionedBy(_column("day")).create()
    sql.write(rows.format(2, "tue"), "db.t").append()
    sql.write(rows.format(3, "tue"), "db.t").overwritePartitions()
    assert sql("select * from db.t order by id") == [(1, "mon"), (3, "tue")]
    sql.write(rows.format(4, "mon"), "db.t").overwrite(_column("day") == "mon")
    assert sql("select * from db.t order by id") == [(3, "tue"), (4, "mon")]
    sql.write("select 5 as id", "db.t").replace()
    assert sql("select * from db.t") == [(5,)]
    sql.write("select 6 as id", "db.t").tableProperty("a", "b").createOrReplace()
    assert sql("select * from db.t") == [(6,)]
    with pytest.raises(Exception, match="already exists"):
        sql.write("select 7 as id", "db.t").create()


def _column(name: str) -> Any:
    from pyspark.sql import functions

    return functions.col(name)


def test_stream_goes_on_where_it_stopped_and_repeats_nothing(world: World, tmp_path: Path) -> None:
    sql, checkpoint = world.session(), tmp_path / "checkpoint"
    sql("create table db.source as select id from range(3)")
    sql("create table db.target (id bigint)")

    def stream() -> None:
        frame = world.session().spark.readStream.table("db.source")
        writer = frame.writeStream.option("checkpointLocation", str(checkpoint))
        query = writer.trigger(availableNow=True).outputMode("append").toTable("db.target")
        assert query.awaitTermination(120)

    stream()
    sql("insert into db.source values (3)")
    stream()
    assert sql("select id from db.target order by id") == [(0,), (1,), (2,), (3,)]
    # Simulates a driver that died between its commit to the table and its own record of it.
    for mark in ("1", ".1.crc"):
        (checkpoint / "commits" / mark).unlink(missing_ok=True)
    sql("insert into db.source values (4)")
    stream()
    assert sql("select id from db.target order by id") == [(n,) for n in range(5)]
    assert world.session("master")("show tables in db") == []


def test_two_engines_on_two_branches_at_once_do_not_meet(world: World) -> None:
    master = world.session("master")
    master("create table db.t as select 0L as id")
    spark, arrow = world.session("one>master"), world.arrow("two>master")

    def by_spark() -> None:
        for number in range(1, 4):
            spark(f"insert into db.t values ({number})")

    def by_pyiceberg() -> None:
        for number in range(10, 16):
            rows = pa.table({"id": pa.array([number], pa.int64())})
            arrow.load_table("db.t").append(rows)

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(by_spark), pool.submit(by_pyiceberg)]:
            done.result(300)
    assert spark("select sum(id), count(*) from db.t") == [(6, 4)]
    assert world.session("two")("select sum(id), count(*) from db.t") == [(75, 7)]
    assert sorted(arrow.load_table("db.t").scan().to_arrow()["id"].to_pylist())[0] == 0
    assert master("select id from db.t") == [(0,)]


def test_session_whose_sibling_was_active_last_keeps_to_its_own_branch(
    world: World, tmp_path: Path
) -> None:
    master, feature = world.session("master"), world.session("feature>master")
    for name in ("source", "target"):
        master(f"create table db.{name} as select 1L as id")
    # Makes master's session the active one of this thread; some calls read its settings.
    master.spark.createDataFrame([(1,)], "id long").count()
    assert feature.spark.catalog.currentCatalog() == "headgate"
    writer = feature.spark.readStream.table("db.source").writeStream
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    assert writer.trigger(availableNow=True).toTable("db.target").awaitTermination(120)
    assert feature("select count(*) from db.target") == [(2,)]
    assert master("select count(*) from db.target") == [(1,)]
