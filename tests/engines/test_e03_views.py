"""E03: a view made by Spark on a branch of a served store, and DuckDB on the table behind it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException

from headgate.model.access import Role
from headgate.spark.engines import SharedJvm
from headgate.spark.session import LocalSpark
from tests.support.api import Api
from tests.support.duckdb_engine import attached
from tests.support.engine_packages import DUCKDB
from tests.support.iceberg import Front, Served
from tests.support.pipelines import states
from tests.support.projects import new_project
from tests.support.spark import bind
from tests.support.tables import create_tables, read_table
from tests.support.views import view_schema, view_version

pytestmark = pytest.mark.xdist_group("spark")

Sql = Callable[[str], list[tuple[Any, ...]]]


@pytest.fixture
def session(local_spark: LocalSpark, api: Api) -> Callable[[str], Sql]:
    """Start a Spark session on a context of the served store."""

    def start(context: str) -> Sql:
        token = api.token("ana", Role.WRITER)
        spark = bind(local_spark.session, uri=f"{api.url}/iceberg", context=context, token=token)
        return lambda text: [tuple(row) for row in spark.sql(text).collect()]

    return start


def test_e03_view_made_by_spark_on_a_branch_is_read_there_and_after_the_merge_on_master(
    session: Callable[[str], Sql], api: Api
) -> None:
    master, feature = session("master"), session("feature>master")
    master("create namespace shop")
    master("create table shop.orders as select 1L as id, 10 as amount")
    feature("insert into shop.orders values (2, 300)")
    feature(
        "create view shop.large comment 'of 100' as select id from shop.orders where amount > 9"
    )
    assert feature("select id from shop.large order by id") == [(1,), (2,)]
    assert [row[1] for row in feature("show views in shop")] == ["large"]
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
        master("select * from shop.large")
    feature("create or replace view shop.large as select id from shop.orders where amount > 99")
    assert feature("select id from shop.large") == [(2,)]
    shown = api.admin.get("/datasets/shop.large/content", context="feature")
    assert shown["kind"] == "view"
    assert shown["queries"] == {"spark": "select id from shop.orders where amount > 99"}
    api.store.merge("feature", into="master")
    assert master("select id from shop.large") == [(2,)]
    assert api.store.dataset("shop.large").branch("master").load().view is not None
    token = api.token("ana", Role.READER)
    with attached(DUCKDB.require(), url=api.url, token=token, context="feature>master") as duck:
        assert duck("SELECT id FROM lake.shop.orders ORDER BY id") == [[1], [2]]


def test_view_of_spark_is_altered_renamed_and_dropped_on_its_branch(
    session: Callable[[str], Sql], api: Api
) -> None:
    master = session("master")
    master("create namespace shop")
    master("create table shop.orders as select 1L as id")
    master("create view shop.v (number comment 'its id') as select id from shop.orders")
    made = api.admin.get("/log")[0]["publication"]
    master("alter view shop.v set tblproperties ('a' = 'b')")
    feature = session("feature>master")
    feature("alter view shop.v rename to shop.w")
    feature("drop view if exists shop.v")
    assert feature("select number from shop.w") == [(1,)]
    assert master("select number from shop.v") == [(1,)]
    with pytest.raises(AnalysisException, match="already exists"):
        master("create table shop.v (id bigint)")
    master("drop view shop.v")
    assert master("show views in shop") == []
    # A moment shows the view, over the tables of that moment.
    past = session(f"master@{made}")
    assert past("select number from shop.v") == [(1,)]
    with pytest.raises(Exception, match="can only be read"):
        past("create or replace view shop.v as select 2 as id")


_PIPELINE = """
from headgate.transforms import Input, Output, transform_df

@transform_df(Output("job.ids"), large=Input("shop.large"), orders=Input("shop.orders"))
def reads(large, orders):
    return large

@transform_df(Output("job.none"), orders=Input("shop.orders"))
def writes(ctx, orders):
    ctx.spark_session.sql("create view shop.other as select 1 as id")
    return orders
"""


def test_build_reads_a_view_with_the_tables_behind_it_and_creates_none(
    sqlite_url: str, tmp_path: Path, jvm: SharedJvm, front: Front
) -> None:
    project = new_project(sqlite_url, tmp_path, jvm)
    with project.store as store:
        create_tables(store, "master", orders=[{"id": 1}, {"id": 200}])
        with Served(store, front).client() as client:
            body = {
                "name": "large",
                "schema": view_schema("id"),
                "view-version": {
                    **view_version({"spark": "select id from orders where id > 100"}),
                    "default-namespace": ["shop"],
                },
            }
            client.call("POST", "namespaces/shop/views", body).raise_for_status()
        project.publish(pipeline=_PIPELINE)
        outcome = project.build("job.ids job.none", branch="master")
        assert states(outcome) == {"job.ids": "succeeded", "job.none": "failed"}
        assert read_table(store, "master", "job.ids") == [{"id": 200}]
        (failed,) = (job for job in outcome.jobs if job.error)
        assert failed.error is not None
        assert "shop.other" in failed.error["message"]
