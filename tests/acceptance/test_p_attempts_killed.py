"""P01, P02, P05–P08, P10: real processes, killed, paused and resumed, on the local orchestrator."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from headgate.model.failpoints import Failpoint
from headgate.tasks.attempt_directory import attempt_directory, sweep_directories
from headgate.tasks.messages import Status
from headgate.tasks.supervisor import PROCESS, LocalResult
from headgate.testing.failpoints import reached_file
from tests.support.oracle import assert_store_sound
from tests.support.processes import is_alive, running
from tests.support.stores import load
from tests.support.task_runs import Stage, new_stage, supervise, wait_for
from tests.support.tasks import shown, view_of

_OLD = {"a": "1", "b": "2"}


@pytest.fixture
def stage(made_catalog_url: str, tmp_path: Path) -> Stage:
    return new_stage(made_catalog_url, tmp_path)


def _ref(result: LocalResult) -> str:
    assert result.outcome.output is not None, result.outcome
    ref: str = result.outcome.output["workspace"]["ref"]
    return ref


def test_p01_completion_lost_after_publishing_is_replaced_by_the_retry(stage: Stage) -> None:
    data = stage.data({"lost": "x"}, {"kept": "y"})
    result = stage.run(data, command=stage.armed("die", Failpoint.TASK_PUBLISHED))
    assert (result.outcome.status, result.attempts) == (Status.COMPLETED, 2)
    with stage.workshop.open() as store:
        assert shown(store) == {**_OLD, "kept": "y"}
        assert _ref(result) == view_of(store)
        assert load(store, _ref(result)).parent == stage.given
        assert_store_sound(store)
    assert stage.workshop.attempts_left() == []


def test_p02_completion_lost_and_a_retry_without_change_returns_to_the_input(stage: Stage) -> None:
    data = stage.data({"lost": "x"}, {})
    result = stage.run(data, command=stage.armed("die", Failpoint.TASK_PUBLISHED))
    assert (_ref(result), result.attempts) == (stage.given, 2)
    with stage.workshop.open() as store:
        assert (shown(store), view_of(store)) == (_OLD, stage.given)
        assert_store_sound(store)


@pytest.mark.parametrize(
    "point",
    [
        Failpoint.TASK_DOWNLOADING,
        Failpoint.TASK_DOWNLOADED,
        Failpoint.TASK_BODY_DONE,
        Failpoint.TASK_FENCED_FIRST,
        Failpoint.FILES_OBJECT_STORED,
        Failpoint.TASK_STAGED,
        Failpoint.TASK_FENCED_SECOND,
        Failpoint.PUBLISH_APPLIED,
        Failpoint.TASK_PUBLISHED,
        Failpoint.TASK_ENDED,
    ],
)
def test_p07_executor_killed_anywhere_is_followed_by_one_that_completes(
    stage: Stage, point: Failpoint
) -> None:
    data = stage.data({"new": "x"}, {"new": "y"}, {"new": "y"})
    result = stage.run(data, command=stage.armed("die", point))
    assert (result.outcome.status, result.attempts) == (Status.COMPLETED, 2)
    assert reached_file(stage.flags, point).exists()
    assert stage.workshop.attempts_left() == []
    with stage.workshop.open() as store:
        before_body = point in {Failpoint.TASK_DOWNLOADING, Failpoint.TASK_DOWNLOADED}
        assert shown(store) == {**_OLD, "new": "x" if before_body else "y"}
        assert load(store, str(view_of(store))).parent == stage.given
        assert_store_sound(store)


def test_p07_executor_killed_in_its_body_every_time_is_reported_failed(stage: Stage) -> None:
    result = stage.run(stage.data({"new": "x", "!kill": ""}))
    assert (result.outcome.status, result.outcome.code) == (Status.FAILED, "attempt_died")
    assert "SIGKILL" in str(result.outcome.reason) and result.attempts == 2
    with stage.workshop.open() as store:
        assert (shown(store), view_of(store)) == (_OLD, stage.given)
    assert stage.workshop.attempts_left() == []


def test_p05_attempt_that_stood_still_is_refused_when_it_resumes(stage: Stage) -> None:
    results: list[LocalResult] = []
    data = stage.data({"zombie": "x"}, {"newer": "y"})
    command = stage.armed("stop", Failpoint.TASK_FENCED_SECOND)
    thread = threading.Thread(
        target=lambda: results.append(stage.run(data, retries=0, command=command))
    )
    thread.start()
    wait_for((stage.flags / "pid").exists)
    newer = stage.run(data, retries=0)
    os.kill(int((stage.flags / "pid").read_text()), signal.SIGCONT)
    thread.join()
    assert newer.outcome.status is Status.COMPLETED
    assert (results[0].outcome.status, results[0].outcome.code) == (
        Status.FAILED,
        "attempt_superseded",
    )
    with stage.workshop.open() as store:
        assert shown(store) == {**_OLD, "newer": "y"}
        assert_store_sound(store)


def test_p06_supervisor_killed_takes_its_attempt_along_and_a_new_one_starts_clean(
    stage: Stage,
) -> None:
    data = stage.data({"half": "x"}, {"whole": "y"}, wait=True)
    pid_file = stage.directory / "counter.pid"
    with running(supervise, stage, data, PROCESS) as supervisor:
        wait_for(lambda: pid_file.exists() and pid_file.read_text() != "")
        executor = int(pid_file.read_text())
        assert len(stage.workshop.attempts_left()) == 1
        supervisor.kill()
        supervisor.join()
        wait_for(lambda: not is_alive(executor), "the attempt outlived its supervisor")
    (stage.directory / "go-on").touch()
    result = stage.run(data)
    assert result.outcome.status is Status.COMPLETED
    assert stage.workshop.attempts_left() == []
    with stage.workshop.open() as store:
        assert shown(store) == {**_OLD, "whole": "y"}
        assert_store_sound(store)


def test_p06_sweep_leaves_a_living_attempts_directory_alone(tmp_path: Path) -> None:
    with attempt_directory(tmp_path, "living", {"task": "t"}) as living:
        (living / "a").write_text("1")
        assert sweep_directories(tmp_path) == []
        assert (living / "a").read_text() == "1"
    assert sweep_directories(tmp_path) == [living.parent]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_p08_signal_lets_the_attempt_finish_and_the_command_say_so(
    stage: Stage, tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "input.json").write_text(json.dumps(stage.data({"new": "x"}, wait=True)))
    words = ["task", "run", stage.module, "--input", "input.json", "--json"]
    command = [sys.executable, "-m", "headgate", *words]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE) as process:
        wait_for((tmp_path / "counter.pid").exists)
        process.send_signal(number)
        time.sleep(0.3)
        (tmp_path / "go-on").touch()
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert json.loads(out)["status"] == "COMPLETED"


def test_p10_body_past_its_deadline_is_stopped_and_reported(
    made_catalog_url: str, tmp_path: Path
) -> None:
    stage = new_stage(made_catalog_url, tmp_path, seconds=4, response=3)
    result = stage.run(stage.data({"new": "x", "!hang": ""}), retries=0)
    assert (result.outcome.status, result.outcome.code) == (Status.FAILED, "task_deadline")
    assert stage.workshop.attempts_left() == []
    with stage.workshop.open() as store:
        assert shown(store) == _OLD


def test_input_of_another_shape_fails_at_once_with_its_reason_and_a_log(stage: Stage) -> None:
    result = stage.run({"workspace": 3, "params": {}}, retries=3)
    assert (result.outcome.status, result.outcome.code) == (Status.FAILED, "invalid_task_input")
    assert result.attempts == 1
    assert result.log.exists()
