"""Threads of a server: a reserve for what others wait for, and none for those who wait."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import httpx
import pytest

from headgate.builds.report import BuildOutcome, Watch
from headgate.catalog.database import PLACE, Place, Suspended
from headgate.model.access import Role
from headgate.model.failpoints import Failpoint
from headgate.model.ids import BuildId
from headgate.server.builds import Build, ServerBuilds
from headgate.testing.failpoints import armed
from tests.support.api import Api
from tests.support.pipelines import FileJobs, files_spec, publish

# More than the server has threads.
_CROWD = 45


@contextmanager
def _busy_threads(api: Api, pool: ThreadPoolExecutor) -> Iterator[None]:
    """Occupy all threads of the server by uploads, for the length of the block."""
    go_on, inside = threading.Event(), threading.Semaphore(0)

    def hold(point: Failpoint) -> None:
        if point is Failpoint.FILES_OBJECT_STORED:
            inside.release()
            assert go_on.wait(120)

    def upload(number: int) -> int:
        data = str(number).encode()
        path = f"/contents/{hashlib.sha256(data).hexdigest()}"
        return api.admin.call("PUT", path, content=data, timeout=120).status_code

    with armed(hold):
        try:
            sent = [pool.submit(upload, number) for number in range(_CROWD)]
            # The rest waits for a thread.
            for _ in range(40):
                assert inside.acquire(timeout=60)
            yield
        finally:
            go_on.set()
        assert {one.result() for one in sent} == {201}


def test_commit_renewal_abort_and_health_are_answered_while_all_threads_are_busy(api: Api) -> None:
    admin = api.admin
    opened = []
    for dataset in ("raw.a", "raw.b"):
        admin.make_files(dataset)
        body = {"dataset": dataset, "branch": "master", "type": "APPEND"}
        opened.append(str(admin.post("/transactions", **body)["transaction"]))
    with ThreadPoolExecutor(_CROWD + 1) as pool, _busy_threads(api, pool):
        reading = pool.submit(admin.get, "/datasets")
        assert httpx.get(f"{api.url}/readyz", timeout=60).json()["ok"]
        admin.ok("POST", f"/transactions/{opened[0]}/renew")
        assert admin.ok("POST", f"/transactions/{opened[0]}/commit")["state"] == "COMMITTED"
        assert admin.ok("POST", f"/transactions/{opened[1]}/abort")["state"] == "ABORTED"
        assert not reading.done()


def test_commit_and_health_are_answered_while_all_connections_are_in_use(api: Api) -> None:
    api.admin.make_files()
    body = {"dataset": "raw.scans", "branch": "master", "type": "APPEND"}
    opened = api.admin.post("/transactions", **body)["transaction"]
    # The server has not seen this token yet, and looks it up before it reads a body.
    other = api.client("bob", Role.ADMIN)
    with ExitStack() as held:
        for _ in range(32):
            held.enter_context(api.store.database.raw())
        assert httpx.get(f"{api.url}/readyz", timeout=60).json()["ok"]
        began = time.monotonic()
        done = other.ok("POST", f"/transactions/{opened}/commit", json={})
        # A request that waits for a connection gives up after 30 s.
        assert time.monotonic() - began < 25
    assert done["state"] == "COMMITTED"


def test_puts_that_wait_for_their_turn_hold_no_thread(api: Api) -> None:
    api.admin.make_files()
    go_on, inside = threading.Event(), threading.Event()

    def hold(point: Failpoint) -> None:
        if point is Failpoint.FILES_TREE_STORED and not inside.is_set():
            inside.set()
            assert go_on.wait(120)

    def put(number: int) -> int:
        where = {"params": {"branch": "master"}, "content": b"1", "timeout": 120}
        return api.admin.call("PUT", f"/files/raw.scans/{number}", **where).status_code

    with ThreadPoolExecutor(_CROWD) as pool, armed(hold):
        try:
            sent = [pool.submit(put, number) for number in range(_CROWD)]
            assert inside.wait(60)
            # An ordinary request needs one of the threads that the crowd would otherwise hold.
            assert api.admin.get("/datasets")
            assert not any(one.done() for one in sent)
        finally:
            go_on.set()
        assert {one.result() for one in sent} == {200}
    assert len(api.admin.get("/files/raw.scans", branch="master")) == _CROWD


def test_request_that_starts_a_build_waits_for_its_outputs_without_a_thread(
    small_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = small_api.store
    builds: ServerBuilds = small_api.app.state.builds
    publish(store, "master", files_spec("s.x"))
    jobs = FileJobs(store=store)
    monkeypatch.setattr("headgate.builds.run.SparkJobs", lambda parts: jobs)
    small_api.admin.make_files("s.x")
    opened = store.dataset("s.x").branch("master").transaction()

    def build(id: BuildId, watch: Watch) -> BuildOutcome:
        return store.build(["s.x"], branch="master", id=id, watch=watch, wait_seconds=60)

    before = PLACE.set(Place())
    try:
        for _ in range(3):
            with pytest.raises(Suspended):
                builds.start(build)
        opened.abort()
        while (id := _started(builds, build)) is None:
            time.sleep(0.01)
    finally:
        PLACE.reset(before)
    # Each of the repeated calls continued the first one.
    assert [record["build"] for record in store.builds()] == [id]


def _started(builds: ServerBuilds, build: Build) -> str | None:
    try:
        return builds.start(build)
    except Suspended:
        return None
