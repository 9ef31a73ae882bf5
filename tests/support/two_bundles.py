"""One build from two branches' code: both import `lib.rules`, which differs."""

from __future__ import annotations

from tests.support.projects import Project
from tests.support.tables import read_table

_RULES = """\
RATE = {rate}

def scaled(number):
    return number * RATE

def broken(number):
    return number // 0
"""
_TRANSFORM = """\
from pyspark.sql import functions as F
from pyspark.sql.types import LongType
from headgate.transforms import Input, Output, transform_df
from lib import rules
from lib.rules import scaled

by_row = F.udf(scaled, LongType())

@F.pandas_udf(LongType())
def by_pandas(numbers):
    from lib.rules import RATE
    return numbers * RATE

@transform_df(Output("shop.{name}"){given})
def {name}(ctx{argument}):
    rows = {rows}
    return rows.select(
        by_row("id").alias("id"),
        by_pandas("id").alias("by_pandas"),
        F.lit(rules.RATE).alias("plain"),
    )
"""
_B = _TRANSFORM.format(name="b", given="", argument="", rows="ctx.spark_session.range(1, 2)")
_C = _TRANSFORM.format(name="c", given=", b=Input('shop.b')", argument=", b", rows="b")


def publish_two_bundles(project: Project) -> None:
    """Publish B on feature by a rate of 2; B and C, which feature lacks, on master by one of 3."""
    project.publish(b=_B, lib__rules=_RULES.format(rate=3), lib____init__="")
    project.work.git("checkout", "--quiet", "-b", "feature")
    project.publish(lib__rules=_RULES.format(rate=2))
    project.work.git("checkout", "--quiet", "master")
    project.publish(c=_C)
    project.work.git("checkout", "--quiet", "feature")


def assert_each_used_its_own(project: Project) -> None:
    """Build C on feature: B by feature's rate, C by master's, in every kind of function."""
    outcome = project.build("shop.c", branch="feature", fallback=["master"])
    made = {job.title: (job.state.value, job.to_json()["jobspec_branch"]) for job in outcome.jobs}
    assert made == {
        "shop.b": ("succeeded", "feature"),
        "shop.c": ("succeeded", "master"),
    }, [job.error for job in outcome.jobs]
    assert all(job.spark_jobs > 0 and job.rows == 1 for job in outcome.jobs)
    store = project.store
    assert read_table(store, "feature", "shop.b") == [{"id": 2, "by_pandas": 2, "plain": 2}]
    assert read_table(store, "feature", "shop.c") == [{"id": 6, "by_pandas": 6, "plain": 3}]
