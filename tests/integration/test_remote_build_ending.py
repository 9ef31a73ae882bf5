"""Failures that only a client-run build has: a client without an engine, a server that restarts."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import headgate
from headgate.client import builds
from headgate.client.store import RemoteStore
from headgate.errors import BuildNotKept, JobSpecNotFound, Unavailable
from headgate.model.access import Role
from headgate.model.nouns import BuildState
from headgate.server.app import create_server
from tests.support.api import Api, served_to_the_command_line
from tests.support.cli import Cli, new_store_cli
from tests.support.file_doing import FileWork, do_by_files
from tests.support.iceberg import Front
from tests.support.pipelines import FileJobs, files_spec, publish, states
from tests.support.proxy import Cut, proxy_before


@pytest.fixture
def work(small_api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FileWork:
    # A client without a settings file keeps its logs below the working directory.
    own = tmp_path / "client"
    own.mkdir()
    monkeypatch.chdir(own)
    publish(small_api.store, "master", files_spec("s.x"), files_spec("s.y", "s.x"))
    return do_by_files(monkeypatch)


@pytest.fixture
def remote(small_api: Api, work: FileWork, tmp_path: Path) -> Iterator[RemoteStore]:
    token = small_api.token("ana", Role.ADMIN)
    with headgate.open(small_api.url, token=token, environ={"HOME": str(tmp_path)}) as hg:
        assert isinstance(hg, RemoteStore)
        yield hg


def _build(remote: RemoteStore, **options: Any) -> Any:
    return remote.build(["s.y"], **{"branch": "master", "upstream": True, **options})


def test_failure_is_tried_again_as_a_new_epoch_and_told_with_a_log_of_this_machine(
    small_api: Api, remote: RemoteStore, work: FileWork, tmp_path: Path
) -> None:
    work.failing = {"s.x": 3}
    failed = _build(remote, retries=1)
    assert (failed.state, failed.jobs[0].attempts) == (BuildState.FAILED, 2)
    assert states(failed) == {"s.x": "failed", "s.y": "aborted"}
    assert failed.jobs[0].error == {"message": "s.x failed", "line": 7}
    assert [order.epoch for order in work.orders] == [1, 2]
    log = Path(failed.jobs[0].log)
    assert log.read_text() == "s.x was here\n"
    there = small_api.admin.get(f"/builds/{failed.id}")["jobs"][0]["log"]
    assert there != str(log) and Path(there).read_text() == "s.x was here\n"
    assert _build(remote, retries=1).jobs[0].attempts == 2


def test_engine_that_cannot_be_started_is_told_and_nothing_is_held(
    small_api: Api, remote: RemoteStore, work: FileWork
) -> None:
    work.broken = True
    work.endless = frozenset({"s.x"})
    with pytest.raises(Unavailable, match="no Java"):
        _build(remote)
    assert small_api.admin.get("/builds")[0]["state"] == "canceled"
    with pytest.raises(JobSpecNotFound):
        remote.build(["s.none"], branch="master")


def test_report_that_the_server_does_not_take_fails_the_job_and_hangs_nobody(
    remote: RemoteStore, work: FileWork
) -> None:
    work.checks = ({"name": "of another release"},)
    failed = _build(remote)
    assert states(failed) == {"s.x": "failed", "s.y": "aborted"}
    assert "checks.0.stage" in (failed.jobs[0].error or {})["message"]


def test_server_that_was_started_again_tells_the_client_that_the_build_is_lost(
    small_api: Api,
    remote: RemoteStore,
    work: FileWork,
    front: Front,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work.endless = frozenset({"s.x"})
    # The old server still answers the request in flight.
    monkeypatch.setattr(builds, "_WAIT_SECONDS", 0.2)
    with ThreadPoolExecutor() as pool:
        future = pool.submit(_build, remote)
        assert work.busy.wait(60)
        front.app = create_server(small_api.store)
        with pytest.raises(BuildNotKept, match="build again"):
            future.result(60)
    # The client has released all that it held.
    work.endless = frozenset()
    assert _build(remote).state is BuildState.SUCCEEDED


@pytest.mark.parametrize("cut", [Cut.BEFORE, Cut.AFTER])
@pytest.mark.parametrize("what", [b'"event": "ended"', b'"wait_seconds": 10'])
def test_connection_lost_in_an_exchange_costs_nothing_and_doubles_nothing(
    small_api: Api, work: FileWork, tmp_path: Path, what: bytes, cut: Cut
) -> None:
    port = urlsplit(small_api.url).port
    assert port is not None
    with proxy_before(port, lambda data: what in data) as proxy:
        url, token = f"http://127.0.0.1:{proxy.port}", small_api.token("ana", Role.ADMIN)
        with headgate.open(url, token=token, environ={"HOME": str(tmp_path)}) as remote:
            assert isinstance(remote, RemoteStore)
            proxy.cut = cut
            outcome = _build(remote)
            assert proxy.cut is Cut.NEVER, "nothing was cut"
    assert [(job.attempts, job.rows, job.state.value) for job in outcome.jobs] == [
        (1, 1, "succeeded"),
        (1, 1, "succeeded"),
    ]
    assert work.ran == ["s.x", "s.y"]


def test_command_line_builds_alike_on_a_local_and_on_a_served_store(
    tmp_path: Path,
    front: Front,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cli = new_store_cli(tmp_path, monkeypatch, capsys)
    with headgate.open(tmp_path) as store:
        for branch in ("here", "there"):
            publish(store, branch, files_spec("s.x"), files_spec("s.y", "s.x"))
    with headgate.open(tmp_path) as store:
        made = FileJobs(store=store, failing={"s.y": 1})
        monkeypatch.setattr("headgate.builds.run.SparkJobs", lambda parts: made)
        here = [_told(cli, "here", code) for code in (1, 0, 0)]
    work = do_by_files(monkeypatch)
    work.failing = {"s.y": 1}
    with served_to_the_command_line(tmp_path, front, monkeypatch):
        there = [_told(cli, "there", code) for code in (1, 0, 0)]
        assert "skipped (fresh)" in cli.ok("build", "s.y", "-b", "there", "--upstream").out
        assert cli.error("build", "s.none", "-b", "there", code=3) == "jobspec_not_found"
    assert here == there


def _told(cli: Cli, branch: str, code: int) -> list[Any]:
    """Return the shape of a build's document, without values of a store, time or branch."""
    done = cli.json("build", "s.y", "-b", branch, "--upstream", "--force", code=code)
    jobs = [(sorted(job), job["state"], job["reason"], job["attempts"]) for job in done["jobs"]]
    return [sorted(done), done["state"], jobs, len(done["publications"])]
