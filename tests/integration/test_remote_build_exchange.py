"""Exchange between a build and its client, request by request: access, reports, silence."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from headgate.client.builds import start_build
from headgate.client.http import HttpClient
from headgate.files.tree import EMPTY
from headgate.model.access import Role
from headgate.server.api.builds import WorkModel
from headgate.server.app import create_server
from headgate.server.builds import ServerBuilds
from headgate.store.transactions import store_bytes
from tests.support.api import Api, ApiClient
from tests.support.iceberg import Front
from tests.support.oracle import assert_store_sound
from tests.support.pipelines import FileJobs, build, files_spec, publish, shown, states
from tests.support.proxy import Cut, proxy_before


@pytest.fixture(autouse=True)
def published(small_api: Api) -> None:
    publish(small_api.store, "master", files_spec("s.x"))


def _start(client: ApiClient, **options: Any) -> tuple[str, Any]:
    """Start a build at the caller; return its id, and the order of its one job."""
    body = {"targets": ["s.x"], "branch": "master", "where": "caller", **options}
    id = client.ok("POST", "/builds", json=body)["build"]
    return id, _next_order(client, id)


def _next_order(client: ApiClient, build: str, running: list[str] | None = None) -> Any:
    while not (start := _work(client, build, running=running or [], wait_seconds=10)["start"]):
        pass
    return start[0]


def _work(client: ApiClient, build: str, **body: Any) -> Any:
    answer = client.ok("POST", f"/builds/{build}/work", json=body)
    # Conforms to the OpenAPI document.
    WorkModel.model_validate(answer)
    return answer


def _ended(order: Any, number: int = 1, **facts: Any) -> dict[str, Any]:
    attempt = f"{order['key']}:{order['epoch']}"
    return {"attempt": attempt, "number": number, "event": "ended", "succeeded": True, **facts}


def _wrote(order: Any, root: str, number: int = 1, **facts: Any) -> dict[str, Any]:
    """Return the report that the one output was written, as the tree of this root."""
    [name] = order["outputs"]
    return _ended(order, number, written=[name], files={name: root}, **facts)


def _outcome(client: ApiClient, build: str) -> Any:
    while (outcome := _work(client, build, wait_seconds=10)["outcome"]) is None:
        pass
    return outcome


def _tree(api: Api, **files: bytes) -> str:
    trees = api.store.trees
    put = [store_bytes(api.store, path, data) for path, data in files.items()]
    return trees.edit(EMPTY, put=put).root


def test_what_is_said_again_is_heard_once_and_what_is_left_out_is_missed(small_api: Api) -> None:
    ana = small_api.admin
    id, order = _start(ana)
    attempt = f"{order['key']}:1"
    rows = {"attempt": attempt, "event": "written", "rows": 5}
    for _ in range(3):
        _work(ana, id, running=[attempt], said=[{**rows, "number": 1}])
    late = {"said": [{**rows, "number": 3}]}
    assert ana.error(400, "POST", f"/builds/{id}/work", json=late) == "invalid"
    root = _tree(small_api, made=b"x")
    end = _wrote(order, root, 2, rows=5)
    _work(ana, id, said=[{**rows, "number": 1}, end])
    _work(ana, id, said=[end])
    [job] = _outcome(ana, id)["jobs"]
    assert (job["state"], job["rows"], job["attempts"]) == ("succeeded", 5, 1)
    assert shown(small_api.store, "s.x") == {"s.x": "x"}


def test_missed_answer_comes_again_and_an_attempt_not_wanted_is_to_stop(small_api: Api) -> None:
    ana = small_api.admin
    id, order = _start(ana)
    assert _work(ana, id)["start"] == [order]
    attempt = f"{order['key']}:1"
    answer = _work(ana, id, running=[attempt, "build-none/0:1"])
    assert (answer["start"], answer["stop"]) == ([], ["build-none/0:1"])


def test_superseded_attempt_is_not_heard_and_its_token_opens_nothing(small_api: Api) -> None:
    ana = small_api.admin
    id, first = _start(ana, retries=1)
    _work(ana, id, said=[_ended(first, succeeded=False, error={"message": "no"})])
    second = _next_order(ana, id, running=[f"{first['key']}:1"])
    assert (first["epoch"], second["epoch"]) == (1, 2)
    root = _tree(small_api, made=b"a zombie's")
    zombie = _wrote(first, root, 2)
    answer = _work(ana, id, running=[f"{first['key']}:1"], said=[zombie])
    assert f"{first['key']}:1" in answer["stop"]
    for order, status in ((first, 403), (second, 200)):
        name = f"job:{order['key']}:{order['epoch']}"
        reply = httpx.get(
            f"{small_api.url}/iceberg/v1/config",
            params={"warehouse": name},
            headers={"authorization": f"Bearer {order['token']}"},
            timeout=60,
        )
        assert reply.status_code == status, reply.text
    mine = _tree(small_api, made=b"mine")
    _work(ana, id, said=[_wrote(second, mine)])
    assert _outcome(ana, id)["state"] == "succeeded"
    assert shown(small_api.store, "s.x") == {"s.x": "mine"}


@pytest.mark.parametrize("where", ["caller", "server"])
@pytest.mark.parametrize("cut", [Cut.AFTER, Cut.LATE])
def test_request_whose_reply_was_lost_is_one_build(
    small_api: Api, monkeypatch: pytest.MonkeyPatch, cut: Cut, where: str
) -> None:
    jobs = FileJobs(store=small_api.store)
    monkeypatch.setattr("headgate.builds.run.SparkJobs", lambda parts: jobs)
    token, heard = small_api.token("ana", Role.ADMIN), b"POST /api/v1/builds "
    with proxy_before(urlsplit(small_api.url).port or 0, lambda data: heard in data) as proxy:
        http = HttpClient(f"http://127.0.0.1:{proxy.port}", token)
        proxy.cut = cut
        started = start_build(http, ["s.x"], {"branch": "master"}, where=where)
        http.close()
    assert proxy.cut is Cut.NEVER
    assert [build["build"] for build in small_api.admin.get("/builds")] == [started["build"]]


def test_request_named_again_is_the_same_build_and_another_is_refused(small_api: Api) -> None:
    ana, key = small_api.admin, {"request_key": "k" * 43}
    id, order = _start(ana, **key)
    assert _start(ana, **key) == (id, order)
    body = {"targets": ["s.x"], "branch": "other", "where": "caller", **key}
    assert ana.error(400, "POST", "/builds", json=body) == "idempotency_key_reused"
    # Keys belong to an actor; a rejected request is rejected again.
    bo = small_api.client("bo", Role.WRITER)
    held = {**body, "branch": "master"}
    codes = [bo.error(409, "POST", "/builds", json=held) for _ in range(2)]
    assert codes[0] == codes[1] and [b["build"] for b in ana.get("/builds")] == [id]


def test_exchange_belongs_to_whoever_started_the_build(small_api: Api) -> None:
    walt = small_api.client("walt", Role.WRITER)
    id, order = _start(walt)
    where = f"/builds/{id}/work"
    assert small_api.admin.error(403, "POST", where, json={}) == "build_of_another"
    assert small_api.reader.error(403, "POST", where, json={}) == "role_denied"
    narrow = small_api.client("walt", Role.WRITER, "walt/*")
    assert narrow.error(403, "POST", where, json={}) == "role_denied"
    # The job's own token gives access to its tables, and to no route of the API.
    assert small_api.bearing(order["token"]).error(401, "POST", where, json={}) == "token_refused"
    told = {(e["actor"], e["code"]) for e in small_api.admin.get("/events", kind="refused")}
    assert ("ana", "build_of_another") in told


def test_build_of_the_servers_own_is_no_clients_to_work_on(
    small_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = FileJobs(store=small_api.store)
    monkeypatch.setattr("headgate.builds.run.SparkJobs", lambda parts: jobs)
    id = small_api.admin.ok("POST", "/builds", json={"targets": ["s.x"], "branch": "master"})
    where = f"/builds/{id['build']}/work"
    assert small_api.admin.error(409, "POST", where, json={}) == "build_not_kept"


@pytest.mark.parametrize("lie", ["nothing came", "no such tree", "no such file", "no such output"])
def test_client_that_says_more_than_it_did_fails_its_job_and_shows_nothing(
    small_api: Api, lie: str
) -> None:
    id, order = _start(small_api.admin)
    root = _tree(small_api, made=b"x" * 100_000)
    if lie == "no such file":
        entry = store_bytes(small_api.store, "made", b"another")
        small_api.store.objects.delete([f"objects/sha256/{entry.digest[:2]}/{entry.digest[2:]}"])
        root = small_api.store.trees.edit(EMPTY, put=[entry]).root
    said = _wrote(order, "0" * 64 if lie == "no such tree" else root)
    if lie == "nothing came":
        said["files"] = {}
    if lie == "no such output":
        said["written"] = ["other"]
    _work(small_api.admin, id, said=[said])
    outcome = _outcome(small_api.admin, id)
    assert (outcome["state"], outcome["jobs"][0]["state"]) == ("failed", "failed")
    assert shown(small_api.store, "s.x") == {}
    assert_store_sound(small_api.store)


def test_client_gone_silent_loses_its_build_and_nothing_is_held(
    small_api: Api, front: Front
) -> None:
    builds = ServerBuilds(small_api.store, silent_seconds=3)
    front.app = small_api.app = create_server(small_api.store, builds_on_server=builds)
    id, order = _start(small_api.admin)
    deadline = time.monotonic() + 60
    while (state := small_api.admin.get(f"/builds/{id}")["state"]) == "running":
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert state == "canceled" and shown(small_api.store, "s.x") == {}
    root = _tree(small_api, made=b"too late")
    _work(small_api.admin, id, said=[_wrote(order, root)])
    assert _outcome(small_api.admin, id)["state"] == "canceled"
    assert shown(small_api.store, "s.x") == {}
    assert states(build(small_api.store, "s.x")) == {"s.x": "succeeded"}
    assert_store_sound(small_api.store)


def test_what_a_client_computed_is_kept_off_protected_branches(
    small_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    walt = small_api.client("walt", Role.WRITER)
    for branch in ("walt/x", "develop"):
        publish(small_api.store, branch, files_spec("s.x"))
    small_api.admin.ok("PUT", "/protected/master")
    body = {"targets": ["s.x"], "branch": "master", "where": "caller"}
    assert walt.error(403, "POST", "/builds", json=body) == "branch_protected"
    id, order = _start(walt, branch="walt/x")
    root = _tree(small_api, made=b"forged")
    _work(walt, id, said=[_wrote(order, root)])
    assert _outcome(walt, id)["state"] == "succeeded"
    # Adopted on an unprotected branch, with its mark; computed again on a protected one.
    jobs = FileJobs(store=small_api.store)
    assert states(build(small_api.store, "s.x", branch="develop", jobs=jobs)) == {"s.x": "adopted"}
    assert states(build(small_api.store, "s.x", jobs=jobs)) == {"s.x": "succeeded"}
    assert shown(small_api.store, "s.x") == {"s.x": "s.x1()"}
    assert shown(small_api.store, "s.x", branch="develop") == {"s.x": "forged"}


def test_admin_builds_a_protected_branch_from_afar(small_api: Api) -> None:
    small_api.admin.ok("PUT", "/protected/master")
    id, order = _start(small_api.admin)
    root = _tree(small_api, made=b"good")
    said = _wrote(order, root)
    _work(small_api.admin, id, said=[said])
    assert _outcome(small_api.admin, id)["state"] == "succeeded"
    assert shown(small_api.store, "s.x") == {"s.x": "good"}
