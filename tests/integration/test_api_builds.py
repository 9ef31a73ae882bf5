"""Builds on the server: started, watched, canceled and ended with it; jobs without Spark."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import headgate
from headgate.catalog.builds import close_build
from headgate.client.http import events
from headgate.client.store import RemoteStore
from headgate.errors import JobSpecNotFound
from headgate.model.access import Role
from headgate.server.app import create_server
from headgate.server.builds import ServerBuilds
from headgate.store.documents import Json
from tests.support.api import Api
from tests.support.cli import Cli, new_cli
from tests.support.iceberg import Front
from tests.support.pipelines import FileJobs, files_spec, publish, shown

BODY = {"targets": ["s.y"], "branch": "master", "upstream": True}


@pytest.fixture
def jobs(small_api: Api, monkeypatch: pytest.MonkeyPatch) -> FileJobs:
    """Jobs of the server's builds, in place of Spark."""
    publish(small_api.store, "master", files_spec("s.x"), files_spec("s.y", "s.x"))
    made = FileJobs(store=small_api.store)
    monkeypatch.setattr("headgate.builds.run.SparkJobs", lambda parts: made)
    return made


@pytest.fixture
def remote(small_api: Api, jobs: FileJobs) -> Iterator[RemoteStore]:
    with headgate.open(small_api.url, token=small_api.token("ana", Role.ADMIN)) as hg:
        assert isinstance(hg, RemoteStore)
        yield hg


def _watch(api: Api, build: str) -> list[tuple[str, Json]]:
    with api.reader.http.stream("GET", f"/builds/{build}/progress") as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        return list(events(reply.iter_bytes()))


def test_build_is_started_watched_to_its_end_and_listed(small_api: Api, jobs: FileJobs) -> None:
    started = small_api.admin.ok("POST", "/builds", json=BODY)
    seen = _watch(small_api, started["build"])
    assert [name for name, _ in seen][-1] == "end"
    end = seen[-1][1]
    # One publication for the branches, and one for each job.
    assert (end["state"], len(end["publications"])) == ("succeeded", 3)
    assert {job["state"] for job in end["jobs"]} == {"succeeded"}
    assert shown(small_api.store, "s.y")["s.y"].startswith("s.y1(")
    [listed] = small_api.reader.get("/builds")
    assert (listed["build"], listed["actor"]) == (started["build"], "ana")
    assert small_api.reader.get(f"/builds/{listed['build']}")["state"] == "succeeded"


def test_build_whose_record_has_ended_is_watched_until_its_outcome_is_there(
    small_api: Api, jobs: FileJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    pause = threading.Event()

    def close_slowly(*args: Any) -> None:
        close_build(*args)
        pause.wait(0.5)

    monkeypatch.setattr("headgate.builds.run.close_build", close_slowly)
    id = small_api.admin.ok("POST", "/builds", json=BODY)["build"]
    end = _watch(small_api, id)[-1][1]
    assert (end["state"], len(end["publications"])) == ("succeeded", 3)


def test_build_canceled_over_http_ends_for_those_who_watch(small_api: Api, jobs: FileJobs) -> None:
    jobs.endless = frozenset({"s.x"})
    id = small_api.admin.ok("POST", "/builds", json=BODY)["build"]
    assert small_api.admin.ok("POST", f"/builds/{id}/cancel")["state"] == "canceled"
    assert _watch(small_api, id)[-1][1]["state"] == "canceled"
    assert shown(small_api.store, "s.x", "s.y") == {}


def test_build_that_cannot_be_opened_says_why_and_leaves_no_record(
    small_api: Api, jobs: FileJobs
) -> None:
    body = {"targets": ["s.none"], "branch": "master"}
    assert small_api.admin.error(404, "POST", "/builds", json=body) == "jobspec_not_found"
    assert small_api.admin.get("/builds") == []


def test_build_beyond_what_the_server_may_do_at_once_is_asked_to_wait(
    small_api: Api, jobs: FileJobs
) -> None:
    jobs.endless = frozenset({"s.x"})
    for n in range(4):
        publish(small_api.store, f"b{n}", files_spec("s.x"), files_spec("s.y", "s.x"))
        small_api.admin.ok("POST", "/builds", json=BODY | {"branch": f"b{n}"})
    body = BODY | {"branch": "master"}
    assert small_api.admin.error(503, "POST", "/builds", json=body) == "unavailable"


def test_build_of_a_protected_branch_is_let_through_for_clean_commits_only(
    small_api: Api, jobs: FileJobs
) -> None:
    small_api.admin.ok("PUT", "/protected/master")
    walt = small_api.client("walt", Role.WRITER)
    started = walt.ok("POST", "/builds", json=BODY)
    assert _watch(small_api, started["build"])[-1][1]["state"] == "succeeded"
    changed = (files_spec("s.x", logic="2"), files_spec("s.y", "s.x", logic="2"))
    publish(small_api.store, "master", *changed, clean=False)
    assert walt.error(403, "POST", "/builds", json=BODY) == "branch_protected"
    [event] = small_api.admin.get("/events", kind="refused")
    assert (event["actor"], event["wanted"], event["branch"]) == ("walt", "start_build", "master")


def test_server_without_builds_of_its_own_keeps_those_of_clients(
    small_api: Api, jobs: FileJobs, front: Front
) -> None:
    builds = ServerBuilds(small_api.store, at_once=0)
    front.app = small_api.app = create_server(small_api.store, builds_on_server=builds)
    assert small_api.admin.error(403, "POST", "/builds", json=BODY) == "no_builds_here"
    started = small_api.admin.ok("POST", "/builds", json=BODY | {"where": "caller"})
    assert started["state"] == "running" and jobs.ran == []


def test_builds_end_with_their_server(small_api: Api, jobs: FileJobs) -> None:
    jobs.endless = frozenset({"s.x"})
    id = small_api.admin.ok("POST", "/builds", json=BODY)["build"]
    small_api.app.state.builds.close()
    assert small_api.admin.get(f"/builds/{id}")["state"] == "canceled"


def test_streams_of_one_actor_are_limited_and_end_with_their_clients(
    small_api: Api, jobs: FileJobs
) -> None:
    jobs.endless = frozenset({"s.x"})
    where = f"/builds/{small_api.admin.ok('POST', '/builds', json=BODY)['build']}/progress"
    most = small_api.store.settings.server.streams_per_actor
    with ExitStack() as stack:
        open_streams = [
            stack.enter_context(small_api.reader.http.stream("GET", where)).iter_bytes()
            for _ in range(most)
        ]
        assert all(next(stream) for stream in open_streams)
        assert small_api.reader.error(503, "GET", where) == "unavailable"
        with small_api.admin.http.stream("GET", where) as reply:
            assert reply.status_code == 200
    watched_by = small_api.app.state.builds.watched_by
    while watched_by.total():
        time.sleep(0.01)


def test_remote_build_on_the_server_shows_itself_and_gives_its_document(
    remote: RemoteStore, jobs: FileJobs
) -> None:
    seen: list[str] = []
    # No job ends before the client has seen the build.
    jobs.gate.clear()

    def watch(build: dict[str, Any]) -> None:
        seen.append(build["state"])
        jobs.gate.set()

    done = remote.build_on_server(["s.y"], branch="master", upstream=True, watch=watch)
    assert seen[0] == "running" and seen[-1] == done["state"] == "succeeded"
    assert done["publications"] and remote.build_record(done["build"])["state"] == "succeeded"
    with pytest.raises(JobSpecNotFound):
        remote.build_on_server(["s.none"], branch="master")


def test_remote_build_whose_stream_is_cut_is_followed_to_its_end(
    remote: RemoteStore, small_api: Api, jobs: FileJobs
) -> None:
    stopping = small_api.app.state.builds.stopping
    seen: list[str] = []
    jobs.gate.clear()

    def watch(build: dict[str, Any]) -> None:
        seen.append(build["state"])
        match len(seen):
            case 1:
                # The next stream ends after one event, without the event `end`.
                stopping.set()
            case 2:
                stopping.clear()
            case 3:
                jobs.gate.set()

    done = remote.build_on_server(["s.y"], branch="master", upstream=True, watch=watch)
    assert seen[:3] == ["running"] * 3 and seen[-1] == done["state"] == "succeeded"
    assert done["publications"]


def test_cli_build_on_the_server_prints_the_document_of_a_build(
    small_api: Api,
    jobs: FileJobs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cli: Cli = new_cli(tmp_path, monkeypatch, capsys)
    words = ("build", "s.y", "-b", "master", "--upstream", "--on-server")
    monkeypatch.setenv("HEADGATE_URL", small_api.url)
    monkeypatch.setenv("HEADGATE_TOKEN", small_api.token("ana", Role.ADMIN))
    planned = cli.json("plan", "s.y", "-b", "master", "--upstream")
    assert [job["reason"] for job in planned["jobs"]] == ["never-built", "never-built"]
    done = cli.json(*words)
    assert set(done) == {"build", "branch", "fallback", "state", "jobs", "publications"}
    assert "skipped (fresh)" in cli.ok(*words).out
    jobs.failing = {"s.x": 1}
    assert cli.json(*words, "--force", code=1)["state"] == "failed"
