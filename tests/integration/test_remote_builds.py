"""Builds started by a client: recorded by the server, executed by the client's own Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.cli.format import extent_text
from headgate.client.store import RemoteStore
from headgate.model.nouns import BuildState
from headgate.server.app import create_server
from headgate.settings import Settings
from headgate.spark.engines import SharedJvm
from headgate.spark.jvm import GatewayAddress
from tests.support.afar import afar, until
from tests.support.iceberg import Front
from tests.support.oracle import assert_rows_sound
from tests.support.processes import running
from tests.support.projects import JoinedJvm
from tests.support.stores import content, files_branch, put
from tests.support.tables import read_table

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]

_PIPELINE = """\
from headgate.transforms import Check, Input, Output, expectations as E
from headgate.transforms import incremental, transform, transform_df

def names(files):
    return sorted(file.path for file in files.ls())

@incremental(strict_append=True)
@transform(raw=Input("raw.csv"), rows=Output("shop.rows"), log=Output("shop.log", kind="files"))
def load(ctx, raw, rows, log):
    lines = ctx.spark_session.read.text(raw.filesystem().hadoop_path).selectExpr("value as line")
    rows.write_dataframe(lines)
    seen = names(log.filesystem("previous"))
    with log.filesystem().open(f"{len(seen)}.txt", "w") as file:
        file.write(",".join(names(raw.filesystem())))

@transform_df(
    Output("shop.lengths", checks=Check(E.primary_key("line"), "one row a line", on_error="FAIL")),
    rows=Input("shop.rows"),
)
def lengths(rows):
    return rows.selectExpr("line", "length(line) as length")
"""


def test_build_from_afar_reads_and_writes_tables_and_files_as_a_local_one(
    tmp_path: Path, front: Front, jvm: SharedJvm
) -> None:
    with afar(tmp_path, front, jvm) as there:
        store = there.project.store
        there.project.publish(pipeline=_PIPELINE)
        raw = files_branch(store, "raw.csv")
        put(raw, a="1", b="22")
        shown: list[list[str]] = []
        first = there.build(
            "shop.lengths", watch=lambda jobs: shown.append([job.state.value for job in jobs])
        )
        assert first.state is BuildState.SUCCEEDED, [job.error for job in first.jobs]
        assert [(job.rows, job.spark_jobs > 0) for job in first.jobs] == [(2, True), (2, True)]
        assert shown[-1] == ["succeeded", "succeeded"] and ["running", "waiting"] in shown
        assert len(read_table(store, "master", "shop.lengths")) == 2
        assert [len(job.checks) for job in first.jobs] == [0, 1]

        put(raw, c="333")
        again = there.build("shop.lengths")
        said = extent_text(again.jobs[0].to_json()["incremental"])
        assert said == "incremental: reads raw.csv 2"
        log = store.dataset("shop.log").branch("master")
        assert content(log) == {"0.txt": "a,b", "1.txt": "c"}
        assert {t.actor for t in log.history()} == {"ana"}
        with RemoteStore(there.client.settings) as idle:
            fresh = idle.build(["shop.lengths"], branch="master", upstream=True)
            assert {job.state.value for job in fresh.jobs} == {"skipped"}
            assert "job_resources" not in vars(idle), "nothing was to be computed"
        # Neither side keeps files of a succeeded job.
        assert not list((tmp_path / "client").rglob("job.log"))


_TROUBLE = """\
import os, signal, time
from pathlib import Path
from headgate.transforms import Check, Input, Output, expectations as E, transform_df

FLAGS = Path("{flags}")

@transform_df(Output("shop.a"))
def a(ctx):
    if not (FLAGS / "died").exists():
        (FLAGS / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return ctx.spark_session.range(3)

@transform_df(Output("shop.b"), a=Input("shop.a"))
def b(a):
    return a.selectExpr("nonsense")

@transform_df(Output("shop.c", checks=Check(E.count().gt(9), "many", on_error="FAIL")),
              a=Input("shop.a"))
def c(a):
    return a

@transform_df(Output("shop.peek"))
def peek(ctx):
    return ctx.spark_session.table("headgate.shop.a")

@transform_df(Output("shop.slow"))
def slow(ctx):
    frame = ctx.spark_session.range(1)
    (FLAGS / "slow").touch()
    while not (FLAGS / "go").exists():
        time.sleep(0.02)
    return frame
"""


def test_trouble_of_a_job_from_afar_is_told_at_the_users_line(
    tmp_path: Path, front: Front, jvm: SharedJvm
) -> None:
    with afar(tmp_path, front, jvm) as there:
        there.project.publish(pipeline=_TROUBLE.format(flags=tmp_path))
        outcome = there.build("shop.a shop.b shop.c", retries=1)
        jobs = {job.title: job for job in outcome.jobs}
        assert {title: job.state.value for title, job in jobs.items()} == {
            "shop.a": "succeeded",
            "shop.b": "failed",
            "shop.c": "failed",
        }
        # Its first process was killed; a second attempt succeeded.
        assert (jobs["shop.a"].attempts, jobs["shop.a"].rows) == (2, 3)
        error = jobs["shop.b"].error or {}
        lines = _TROUBLE.splitlines()
        assert "nonsense" in lines[error["line"] - 1] and error["file"] == "pipeline.py"
        assert "many" in str(jobs["shop.c"].error) and not jobs["shop.c"].checks[0]["passed"]
        assert Path(jobs["shop.b"].log or "").is_relative_to(tmp_path / "client")
        # Its token gives access to the job's declared inputs, whatever its user may read.
        [peek] = there.build("shop.peek").jobs
        assert "did not declare 'shop.a'" in (peek.error or {})["message"]


def build_there(settings: Settings, address: GatewayAddress) -> None:
    """Run a client that builds; entry point of a process."""
    with RemoteStore(settings, jvm=JoinedJvm(address)) as hg:
        hg.build(["shop.slow"], branch="master")


def test_client_killed_in_the_middle_of_a_job_leaves_nothing_and_building_again_works(
    tmp_path: Path, front: Front, jvm: SharedJvm
) -> None:
    with afar(tmp_path, front, jvm, silent_seconds=10) as there:
        there.project.publish(pipeline=_TROUBLE.format(flags=tmp_path))
        with running(build_there, there.client.settings, jvm.address) as process:
            until((tmp_path / "slow").exists)
            process.kill()
        [record] = there.client.builds()
        until(lambda: there.client.build_record(record["build"])["state"] == "canceled")
        store = there.project.store
        assert not [b for b in store.branches("shop.slow") if b.name == "master"]
        (tmp_path / "go").touch()
        # A server with the usual timeout: this machine may be busy.
        front.app = there.api.app = create_server(store)
        assert there.build("shop.slow").state is BuildState.SUCCEEDED
        assert len(read_table(store, "master", "shop.slow")) == 1
        assert_rows_sound(store)
