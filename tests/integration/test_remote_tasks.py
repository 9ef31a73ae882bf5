"""Tasks at a client of a server, each attempt in a real process: lost responses, kills, zombies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from headgate.catalog.attempts import list_attempts
from headgate.catalog.log import list_publications
from headgate.client.store import RemoteStore
from headgate.errors import RoleDenied
from headgate.files.objects import Digest, key_of
from headgate.files.private_copy import changes_of
from headgate.model.access import Role
from headgate.model.failpoints import Failpoint
from headgate.tasks.messages import Status
from headgate.tasks.ports import Publication
from headgate.testing.failpoints import reached_file
from tests.support.iceberg import Front
from tests.support.oracle import assert_store_sound
from tests.support.processes import is_alive
from tests.support.proxy import Cut, proxy_before
from tests.support.serving import serving
from tests.support.serving_tasks import client_of, connected
from tests.support.stores import load
from tests.support.task_runs import Stage, new_stage, wait_for
from tests.support.tasks import attempt, defined, input_of, ref_of, shown, view_of, writes

_OLD = {"a": "1", "b": "2"}


@pytest.fixture
def stage(
    made_sqlite_url: str, tmp_path: Path, front: Front, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Stage]:
    """A store behind a server, and a client that executes the attempts."""
    monkeypatch.setenv("HEADGATE_CACHE", str(tmp_path / "cache"))
    made = new_stage(made_sqlite_url, tmp_path)
    with client_of(made.workshop, front) as client:
        yield replace(made, workshop=replace(made.workshop, client=client))


def _client(stage: Stage) -> RemoteStore:
    assert isinstance(stage.workshop.client, RemoteStore)
    return stage.workshop.client


@pytest.mark.parametrize("point", [Failpoint.TASK_STAGED, Failpoint.TASK_PUBLISHED])
def test_executor_killed_at_a_client_is_followed_by_one_that_completes(
    stage: Stage, point: Failpoint
) -> None:
    data = stage.data({"lost": "x"}, {"kept": "y"})
    result = stage.run(data, command=stage.armed("die", point))
    assert (result.outcome.status, result.attempts) == (Status.COMPLETED, 2)
    assert reached_file(stage.flags, point).exists()
    assert stage.workshop.attempts_left() == []
    with stage.workshop.open() as store:
        assert shown(store) == {**_OLD, "kept": "y"}
        assert load(store, str(view_of(store))).parent == stage.given
        states = [one.state for one in store.database.read(lambda c: list_attempts(c, "k"))]
        assert states == ["succeeded", "failed"]
        assert_store_sound(store)


@pytest.mark.parametrize("what", ["attempts HTTP", "workspaces/work.song HTTP"])
def test_reply_lost_on_the_way_is_one_attempt_and_one_publication(stage: Stage, what: str) -> None:
    port = urlsplit(_client(stage).http.url).port or 0
    heard = f"POST /api/v1/tasks/{what}".encode()
    with proxy_before(port, lambda data: heard in data) as proxy:
        there = f"http://127.0.0.1:{proxy.port}"
        token = str(_client(stage).settings.token)
        with connected(stage.workshop, there, token) as client, stage.workshop.open() as store:
            proxy.cut = Cut.AFTER
            workshop = replace(stage.workshop, client=client)
            done = attempt(workshop, store).run(defined(writes(c="3")), input_of(stage.given))
            assert done.status is Status.COMPLETED, done.traceback
            assert proxy.cut is Cut.NEVER
            assert shown(store) == {**_OLD, "c": "3"}
            [made] = store.database.read(lambda c: list_attempts(c, "k"))
            assert made.ref.epoch == 1
            newest, before, *_ = store.database.read(lambda c: list_publications(c, limit=3))
            assert done.output is not None
            assert done.output["workspace"]["ref"] == view_of(store)
            assert newest.moves[0].to_transaction == view_of(store)
            assert before.moves[0].to_transaction == stage.given


def test_outcome_is_told_also_where_the_end_cannot_be_said(stage: Stage) -> None:
    def is_the_end(data: bytes) -> bool:
        # No connection passes from here on.
        proxy.refusing = proxy.refusing or b"POST /api/v1/tasks/attempts/end" in data
        return proxy.refusing

    port = urlsplit(_client(stage).http.url).port or 0
    with proxy_before(port, is_the_end) as proxy:
        proxy.cut = Cut.BEFORE
        token = str(_client(stage).settings.token)
        with connected(stage.workshop, f"http://127.0.0.1:{proxy.port}", token) as client:
            away = replace(stage, workshop=replace(stage.workshop, client=client))
            result = away.run(stage.data({"c": "3"}))
    assert proxy.refusing
    assert (result.outcome.status, result.attempts) == (Status.COMPLETED, 1)
    with stage.workshop.open() as store:
        assert shown(store) == {**_OLD, "c": "3"}
        [left] = store.database.read(lambda c: list_attempts(c, "k"))
        assert left.state == "running"


def test_content_swept_between_staging_and_publishing_is_sent_again(stage: Stage) -> None:
    workspaces, given = _client(stage).workspaces(ref_of(stage.given)), ref_of(stage.given)
    with stage.workshop.open() as store:
        one = attempt(stage.workshop, store)
        copy = workspaces.download(given, stage.directory / "copy", None)
        (copy.directory / "a").write_text("new")
        changes = changes_of(copy)
        staged = workspaces.stage(given, changes, one.identity())
        store.objects.delete([key_of(Digest(changes.put[0].entry.digest))])
        made = Publication(staged=staged, identity=one.identity())
        assert workspaces.publish(given, made) == view_of(store)
        assert shown(store) == {**_OLD, "a": "new"}


def test_place_for_tasks_of_a_reader_is_refused_before_any_work_is_taken(stage: Stage) -> None:
    with stage.workshop.open() as store:
        token = store.create_token(actor="rea", role=Role.READER)["token"]
    with (
        connected(stage.workshop, _client(stage).http.url, token) as client,
        pytest.raises(RoleDenied, match="rea is a reader and may not write"),
    ):
        _ = client.task_host


def test_lakefs_workspace_is_refused_before_the_body(stage: Stage) -> None:
    data = stage.data({"a": "x"})
    data["workspace"]["repository"] = "songs"
    result = stage.run(data, retries=0)
    assert (result.outcome.status, result.outcome.code) == (Status.FAILED, "invalid")
    assert "lakeFS" in str(result.outcome.reason) and not (stage.directory / "counter").exists()


def test_command_killed_in_its_attempt_is_followed_by_one_that_publishes(
    made_sqlite_url: str, tmp_path: Path
) -> None:
    """Runs `headgate serve` and `headgate task run` as shipped."""
    stage = new_stage(made_sqlite_url, tmp_path)
    data = stage.data({"lost": "x"}, {"c": "3"}, wait=True)
    (tmp_path / "input.json").write_text(json.dumps(data))
    with serving(tmp_path) as (url, token, _):
        with _run(stage, url, token) as killed:
            wait_for(lambda: (tmp_path / "counter.pid").exists() or killed.poll() is not None)
            assert killed.poll() is None, killed.communicate()
            body = int((tmp_path / "counter.pid").read_text())
            killed.kill()
            killed.communicate()
        wait_for(lambda: not is_alive(body))
        (tmp_path / "go-on").touch()
        with _run(stage, url, token) as process:
            out, err = process.communicate()
    assert process.returncode == 0, err
    done: dict[str, Any] = json.loads(out)
    assert (done["status"], done["attempts"], done["task_key"]) == ("COMPLETED", 1, "nightly")
    with stage.workshop.open() as store:
        assert done["output"]["workspace"]["ref"] == view_of(store)
        assert shown(store) == {**_OLD, "c": "3"}
        states = [a.state for a in store.database.read(lambda c: list_attempts(c, "nightly"))]
        assert states == ["succeeded", "superseded"]
        assert_store_sound(store)


def _run(stage: Stage, url: str, token: str) -> subprocess.Popen[str]:
    """Run `headgate task run` in a directory without a store."""
    elsewhere = stage.directory / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    module = stage.directory / f"{stage.module}.py"
    (elsewhere / module.name).write_text(module.read_text())
    words = ("task", "run", stage.module, "--input", "../input.json", "--task-key", "nightly")
    environ = {
        **os.environ,
        "HEADGATE_URL": url.removesuffix("/iceberg"),
        "HEADGATE_TOKEN": token,
        "HEADGATE_CACHE": str(stage.directory / "cache"),
        "PYTHONPATH": str(Path(__file__).parents[2] / "src"),
    }
    return subprocess.Popen(
        [sys.executable, "-m", "headgate", *words, "--json"],
        cwd=elsewhere,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
