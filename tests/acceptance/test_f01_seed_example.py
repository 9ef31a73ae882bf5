"""F01: the worked example of the seed, exactly, through the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headgate.connection import open as open_store
from headgate.store.embedded import Store
from tests.support.repositories import Work, new_repository
from tests.support.shell import headgate_json
from tests.support.tables import create_tables, read_table

pytestmark = pytest.mark.timeout(600)

B = """\
from headgate.transforms import Input, Output, transform_df

@transform_df(Output("shop.b"), a=Input("shop.a"))
def b(a):
    return a.selectExpr("id", "amount * 10 as amount")
"""
C = """\
from headgate.transforms import Input, Output, transform_df

@transform_df(Output("shop.c"), b=Input("shop.b"))
def c(b):
    return b.groupBy().sum("amount").withColumnRenamed("sum(amount)", "total")
"""


def _example(root: Path, catalog_url: str) -> Work:
    """Create A, B and C on master; JobSpecs for B and C on `feature` only."""
    work = new_repository(root)
    work.write_file("README", "a pipeline")
    work.commit("empty pipeline")
    headgate_json("init", "--catalog", catalog_url, cwd=root)
    with open_store(root) as store:
        create_tables(
            store,
            "master",
            a=[{"id": 1, "amount": 1}, {"id": 2, "amount": 2}],
            b=[{"id": 1, "amount": 7}],
            c=[{"total": 7}],
        )
    work.git("checkout", "--quiet", "-b", "feature")
    work.write(pipeline__b=B, pipeline__c=C, pipeline____init__="")
    work.commit("B and C")
    return work


def _branches(root: Path, dataset: str) -> dict[str, Any]:
    return {b["name"]: b for b in headgate_json("branch", "list", dataset, cwd=root)}


def _masters(root: Path) -> dict[str, Any]:
    return {name: _branches(root, f"shop.{name}")["master"] for name in "abc"}


def test_f01_seed_example_builds_on_feature_and_is_promoted_without_computing(
    catalog_url: str, tmp_path: Path
) -> None:
    work = _example(tmp_path / "project", catalog_url)
    before = _masters(work.root)
    published = headgate_json("jobspecs", "publish", cwd=work.root)
    assert (published["branch"], len(published["published"])) == ("feature", 2)

    build = headgate_json(
        *("build", "shop.c", "-b", "feature", "--fallback", "master", "--upstream"), cwd=work.root
    )

    job_b, job_c = build["jobs"]
    assert build["state"] == "succeeded"
    assert job_b["inputs"] == [
        {"dataset": "shop.a", "branch": "master", "transaction": before["a"]["view"]}
    ]
    assert job_c["inputs"] == [
        {
            "dataset": "shop.b",
            "branch": "feature",
            "transaction": job_b["transactions"]["shop.b"],
        }
    ]
    for job, name in ((job_b, "b"), (job_c, "c")):
        feature = _branches(work.root, f"shop.{name}")["feature"]
        assert (feature["parent"], feature["open"]) == ("master", False)
        assert feature["view"] == job["transactions"][f"shop.{name}"]
        history = headgate_json("history", f"shop.{name}", "-b", "feature", cwd=work.root)
        on_feature = [t for t in history if t["branch"] == "feature"]
        assert [t["state"] for t in on_feature] == ["COMMITTED"]
    assert list(_branches(work.root, "shop.a")) == ["master"]
    assert _masters(work.root) == before

    _check_promotion(work, before)


def _check_promotion(work: Work, before: dict[str, Any]) -> None:
    work.git("checkout", "--quiet", "master")
    work.git("merge", "--quiet", "--no-ff", "--no-edit", "feature")
    headgate_json("jobspecs", "publish", cwd=work.root)
    promoted = headgate_json("build", "shop.c", "-b", "master", "--upstream", cwd=work.root)

    assert [job["state"] for job in promoted["jobs"]] == ["adopted", "adopted"]
    assert sum(job["spark_jobs"] for job in promoted["jobs"]) == 0
    assert _masters(work.root)["a"] == before["a"]
    with open_store(work.root) as store:
        assert _rows(store, "master") == _rows(store, "feature>master")
        assert read_table(store, "master", "shop.c") == [{"total": 30}]


def _rows(store: Store, context: str) -> list[Any]:
    return [read_table(store, context, f"shop.{name}") for name in "abc"]
