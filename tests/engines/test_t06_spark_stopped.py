"""T06: a JVM that is killed is reported as Spark's end, and its jobs are retried in another."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from headgate.builds.report import BuildOutcome
from headgate.cli import main as cli
from headgate.cli.build import job_tree
from headgate.errors import SparkStopped
from headgate.model.nouns import BuildState
from headgate.settings import Settings, SparkSettings
from headgate.spark.sql import run_sql
from headgate.store.embedded import Store
from tests.support.processes import run
from tests.support.projects import Project, new_project, spark_settings
from tests.support.repositories import new_repository
from tests.support.rows import apply_text
from tests.support.shell import run_headgate
from tests.support.spark_servers import EXECUTOR_CONF, running_connect
from tests.support.stores import DATASET, files_branch, put
from tests.support.tables import read_table
from tests.support.task_modules import write_module

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]

# Each job runs a Spark job that does not end while its flag exists. The first one reports the
# process id of the JVM. `last` waits in Python, and finds the JVM gone when it uses Spark again.
_PIPELINE = """\
import os, time
from pathlib import Path
from headgate.transforms import Input, Output, transform, transform_df

FLAGS = Path("{flags}")

def wait_in_spark(ctx, name):
    if not (FLAGS / name).exists():
        return
    (FLAGS / name).unlink()
    jvm = ctx.spark_session._jvm.java.lang.ProcessHandle.current().pid()
    (FLAGS / f"{{name}}.part").write_text(str(jvm))
    (FLAGS / f"{{name}}.part").rename(FLAGS / f"{{name}}.jvm")
    sleep = "java_method('java.lang.Thread', 'sleep', 3600000L) as note"
    ctx.spark_session.range(1).selectExpr(sleep).collect()

@transform_df(Output("shop.one"))
def one(ctx):
    wait_in_spark(ctx, "one")
    return ctx.spark_session.range(1)

@transform_df(Output("shop.two"))
def two(ctx):
    wait_in_spark(ctx, "two")
    return ctx.spark_session.range(2)

@transform_df(Output("shop.sum"), a=Input("shop.one"), b=Input("shop.two"))
def both(a, b):
    return a.union(b)
"""


def _kill_when_both_run(flags: Path, killed: list[int]) -> None:
    deadline = time.monotonic() + 180
    files = [flags / "one.jvm", flags / "two.jvm"]
    while not all(file.exists() for file in files) and time.monotonic() < deadline:
        time.sleep(0.05)
    found = {int(file.read_text()) for file in files}
    # Both have begun to wait in the same JVM.
    time.sleep(1)
    for pid in found:
        os.kill(pid, signal.SIGKILL)
    killed.extend(found)
    for file in files:
        file.unlink()


def _build(project: Project, flags: Path, **options: Any) -> BuildOutcome:
    for name in ("one", "two"):
        (flags / name).touch()
    killed: list[int] = []
    killer = threading.Thread(target=_kill_when_both_run, args=(flags, killed))
    killer.start()
    outcome = project.build("shop.sum", **options)
    killer.join()
    assert len(killed) == 1
    return outcome


def test_t06_killed_jvm_is_sparks_end_and_its_jobs_are_retried_in_another(
    sqlite_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    project = new_project(sqlite_url, tmp_path, None)
    with project.store as store:
        project.publish(pipeline=_PIPELINE.format(flags=tmp_path))
        failed = _build(project, tmp_path)
        assert failed.state is BuildState.FAILED
        one, two, both = failed.jobs
        for job in (one, two):
            assert job.error is not None
            assert job.error["message"].startswith("Spark stopped (exit 137, out of memory?). ")
            assert job.error["code"] == "spark_stopped"
            # Neither the user's line nor the traceback of a defect.
            assert not {"file", "line", "traceback"} & job.error.keys()
            assert job.attempts == 1
        assert both.error is not None and both.state == "aborted"
        assert both.error["message"] in {"aborted: shop.one failed", "aborted: shop.two failed"}
        console = Console(file=io.StringIO(), width=200)
        with console.capture() as captured:
            console.print(job_tree("master", failed.live_jobs()))
        shown = captured.get()
        assert "Spark stopped (exit 137, out of memory?)" in shown
        assert "pipeline.py" not in shown

        retried = _build(project, tmp_path, retries=1)
        assert retried.state is BuildState.SUCCEEDED
        assert [job.attempts for job in retried.jobs] == [2, 2, 1]
        assert [job.error for job in retried.jobs] == [None, None, None]
        assert len(read_table(store, "master", "shop.sum")) == 3
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


# Finds the server by its descendants: Python workers are children of a daemon of the JVM.
_ON_CONNECT = """\
import os
from pathlib import Path
from pyspark.sql import functions as F
from headgate.transforms import Output, transform_df

def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

@transform_df(Output("shop.one"))
def one(ctx):
    pid = F.udf(lambda _: parent_of(os.getppid()), "long")
    [(server,)] = ctx.spark_session.range(1).select(pid("id")).collect()
    os.kill(server, 9)
    return ctx.spark_session.range(1)
"""


def test_t06_killed_connect_server_is_reported_as_its_end(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    with running_connect(tmp_path) as url:
        spark = SparkSettings(remote=url, endpoint="http://127.0.0.1:0", conf=EXECUTOR_CONF)
        settings = replace(spark_settings(sqlite_url, tmp_path / "store"), spark=spark)
        project = Project(work=new_repository(tmp_path / "repository"), store=Store(settings))
        with project.store:
            project.publish(pipeline=_ON_CONNECT)
            [job] = project.build("shop.one").jobs
    assert job.error is not None and job.error.get("code") == "spark_stopped", job.error
    place = url.removeprefix("sc://")
    assert f"the Spark Connect server at {place} stopped answering" in job.error["message"]
    assert "file" not in job.error


def _kill_jvm_of(session: Any) -> None:
    pid = session._jvm.java.lang.ProcessHandle.current().pid()
    os.kill(pid, signal.SIGKILL)


def load_and_lose_spark(settings: Settings, ended: Path) -> None:
    """Kill the JVM of a session before a statement and a load; entry point of a process."""
    found = []
    people = settings.root / "people.csv"
    people.write_text("id\nx\n")
    for act in ("sql", "load"):
        with Store(settings) as store:
            session = store.spark("master")
            session.range(1).collect()
            _kill_jvm_of(session)
            try:
                if act == "sql":
                    run_sql(session, "select 1")
                else:
                    store.load("master", {"shop.people": people}, engine="spark")
            except SparkStopped as stopped:
                found.append(stopped.message)
    ended.write_text("\n".join(found))


def optimize_and_lose_spark(settings: Settings, ended: Path) -> None:
    """Run a command whose JVM is killed when its session is open; entry point of a process."""
    opened = Store.spark

    def doomed(store: Store, context: str) -> Any:
        session = opened(store, context)
        session.range(1).collect()
        _kill_jvm_of(session)
        return session

    Store.spark = doomed  # type: ignore[assignment, method-assign]
    os.chdir(settings.root)
    sys.argv = ["headgate", "optimize", "shop.people", "-b", "master", "--engine", "spark"]
    with contextlib.redirect_stderr(io.StringIO()) as printed:
        try:
            cli.main()
        except SystemExit as exited:
            code = exited.code
    ended.write_text(f"exit code {code}: {printed.getvalue()}\n")


def _people(url: str, root: Path) -> Settings:
    """Return the settings of a store with an empty table `shop.people`, which commands find."""
    settings = spark_settings(url, root)
    place = f'[store]\ncatalog = "{settings.catalog}"\nwarehouse = "{settings.warehouse}"\n'
    (root / "headgate.toml").write_text(place)
    with Store(settings) as store:
        apply_text(store, '[dataset."shop.people"]\ncolumns = {id = "string"}\n')
    return settings


def test_t06_killed_jvm_of_optimize_ends_the_command_with_its_own_error(
    sqlite_url: str, tmp_path: Path
) -> None:
    settings = _people(sqlite_url, tmp_path)
    with Store(settings) as store:
        for id in ("a", "b"):
            store.mutate("master", f"insert into shop.people values ('{id}')")
        before = store.dataset("shop.people").branch("master").load().view
    assert run(optimize_and_lose_spark, settings, tmp_path / "ended") == 0
    shown = (tmp_path / "ended").read_text()
    assert shown.count("exit code 6: ") == 1, shown
    assert shown.count("Spark stopped (exit 137, out of memory?). ") == 1, shown
    assert "Traceback" not in shown and "Py4J" not in shown
    with Store(settings) as store:
        dataset = store.dataset("shop.people")
        assert [branch.name for branch in dataset.branches()] == ["master"]
        assert dataset.branch("master").load().view == before


_TASK = """
import os, signal
from headgate.tasks import TableSpec, WorkspaceSpec, task
from pathlib import Path
from pydantic import BaseModel


class Params(BaseModel):
    pass


class Result(BaseModel):
    count: int


@task(
    name="count",
    owner_email="a@b.c",
    workspace=WorkspaceSpec(read_only=True),
    tables=TableSpec(inputs=("shop.people",)),
)
def count(workspace: Path, params: Params, spark) -> Result:
    os.kill(spark._jvm.java.lang.ProcessHandle.current().pid(), signal.SIGKILL)
    return Result(count=spark.table("shop.people").count())
"""


def test_t06_killed_jvm_of_a_task_is_the_reason_of_its_failure(
    sqlite_url: str, tmp_path: Path
) -> None:
    settings = _people(sqlite_url, tmp_path)
    with Store(settings) as store:
        given = put(files_branch(store), a="1")
    workspace = {"repository": DATASET, "branch": "master", "ref_type": "commit", "ref": given}
    (tmp_path / "input.json").write_text(json.dumps({"workspace": workspace, "params": {}}))
    module = write_module(tmp_path, _TASK)
    words = ("task", "run", module, "--input", "input.json", "--retries", "0", "--json")
    done = run_headgate(*words, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    answer = json.loads(done.stdout)
    assert answer["reason"].startswith("Spark stopped (exit 137, out of memory?). "), answer


def test_t06_killed_jvm_of_a_statement_or_load_is_no_fault_of_either(
    sqlite_url: str, tmp_path: Path
) -> None:
    settings = spark_settings(sqlite_url, tmp_path)
    with Store(settings) as store:
        apply_text(store, '[dataset."shop.people"]\ncolumns = {id = "string"}\n')
    assert run(load_and_lose_spark, settings, tmp_path / "ended") == 0
    messages = (tmp_path / "ended").read_text().splitlines()
    assert len(messages) == 2
    assert all(m.startswith("Spark stopped (exit 137, out of memory?). ") for m in messages)
