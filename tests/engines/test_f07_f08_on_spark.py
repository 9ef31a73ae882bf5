"""F07 and F08 on rows: appends to Iceberg tables, across branches, compaction, deletes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headgate.cli.format import extent_text
from headgate.model.nouns import BuildState
from headgate.spark.engines import SharedJvm
from headgate.store.embedded import Store
from tests.support.oracle import assert_rows_sound
from tests.support.projects import Project, new_project, spark_sql
from tests.support.tables import create_tables, iceberg_client, read_table

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]

# Each row records the number of rows of the input and of the output before it.
_PIPELINE = """\
from headgate.transforms import Input, Output, incremental, transform

@incremental()
@transform(orders=Input("shop.orders"), out=Output("shop.out"))
def copy(ctx, orders, out):
    before = orders.dataframe("previous").count()
    held = out.dataframe("previous", schema="id long, before long, held long").count()
    rows = orders.dataframe()
    assert rows.count() + before == orders.dataframe("current").count()
    out.write_dataframe(rows.selectExpr("id", f"{before}L as before", f"{held}L as held"))
    assert out.dataframe("added").count() == rows.count()
    assert out.dataframe().count() == held + rows.count()
"""
FEATURE: dict[str, Any] = {"branch": "feature", "fallback": ["master"]}


def _append(store: Store, context: str, *ids: int) -> None:
    with iceberg_client(store, context) as client:
        rows = pa.Table.from_pylist([{"id": id} for id in ids])
        client.load_table("shop.orders").append(rows)


def _built(project: Project, **options: Any) -> str:
    """Build, and return the extent of the job."""
    outcome = project.build("shop.out", **options)
    assert outcome.state is BuildState.SUCCEEDED, outcome.jobs[0].error
    return extent_text(outcome.jobs[0].to_json()["incremental"])


def _rows(store: Store, context: str) -> list[tuple[int, int, int]]:
    found = read_table(store, context, "shop.out")
    return sorted((row["id"], row["before"], row["held"]) for row in found)


def _additive_update(store: Store) -> None:
    with store.dataset("shop.orders").branch("master").transaction("UPDATE") as update:
        _append(store, f"txn:{update.id}", 6)
    assert store.dataset("shop.orders").branch("master").history()[0].type == "UPDATE"


def _compact_and_set_property(store: Store, jvm: SharedJvm) -> None:
    with iceberg_client(store, "master") as client:
        client.load_table("shop.orders").transaction().set_properties(
            owner="ana"
        ).commit_transaction()
    options = "options => map('rewrite-all', 'true')"
    call = f"call headgate.system.rewrite_data_files(table => 'shop.orders', {options})"
    spark_sql(store, jvm, "master", call)


def test_f07_f08_rows_of_tables_are_read_once_each(
    sqlite_url: str, tmp_path: Path, jvm: SharedJvm
) -> None:
    project = new_project(sqlite_url, tmp_path, jvm)
    with project.store as store:
        create_tables(store, "master", orders=[{"id": 1}, {"id": 2}])
        project.publish(pipeline=_PIPELINE)
        assert _built(project) == "full: shop.out was never built here"

        _append(store, "master", 3)
        _append(store, "master", 4)
        assert _built(project, **FEATURE) == "incremental: reads shop.orders 3..4"
        first = [(1, 0, 0), (2, 0, 0), (3, 2, 2), (4, 2, 2)]
        assert (_rows(store, "feature"), _rows(store, "master")) == (first, first[:2])

        _append(store, "master", 5)
        _compact_and_set_property(store, jvm)
        _additive_update(store)
        # Master had no build in between: it reads from 3 on, feature from 5 on.
        assert _built(project) == "incremental: reads shop.orders 3..8"
        assert _rows(store, "master") == [*first[:2], *((id, 2, 2) for id in (3, 4, 5, 6))]
        assert _built(project, **FEATURE) == "incremental: reads shop.orders 5..8"
        assert _rows(store, "feature") == [*first, (5, 4, 4), (6, 4, 4)]

        with iceberg_client(store, "master") as client:
            client.load_table("shop.orders").delete("id = 1")
        by = store.dataset("shop.orders").branch("master").history()[0]
        assert _built(project, **FEATURE).startswith(f"full: {by.id} ")
        assert _rows(store, "feature") == [(id, 0, 0) for id in (2, 3, 4, 5, 6)]
        assert store.dataset("shop.out").branch("feature").history()[0].type == "SNAPSHOT"
        assert_rows_sound(store)
