"""Incremental jobs on Spark over files: each path is read once, others on demand."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.cli.format import extent_text
from headgate.model.nouns import BuildState
from headgate.spark.engines import SharedJvm
from tests.support.projects import Project, new_project
from tests.support.stores import content, files_branch, put
from tests.support.tables import read_table

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]

_PIPELINE = """\
from headgate.transforms import Input, Output, incremental, transform, transform_pandas

def names(files):
    return [file.path for file in files.ls()]

@incremental(strict_append=True)
@transform(raw=Input("raw.csv"), rows=Output("shop.rows"), log=Output("shop.log", kind="files"))
def load(ctx, raw, rows, log):
    lines = ctx.spark_session.read.text(raw.filesystem().hadoop_path).selectExpr("value as line")
    if ctx.is_incremental:
        # A column that the table has not got yet.
        known = len(names(raw.filesystem("previous")))
        lines = lines.selectExpr("line", f"{known}L as known")
        assert sorted(names(raw.filesystem("current"))) == ["a", "b", "c"]
    rows.write_dataframe(lines)
    number = len(names(log.filesystem("previous")))
    with log.filesystem().open(f"{number}.txt", "w") as file:
        file.write(",".join(names(raw.filesystem())))

@incremental()
@transform(log=Input("shop.log"), newest=Output("shop.newest", kind="files"))
def keep_newest(log, newest):
    newest.set_mode("replace")
    for name in names(log.filesystem()):
        with newest.filesystem().open(name, "w") as file:
            file.write("newest")

@transform_pandas(Output("shop.count"), rows=Input("shop.rows"))
def count(rows):
    return rows.groupby("line", as_index=False).size()
"""


def _build(project: Project) -> dict[str, str]:
    outcome = project.build("shop.count shop.newest")
    assert outcome.state is BuildState.SUCCEEDED, [job.error for job in outcome.jobs]
    return {job.title: extent_text(job.to_json().get("incremental")) for job in outcome.jobs}


def test_incremental_job_reads_each_file_once_and_the_rest_on_demand(
    sqlite_url: str, tmp_path: Path, jvm: SharedJvm
) -> None:
    project = new_project(sqlite_url, tmp_path, jvm)
    with project.store as store:
        project.publish(pipeline=_PIPELINE)
        raw = files_branch(store, "raw.csv")
        put(raw, a="1", b="2")
        _build(project)
        put(raw, c="3")
        said = _build(project)

        assert said["shop.rows, shop.log"] == "incremental: reads raw.csv 2"
        assert said["shop.newest"] == "incremental: reads shop.log 2"
        rows = sorted(read_table(store, "master", "shop.rows"), key=lambda row: row["line"])
        assert rows == [
            {"line": "1", "known": None},
            {"line": "2", "known": None},
            {"line": "3", "known": 2},
        ]
        assert content(store.dataset("shop.log").branch("master")) == {"0.txt": "a,b", "1.txt": "c"}
        assert content(store.dataset("shop.newest").branch("master")) == {"1.txt": "newest"}
        newest = store.dataset("shop.newest").branch("master").history()[0]
        assert newest.type == "SNAPSHOT"
        assert store.dataset("shop.rows").branch("master").history()[0].type == "APPEND"
        assert len(read_table(store, "master", "shop.count")) == 3
