"""F11: two JobSpecs of one build import the same module from two branches; each has its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.spark.jvm import SharedJvm
from tests.support.projects import new_project
from tests.support.tables import read_table

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]

_RULES = """\
RATE = {rate}

def scaled(number):
    return number * RATE
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


def test_f11_jobs_of_two_branches_each_use_their_own_module(
    sqlite_url: str, tmp_path: Path, jvm: SharedJvm
) -> None:
    project = new_project(sqlite_url, tmp_path, jvm)
    with project.store as store:
        project.publish(b=_B, c=_C, lib__rules=_RULES.format(rate=3), lib____init__="")
        project.work.git("checkout", "--quiet", "-b", "feature")
        (project.work.root / "c.py").unlink()
        project.publish(lib__rules=_RULES.format(rate=2))

        outcome = project.build("shop.c", branch="feature", fallback=["master"])

        made = {
            job.title: (job.state.value, job.decision.job.jobspec_branch) for job in outcome.jobs
        }
        assert made == {
            "shop.b": ("succeeded", "feature"),
            "shop.c": ("succeeded", "master"),
        }
        assert read_table(store, "feature", "shop.b") == [{"id": 2, "by_pandas": 2, "plain": 2}]
        assert read_table(store, "feature", "shop.c") == [{"id": 6, "by_pandas": 6, "plain": 3}]
