"""F09: a schema stays on its branch until the merge; the next build computes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headgate.spark.engines import SharedJvm
from headgate.store.embedded import Store
from tests.support.oracle import assert_rows_sound
from tests.support.pipelines import states
from tests.support.projects import new_project, spark_sql
from tests.support.tables import iceberg_client

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]

_PIPELINE = """\
from headgate.transforms import Output, transform_df

@transform_df(Output("shop.t"))
def t(ctx):
    return ctx.spark_session.range(3).selectExpr({columns})
"""
OLD = ([["id", "bigint"]], [[0], [1], [2]])
NEW = (
    [["id", "string"], ["score", "double"]],
    [["0", 0.0], ["1", 0.5], ["2", 1.0]],
)
_ICEBERG = {"bigint": "long"}


def _by_spark(store: Store, jvm: SharedJvm, context: str) -> tuple[list[Any], list[Any]]:
    described = spark_sql(store, jvm, context, "describe table shop.t")
    rows = spark_sql(store, jvm, context, "select * from shop.t order by id")
    return [column[:2] for column in described if column[0] in {"id", "score"}], rows


def _by_pyiceberg(store: Store, context: str) -> tuple[list[Any], list[Any]]:
    with iceberg_client(store, context) as client:
        table = client.load_table("shop.t")
        columns = [[field.name, str(field.field_type)] for field in table.schema().fields]
        rows = [list(row.values()) for row in table.scan().to_arrow().to_pylist()]
        return columns, sorted(rows)


def _check(store: Store, jvm: SharedJvm, context: str, wanted: tuple[Any, Any]) -> None:
    columns = [[name, _ICEBERG.get(type, type)] for name, type in wanted[0]]
    assert _by_spark(store, jvm, context) == wanted
    assert _by_pyiceberg(store, context) == (columns, wanted[1])


def test_f09_new_schema_is_seen_on_master_only_after_the_merge_and_without_a_spark_job(
    made_catalog_url: str, tmp_path: Path, jvm: SharedJvm
) -> None:
    project = new_project(made_catalog_url, tmp_path, jvm)
    with project.store as store:
        project.publish(pipeline=_PIPELINE.format(columns="'id'"))
        project.build("shop.t")
        project.work.git("checkout", "--quiet", "-b", "feature")
        columns = "'cast(id as string) as id', 'cast(id as double) / 2 as score'"
        project.publish(pipeline=_PIPELINE.format(columns=columns))
        project.build("shop.t", branch="feature", fallback=["master"])

        _check(store, jvm, "master", OLD)
        _check(store, jvm, "feature>master", NEW)

        project.merge("feature")
        promoted = project.build("shop.t")
        assert states(promoted) == {"shop.t": "adopted"}
        assert sum(job.spark_jobs for job in promoted.jobs) == 0
        _check(store, jvm, "master", NEW)
        assert_rows_sound(store)
