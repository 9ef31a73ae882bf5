"""A Spark that `headgate spark up` keeps warm: shared by commands, apart in everything else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headgate.settings import load_settings
from headgate.spark.warm import end_warm, join_warm, start_warm
from headgate.store.embedded import Store
from tests.support.projects import Project, spark_settings
from tests.support.repositories import new_repository
from tests.support.serving import serving
from tests.support.shell import headgate_json, run_headgate
from tests.support.two_bundles import assert_each_used_its_own, publish_two_bundles

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]

_JVM = "select java_method('java.lang.ProcessHandle', 'current') as jvm"
_SLEEP = "select java_method('java.lang.Thread', 'sleep', {}L) as s from range(1)"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Path]:
    """The directory of a store whose warm Spark ends with the test."""
    headgate_json("init", cwd=tmp_path)
    yield tmp_path
    end_warm(_work(tmp_path))


def _work(store: Path) -> Path:
    return store / ".headgate" / "work"


def _jvm_of(store: Path, *words: str, **variables: str) -> str:
    done = run_headgate("sql", _JVM, "--json", *words, cwd=store, **variables)
    assert done.returncode == 0, done.stderr
    [row] = json.loads(done.stdout)
    return str(row["jvm"])


def _await(condition: Callable[[], Any], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@contextmanager
def _command(store: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "headgate", *words],
        cwd=store,
        env=_environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_commands_share_one_spark_until_it_is_down(store: Path) -> None:
    assert headgate_json("spark", "status", cwd=store) == {"state": "none"}
    with _command(store, "spark", "up") as one, _command(store, "spark", "up") as two:
        said = sorted(process.communicate()[1] for process in (one, two))
    assert said == ["Spark is up already\n", "Spark is up; it ends after 30m without use\n"]
    record = _work(store) / "spark.json"
    assert record.stat().st_mode & 0o077 == 0

    shared = _jvm_of(store)
    assert _jvm_of(store) == shared
    assert _jvm_of(store, "--cold") != shared
    # Spark's own variable: a JVM that was started with it could behave in another way.
    assert _jvm_of(store, SPARK_EXAMPLE="1") != shared
    found = headgate_json("spark", "status", cwd=store)
    assert (found["state"], found["users"], found["same_settings"]) == ("running", 0, True)
    refused = run_headgate("spark", "up", cwd=store, SPARK_EXAMPLE="1")
    assert refused.returncode == 2 and "runs with other settings" in refused.stderr

    assert headgate_json("spark", "down", cwd=store) == {"ended": True}
    _await(lambda: not Path("/proc", shared).exists())
    assert headgate_json("spark", "down", cwd=store) == {"ended": False}
    assert not record.exists()


def test_client_of_a_server_has_a_warm_spark_of_its_own(tmp_path: Path) -> None:
    headgate_json("init", cwd=tmp_path)
    client = tmp_path / "client"
    client.mkdir()
    with serving(tmp_path) as (url, token, _process):
        given = {"HEADGATE_URL": url.removesuffix("/iceberg"), "HEADGATE_TOKEN": token}
        try:
            done = run_headgate("spark", "up", cwd=client, **given)
            assert done.returncode == 0, done.stderr
            assert _jvm_of(client, **given) == _jvm_of(client, **given)
        finally:
            end_warm(_work(client))


def test_builds_of_two_bundles_stay_apart_in_a_warm_spark(sqlite_url: str, tmp_path: Path) -> None:
    settings = spark_settings(sqlite_url, tmp_path / "store")
    with Store(settings, cold=False) as made:
        project = Project(work=new_repository(tmp_path / "repository"), store=made)
        assert start_warm(settings, made.scratch, 600)
        try:
            publish_two_bundles(project)
            assert_each_used_its_own(project)
            # It writes its log there if a build starts a JVM.
            assert not list(made.scratch.glob("spark-jobs-*"))
        finally:
            end_warm(made.scratch)


def test_jobs_of_a_killed_client_end_while_others_go_on(store: Path) -> None:
    headgate_json("spark", "up", cwd=store)
    jvm = join_warm(load_settings(store, _environ()), _work(store))
    assert jvm is not None
    with jvm, _command(store, "sql", _SLEEP.format(3_600_000)) as client:
        tracker = jvm._context.statusTracker()
        _await(lambda: list(tracker.getActiveJobIds()))
        assert headgate_json("spark", "status", cwd=store)["users"] == 2
        client.send_signal(signal.SIGKILL)
        _await(lambda: not list(tracker.getActiveJobIds()))
        assert jvm.alive
    _await(lambda: headgate_json("spark", "status", cwd=store)["users"] == 0)


def test_killed_spark_is_reported_and_later_commands_start_their_own(store: Path) -> None:
    headgate_json("spark", "up", cwd=store)
    shared = _jvm_of(store)
    with _command(store, "sql", _SLEEP.format(3_600_000), "--json") as client:
        _await(lambda: headgate_json("spark", "status", cwd=store)["users"] == 1)
        time.sleep(3)
        os.kill(int(shared), signal.SIGKILL)
        shown, _ = client.communicate()
    assert client.returncode == 6 and json.loads(shown)["code"] == "spark_stopped", shown
    found = headgate_json("spark", "status", cwd=store)
    assert found["state"] == "stopped" and "exit 137" in found["reason"], found
    assert _jvm_of(store) != shared
    # Started again, and its keeper killed: the JVM does not outlive it.
    headgate_json("spark", "up", cwd=store)
    again = _jvm_of(store)
    os.kill(headgate_json("spark", "status", cwd=store)["pid"], signal.SIGKILL)
    _await(lambda: not Path("/proc", again).exists())
    assert headgate_json("spark", "status", cwd=store)["state"] == "stopped"


def test_spark_without_use_ends_and_one_in_use_does_not(store: Path) -> None:
    settings = load_settings(store, _environ())
    assert start_warm(settings, _work(store), 3)
    jvm = join_warm(settings, _work(store))
    assert jvm is not None
    with jvm:
        time.sleep(6)
        assert jvm.alive
    _await(lambda: headgate_json("spark", "status", cwd=store) == {"state": "none"})
    refused = run_headgate("spark", "up", "--idle", "0", cwd=store)
    assert refused.returncode == 2 and "--idle is 0" in refused.stderr


def _environ() -> dict[str, str]:
    """The variables of `headgate_json`'s processes."""
    sources = str(Path(__file__).parents[2] / "src")
    return {**os.environ, "PYTHONPATH": sources}
