"""Test of the pipeline on TPC-H data, at a scale that takes a second to generate."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TABLES = ("region", "nation", "supplier", "customer", "orders", "lineitem")


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """Parquet files of the tables, as the generator writes them."""
    directory = tmp_path_factory.mktemp("tpch")
    beside = Path(sys.executable).with_name("tpchgen-cli")
    generator = str(beside) if beside.exists() else shutil.which("tpchgen-cli")
    assert generator, "pip install tpchgen-cli"
    wanted = f"--tables={','.join(TABLES)}"
    command = [generator, "parquet", "-s", "0.001", wanted, f"--output-dir={directory}"]
    subprocess.run(command, check=True, capture_output=True)
    return directory


@pytest.fixture
def project(headgate_project, data):
    files = {f"{name}.parquet": (data / f"{name}.parquet").read_bytes() for name in TABLES}
    headgate_project.put_files("raw.tpch", files)
    return headgate_project


def test_reports_equal_the_same_queries_in_plain_sql(project, headgate_spark, data):
    outcome = project.build("report.pricing", "report.revenue")
    for name in TABLES:
        headgate_spark.read.parquet(str(data / f"{name}.parquet")).createOrReplaceTempView(name)
    [quantity] = headgate_spark.sql(
        "select sum(l_quantity) from lineitem where l_shipdate <= date '1998-09-02'"
    ).first()
    [revenue] = headgate_spark.sql(
        """select sum(l_extendedprice * (1 - l_discount))
           from lineitem, orders, customer, supplier
           where l_orderkey = o_orderkey and o_custkey = c_custkey
             and l_suppkey = s_suppkey and c_nationkey = s_nationkey"""
    ).first()
    assert sum(row["quantity"] for row in project.rows("report.pricing")) == quantity
    assert sum(row["revenue"] for row in project.rows("report.revenue")) == revenue
    # Six tables come from one job, in one publication.
    assert [len(job.transactions) for job in outcome.jobs] == [6, 1, 1]


def test_another_date_on_a_branch_makes_one_report_again(project):
    targets = ("report.pricing", "report.revenue")
    project.build(*targets, branch="master")
    before = project.rows("report.pricing", context="master")
    project.edit("pipeline/pricing.py", "1998-09-02", "1995-01-01")
    states = {job.title: job.state.value for job in project.build(*targets).jobs}
    assert states.pop("report.pricing") == "succeeded"
    assert set(states.values()) == {"skipped"}
    assert project.rows("report.pricing", context="master") == before
    assert project.rows("report.pricing") != before
