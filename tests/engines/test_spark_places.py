"""A store whose Spark is a cluster, or a Connect server: builds, sessions, the command line."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from headgate.errors import EndpointNotNamed, SparkUnavailable
from headgate.settings import Settings, SparkSettings
from headgate.spark.java import ICEBERG, ensure_jars, find_cached_jars, find_java_home
from headgate.store.embedded import Store
from tests.support.projects import Project, spark_settings
from tests.support.repositories import new_repository
from tests.support.serving import serving
from tests.support.shell import headgate_json, run_headgate
from tests.support.spark_servers import EXECUTOR_CONF
from tests.support.two_bundles import assert_each_used_its_own, publish_two_bundles

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]

# Two tasks that would occupy both cores of the server for an hour.
_ENDLESS = """\
from headgate.transforms import Output, configure, transform_df

@configure(allowed_run_duration=8)
@transform_df(Output("shop.slow"))
def slow(ctx):
    sleep = "java_method('java.lang.Thread', 'sleep', 3600000L) as note"
    return ctx.spark_session.range(0, 2, 1, 2).selectExpr("id", sleep)
"""
_BROKEN = """\
from pyspark.sql import functions as F
from headgate.transforms import Output, transform_df
from lib.rules import broken

@transform_df(Output("shop.broken"))
def fail(ctx):
    return ctx.spark_session.range(1).select(F.udf(broken, "long")("id").alias("id"))
"""


def settings_of(catalog_url: str, root: Path, **spark: str) -> Settings:
    made = spark_settings(catalog_url, root / "store")
    environ = {**made.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
    return replace(made, environ=environ, spark=SparkSettings(conf=EXECUTOR_CONF, **spark))


def project_of(settings: Settings, root: Path) -> Project:
    return Project(work=new_repository(root / "repository"), store=Store(settings))


def variables(settings: Settings, **more: str) -> dict[str, str]:
    """Return the variables that make the command line use the same store."""
    return {
        "HEADGATE_STORE_CATALOG": settings.catalog,
        "HEADGATE_STORE_WAREHOUSE": settings.warehouse,
        "SPARK_LOCAL_IP": "127.0.0.1",
        **more,
    }


def assert_failure_names_the_users_line(project: Project) -> None:
    project.publish(broken=_BROKEN)
    outcome = project.build("shop.broken", branch="feature")
    [job] = outcome.jobs
    assert job.error is not None
    assert (job.error["file"], job.error["line"]) == ("lib/rules.py", 7), job.error
    assert "ZeroDivisionError" in job.error["message"]


def test_cluster_builds_two_bundles_and_answers_the_command_line(
    spark_cluster: str, sqlite_url: str, tmp_path: Path
) -> None:
    settings = settings_of(sqlite_url, tmp_path, master=spark_cluster)
    project = project_of(settings, tmp_path)
    with project.store:
        publish_two_bundles(project)
        assert_each_used_its_own(project)
        assert_failure_names_the_users_line(project)
    words = ("sql", "--engine", "spark", "-b", "feature", "select id from shop.c", "--json")
    given = variables(settings, HEADGATE_SPARK_MASTER=spark_cluster)
    done = run_headgate(*words, cwd=settings.root, **given)
    assert (done.returncode, json.loads(done.stdout or "null"), done.stderr) == (
        0,
        [{"id": 6}],
        "engine: spark\n",
    )


def test_connect_server_builds_two_bundles_and_a_session_reads_them(
    spark_connect: str, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # PySpark sets it for the rest of the process.
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    settings = settings_of(
        sqlite_url, tmp_path, remote=spark_connect, endpoint="http://127.0.0.1:0"
    )
    project = project_of(settings, tmp_path)
    with project.store as store:
        publish_two_bundles(project)
        assert_each_used_its_own(project)
        assert_failure_names_the_users_line(project)
        spark = store.spark("feature>master")
        assert [row.id for row in spark.sql("select id from shop.c").collect()] == [6]


def test_connect_job_past_its_deadline_leaves_nothing_running(
    spark_connect: str, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    settings = settings_of(
        sqlite_url, tmp_path, remote=spark_connect, endpoint="http://127.0.0.1:0"
    )
    project = project_of(settings, tmp_path)
    with project.store as store:
        project.publish(slow=_ENDLESS)
        [job] = project.build("shop.slow").jobs
        assert job.error is not None and "deadline" in job.error["message"]
        # Both cores of the server are free again.
        frame = store.spark("master").range(0, 4, 1, 2)
        assert frame.count() == 4


def test_connect_through_a_served_endpoint_answers_the_command_line(
    spark_connect: str, tmp_path: Path
) -> None:
    headgate_json("init", cwd=tmp_path)
    with serving(tmp_path) as (url, _, _process):
        given = {"HEADGATE_SPARK_REMOTE": spark_connect, "HEADGATE_SPARK_ENDPOINT": url}
        done = run_headgate("sql", "create namespace shop", cwd=tmp_path, **given)
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        done = run_headgate("sql", "show namespaces", "--json", cwd=tmp_path, **given)
        assert json.loads(done.stdout) == [{"namespace": "shop"}], done.stderr
        assert done.stderr.startswith("engine: spark (") and done.stderr.count("\n") == 1
    [lent] = [t for t in headgate_json("token", "list", cwd=tmp_path) if t["role"] == "writer"][:1]
    assert lent["revoked_at"] is not None


def test_connect_without_an_endpoint_that_it_can_reach_says_what_to_name(
    sqlite_url: str, tmp_path: Path
) -> None:
    remote = "sc://spark.example:15002"
    with (
        Store(settings_of(sqlite_url, tmp_path, remote=remote)) as store,
        pytest.raises(EndpointNotNamed, match=r"\[spark\] endpoint"),
    ):
        store.spark("master")
    gone = replace(
        store.settings, spark=SparkSettings(remote=remote, endpoint="http://127.0.0.1:9")
    )
    with Store(gone) as store, pytest.raises(SparkUnavailable, match="no server answers at"):
        store.spark("master")


def test_sql_on_the_command_line_is_quiet_and_needs_no_network_once_jars_are_cached(
    tmp_path: Path,
) -> None:
    machine = spark_settings(f"sqlite:///{tmp_path / 'unused.db'}", tmp_path / "unused")
    java_home = find_java_home(machine.environ, machine.cache)
    ensure_jars(machine.cache, java_home=java_home, environ=machine.environ)
    place = tmp_path / "cache" / "jars" / ICEBERG.replace(":", "_")
    place.mkdir(parents=True)
    for jar in find_cached_jars(machine.cache, ICEBERG):
        shutil.copy(jar, place)
    headgate_json("init", cwd=tmp_path)
    nowhere = "http://127.0.0.1:9"
    offline = {
        **dict.fromkeys(("http_proxy", "https_proxy", "HTTPS_PROXY", "HTTP_PROXY"), nowhere),
        "DEFAULT_ARTIFACT_REPOSITORY": nowhere,
        "HEADGATE_CACHE": str(tmp_path / "cache"),
    }
    words = ("sql", "--engine", "spark", "select 1 as one", "--json")
    done = run_headgate(*words, cwd=tmp_path, **offline)
    assert (done.returncode, json.loads(done.stdout or "null"), done.stderr) == (
        0,
        [{"one": 1}],
        "engine: spark\n",
    )
