"""The pytest plugin in a user's project: installed, in a separate pytest."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.timeout(900)

_PIPELINE = """
    from pyspark.sql import functions as F
    from headgate.transforms import Input, Output, transform_df

    @transform_df(Output("shop.totals"), orders=Input("shop.orders"))
    def totals(orders):
        return orders.groupBy("region").agg(F.sum("amount").alias("total"))
"""

_TESTS = """
    import pytest
    from pipeline import totals

    ORDERS = [("north", 1), ("north", 2), ("south", 5)]
    SCHEMA = "region string, amount long"

    def shown(project, context=None):
        return {r["region"]: r["total"] for r in project.rows("shop.totals", context=context)}

    def test_transform_called_on_frames(headgate_spark):
        rows = totals(headgate_spark.createDataFrame(ORDERS, SCHEMA)).collect()
        assert {row.region: row.total for row in rows} == {"north": 3, "south": 5}

    def test_change_stays_on_the_branch_until_it_is_promoted(headgate_project):
        project = headgate_project
        project.put_table("shop.orders", ORDERS, SCHEMA)
        project.build("shop.totals", branch="master")
        project.edit("pipeline.py", "F.sum", "F.max")
        project.build("shop.totals")
        assert shown(project) == {"north": 2, "south": 5}
        assert shown(project, "master") == {"north": 3, "south": 5}
        project.merge()
        promoted = project.build("shop.totals", branch="master")
        assert [job.state.value for job in promoted.jobs] == ["adopted"]
        assert shown(project, "master") == {"north": 2, "south": 5}

    @pytest.mark.parametrize("moment", ["started", "written"])
    def test_killed_attempt_is_retried(headgate_project, headgate_failpoints, moment):
        headgate_project.put_table("shop.orders", ORDERS, SCHEMA)
        headgate_failpoints.kill("shop.totals", at=moment)
        [job] = headgate_project.build("shop.totals", retries=1).jobs
        assert job.attempts == 2 and len(headgate_failpoints.struck) == 1
        assert shown(headgate_project) == {"north": 3, "south": 5}

    def test_zombie_is_refused(headgate_project, headgate_failpoints):
        headgate_project.put_table("shop.orders", ORDERS, SCHEMA)
        headgate_failpoints.make_zombie("shop.totals")
        [job] = headgate_project.build("shop.totals", retries=1).jobs
        assert job.attempts == 2
        assert "superseded" in headgate_failpoints.struck[0]
        assert shown(headgate_project) == {"north": 3, "south": 5}

    def test_store_is_empty_for_each_test(headgate_store, headgate_branch):
        assert headgate_branch == "test/test_store_is_empty_for_each_test"
        assert not headgate_store.dataset("shop.orders").exists()
"""

_LIGHT = """
    import sys

    def test_nothing_heavy_is_loaded():
        heavy = {"pyspark", "sqlalchemy", "starlette", "headgate.store", "headgate.spark"}
        assert not heavy & set(sys.modules)
        assert "headgate.testing.plugin" in sys.modules

    def test_files_alone_start_no_spark(headgate_store, headgate_shared_spark):
        headgate_store.dataset("raw.scans").create(kind="files")
        assert headgate_store.dataset("raw.scans").exists()
        assert not headgate_shared_spark.is_started
        assert "pyspark" not in sys.modules
"""


def test_plugin_in_a_project_of_its_own_passes_its_tests(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\npythonpath = .")
    pytester.makepyfile(pipeline=_PIPELINE, test_pipeline=_TESTS)
    result = pytester.runpytest_subprocess("-p", "no:xdist", "--durations=10")
    result.assert_outcomes(passed=6)


def test_plugin_in_a_project_without_spark_loads_none(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_light=_LIGHT)
    result = pytester.runpytest_subprocess("-p", "no:xdist")
    result.assert_outcomes(passed=2)
