"""P01, P02, P05–P08 against a real Conductor: its own timeouts, retries, restart and rerun."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.model.access import Role
from headgate.model.failpoints import Failpoint
from headgate.testing.failpoints import reached_file
from tests.support.api import Api
from tests.support.conductor import Flow, new_flow, signal_group
from tests.support.conductor_server import NO_CONDUCTOR, ensure_server, running_conductor
from tests.support.iceberg import Front
from tests.support.oracle import assert_store_sound
from tests.support.processes import is_alive, stop_between_writes
from tests.support.serving import serving
from tests.support.stores import load
from tests.support.task_runs import wait_for
from tests.support.tasks import shown, view_of

pytestmark = pytest.mark.xdist_group("conductor")

_OLD = {"a": "1", "b": "2"}
# Time that the server waits for a silent worker.
_RESPONSE_SECONDS = 6


@pytest.fixture(scope="session")
def conductor_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of one Conductor for all tests of the session, or the one in HEADGATE_TEST_CONDUCTOR."""
    if running := os.environ.get("HEADGATE_TEST_CONDUCTOR"):
        yield running
        return
    try:
        ensure_server()
    except (OSError, RuntimeError) as error:
        pytest.skip(f"{NO_CONDUCTOR}: {error}")
    with running_conductor(tmp_path_factory.mktemp("conductor")) as url:
        yield url


@pytest.fixture
def flow(conductor_url: str, made_catalog_url: str, tmp_path: Path) -> Flow:
    return _new_flow(conductor_url, made_catalog_url, tmp_path)


@pytest.fixture
def waiting_flow(conductor_url: str, made_sqlite_url: str, tmp_path: Path) -> Flow:
    """A flow on one database only: these tests wait for the server, not for the catalog."""
    return _new_flow(conductor_url, made_sqlite_url, tmp_path)


def _new_flow(conductor_url: str, catalog_url: str, tmp_path: Path) -> Flow:
    # More retries than necessary: on a busy machine a lease of this length may expire.
    return new_flow(conductor_url, catalog_url, tmp_path, response=_RESPONSE_SECONDS, retries=8)


def _states(ended: dict[str, Any]) -> list[str]:
    """Return each state once, in the order in which the server's tasks reached it."""
    return list(dict.fromkeys(task["status"] for task in ended["tasks"]))


@pytest.mark.parametrize("second", [{"kept": "y"}, {}])
def test_p01_p02_worker_killed_after_publishing_is_followed_by_a_retry_of_the_server(
    waiting_flow: Flow, second: dict[str, str]
) -> None:
    flow, stage = waiting_flow, waiting_flow.stage
    workflow = flow.begin(stage.data({"lost": "x"}, second))
    with flow.worker(command=stage.armed("pause", Failpoint.TASK_PUBLISHED)) as worker:
        wait_for(reached_file(stage.flags, Failpoint.TASK_PUBLISHED).exists)
        with stage.workshop.open() as store:
            assert shown(store) == {**_OLD, "lost": "x"}
        worker.kill()
    with flow.worker():
        ended = flow.wait(workflow)
    assert ended["status"] == "COMPLETED"
    assert _states(ended) == ["TIMED_OUT", "COMPLETED"]
    assert [task["retryCount"] for task in ended["tasks"]] == list(range(len(ended["tasks"])))
    with stage.workshop.open() as store:
        assert shown(store) == {**_OLD, **second}
        assert ended["output"]["ref"] == view_of(store)
        head = load(store, str(view_of(store)))
        assert stage.given == (head.parent if second else head.id)
        assert_store_sound(store)


def test_p05_worker_that_stood_still_has_no_effect_when_it_resumes(waiting_flow: Flow) -> None:
    flow, stage = waiting_flow, waiting_flow.stage
    workflow = flow.begin(stage.data({"zombie": "x"}, {"newer": "y"}))
    command = stage.armed("stop", Failpoint.TASK_FENCED_SECOND)
    with flow.worker(command=command) as zombie:
        wait_for((stage.flags / "pid").exists)
        executor = int((stage.flags / "pid").read_text())
        with stage.workshop.open() as store:
            stop_between_writes(zombie.pid, store.database)
        with flow.worker():
            ended = flow.wait(workflow)
        assert _states(ended) == ["TIMED_OUT", "COMPLETED"]
        signal_group(zombie, signal.SIGCONT, executor)
        wait_for(lambda: not is_alive(executor))
        zombie.terminate()
        assert zombie.wait(60) == 0
    with stage.workshop.open() as store:
        assert shown(store) == {**_OLD, "newer": "y"}
        assert flow.load(workflow)["output"]["ref"] == view_of(store)
        assert_store_sound(store)


def test_p06_worker_killed_and_restarted_on_the_same_root_loses_no_file(waiting_flow: Flow) -> None:
    flow, stage = waiting_flow, waiting_flow.stage
    workflow = flow.begin(stage.data({"half": "x"}, {"whole": "y"}, wait=True))
    pid_file = stage.directory / "counter.pid"
    with flow.worker() as first:
        wait_for(lambda: pid_file.exists() and pid_file.read_text() != "")
        executor = int(pid_file.read_text())
        first.kill()
        wait_for(lambda: not is_alive(executor))
    (stage.directory / "go-on").touch()
    with flow.worker():
        assert flow.wait(workflow)["status"] == "COMPLETED"
    assert stage.workshop.attempts_left() == []
    with stage.workshop.open() as store:
        assert shown(store) == {**_OLD, "whole": "y"}


@pytest.mark.parametrize("point", [Failpoint.TASK_DOWNLOADED, Failpoint.TASK_PUBLISHED])
def test_p07_executor_killed_is_reported_and_the_slot_works_again(
    flow: Flow, point: Failpoint
) -> None:
    stage = flow.stage
    workflow = flow.begin(stage.data({"new": "x"}, {"new": "y"}))
    with flow.worker(command=stage.armed("die", point)):
        ended = flow.wait(workflow)
    assert _states(ended)[-1] == "COMPLETED"
    reasons = [str(task.get("reasonForIncompletion")) for task in ended["tasks"]]
    assert any("SIGKILL" in reason for reason in reasons)
    assert stage.workshop.attempts_left() == []
    with stage.workshop.open() as store:
        assert set(shown(store)) == {*_OLD, "new"}
        assert ended["output"]["ref"] == view_of(store)


def test_p08_signal_lets_busy_executors_finish_past_the_response_timeout(flow: Flow) -> None:
    stage = flow.stage
    workflow = flow.begin(stage.data({"new": "x"}, wait=True))
    with flow.worker(slots=2) as worker:
        wait_for((stage.directory / "counter.pid").exists)
        worker.terminate()
        time.sleep(_RESPONSE_SECONDS + 1)
        assert worker.poll() is None
        (stage.directory / "go-on").touch()
        assert worker.wait(60) == 0
    ended = flow.load(workflow)
    assert [task["status"] for task in ended["tasks"]] == ["COMPLETED"]
    events = [json.loads(line)["event"] for line in flow.log().splitlines()]
    assert events[0] == "polling" and events[-1] == "stopped"


def test_p08_drain_deadline_ends_what_hangs_and_reports_it(
    conductor_url: str, made_sqlite_url: str, tmp_path: Path
) -> None:
    flow = new_flow(conductor_url, made_sqlite_url, tmp_path, retries=0)
    workflow = flow.begin(flow.stage.data({"new": "x", "!hang": ""}))
    with flow.worker(drain=1.0) as worker:
        wait_for((flow.stage.directory / "counter").exists)
        worker.terminate()
        assert worker.wait(60) == 0
    ended = flow.wait(workflow)
    assert [task["status"] for task in ended["tasks"]] == ["FAILED"]
    assert "shut down" in ended["tasks"][0]["reasonForIncompletion"]


def test_p10_body_past_its_deadline_is_stopped_while_the_other_slot_goes_on(
    conductor_url: str, made_sqlite_url: str, tmp_path: Path
) -> None:
    flow = new_flow(conductor_url, made_sqlite_url, tmp_path, seconds=25, response=20, retries=0)
    data = flow.stage.data({"!hang": ""}, {"new": "x"})
    with flow.worker(slots=2):
        hanging = flow.begin(data)
        wait_for((flow.stage.directory / "counter").exists)
        other = flow.wait(flow.begin(data))
        ended = flow.wait(hanging)
    assert other["status"] == "COMPLETED", flow.log()
    assert ended["status"] != "COMPLETED"
    # It began while the first one hung.
    assert other["tasks"][0]["startTime"] < ended["tasks"][0]["endTime"]
    with flow.stage.workshop.open() as store:
        assert shown(store) == {**_OLD, "new": "x"}


def test_t09_head_of_a_terminated_workflow_is_replaced_by_the_next_and_not_before(
    conductor_url: str, made_catalog_url: str, tmp_path: Path
) -> None:
    flow = new_flow(conductor_url, made_catalog_url, tmp_path, retries=0)
    stage = flow.stage
    first = flow.begin(stage.data({"lost": "x"}, {"early": "y"}, {"kept": "z"}))
    with flow.worker(command=stage.armed("pause", Failpoint.TASK_PUBLISHED)) as worker:
        wait_for(reached_file(stage.flags, Failpoint.TASK_PUBLISHED).exists)
        worker.kill()
    data = stage.data({"lost": "x"}, {"early": "y"}, {"kept": "z"})
    with stage.workshop.open() as store, flow.worker():
        head = view_of(store)
        early = flow.wait(flow.begin(data))
        assert early["status"] == "FAILED"
        assert f"--replace {head}" in early["tasks"][0]["reasonForIncompletion"]
        assert view_of(store) == head
        flow.terminate(first)
        ended = flow.wait(flow.begin(data))
        assert ended["status"] == "COMPLETED", flow.log()
        assert shown(store) == {**_OLD, "kept": "z"}
        made = load(store, str(view_of(store)))
        assert (made.parent, made.provenance["replaced"]) == (stage.given, head)
        refused = flow.wait(flow.begin(data))
        assert refused["status"] == "FAILED" and view_of(store) == made.id
        assert_store_sound(store)


@pytest.mark.parametrize("how", ["restart", "rerun"])
def test_workflow_done_again_replaces_what_its_earlier_epoch_published(
    flow: Flow, how: str
) -> None:
    stage = flow.stage
    workflow = flow.begin(stage.data({"first": "x"}, {"again": "y"}))
    with flow.worker():
        flow.wait(workflow)
        flow.again(workflow, how)
        ended = flow.wait(workflow)
    assert ended["status"] == "COMPLETED", flow.log()
    with stage.workshop.open() as store:
        assert shown(store) == {**_OLD, "again": "y"}
        head = load(store, str(view_of(store)))
        assert (head.parent, ended["output"]["ref"]) == (stage.given, head.id)
        assert head.attempt is not None and head.attempt.epoch == 2


def test_register_shows_the_difference_and_then_there_is_none(
    conductor_url: str, made_sqlite_url: str, tmp_path: Path
) -> None:
    flow = new_flow(conductor_url, made_sqlite_url, tmp_path, retries=2)
    words = [sys.executable, "-m", "headgate", "task", "register", flow.stage.module, "--json"]
    source = tmp_path / f"{flow.stage.module}.py"
    # Another length: for the same second and size Python would use the compiled file.
    source.write_text(source.read_text().replace("RetryPolicy(count=2", "RetryPolicy(count=10"))
    seen = [
        json.loads(subprocess.check_output([*words, *more], cwd=tmp_path))[0]
        for more in (["--dry-run"], [], [])
    ]
    assert [one["state"] for one in seen] == ["changed", "changed", "same"]
    assert seen[0]["changes"] == {"retryCount": {"from": 2, "to": 10}}


def test_worker_of_a_served_store_is_fenced_by_both_and_publishes_there(
    waiting_flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow, stage = waiting_flow, waiting_flow.stage
    with serving(stage.directory) as (url, token, _):
        monkeypatch.setenv("HEADGATE_URL", url.removesuffix("/iceberg"))
        monkeypatch.setenv("HEADGATE_TOKEN", token)
        monkeypatch.setenv("HEADGATE_CACHE", str(stage.directory / "cache"))
        workflow = flow.begin(stage.data({"!kill": ""}, {"new": "x"}))
        with flow.worker():
            ended = flow.wait(workflow)
    assert ended["status"] == "COMPLETED" and "FAILED" in _states(ended)
    with stage.workshop.open() as store:
        assert shown(store) == {**_OLD, "new": "x"}
        assert ended["output"]["ref"] == view_of(store)
        made = load(store, str(view_of(store)))
        assert made.parent == stage.given and made.attempt is not None
        assert made.attempt.epoch > 1
        assert_store_sound(store)


def test_worker_whose_token_lacks_the_rights_says_so_at_once(
    conductor_url: str, made_sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A worker that ran into the response timeout, or retried, would exceed the test's timeout.
    flow = new_flow(conductor_url, made_sqlite_url, tmp_path, response=3600, retries=0)
    front = Front()
    with flow.stage.workshop.open() as store:
        api = Api(store, front)
        monkeypatch.setenv("HEADGATE_URL", api.url)
        monkeypatch.setenv("HEADGATE_TOKEN", api.token("walt", Role.WRITER, "walt/*"))
        workflow = flow.begin(flow.stage.data({"new": "x"}))
        with flow.worker():
            ended = flow.wait(workflow)
        api.close()
        front.stop()
        [task] = ended["tasks"]
        assert (ended["status"], task["status"]) == ("FAILED", "FAILED")
        assert "may not write branch 'master'" in task["reasonForIncompletion"]
        assert shown(store) == _OLD
