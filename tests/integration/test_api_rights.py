"""Every route × role × own, foreign and protected branch × dataset, and records of rejections."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from fastapi.routing import APIRoute

from headgate.model.access import RULES, Right, Role
from headgate.server.api.conventions import identify
from headgate.server.app import ROUTERS, create_server
from tests.support.api import Api, ApiClient
from tests.support.iceberg import Front
from tests.support.rights import (
    OTHER_REQUESTS,
    Request,
    World,
    branch_requests,
    make_table,
    make_world,
)
from tests.support.stores import new_store

ICEBERG = {"iceberg_read", "iceberg_write"}
BRANCH_OPERATIONS = sorted(name for name, rule in RULES.items() if rule.names_branches)
ON_ROWS = {"mutate", "load", "merge", "apply_schema", "optimize"}
# Only admins and builds of clean commits change the view of a protected branch. These change
# no view, each for its reason; writers may still use them.
UNHINDERED = {
    "open_unit": "a unit holds nothing until it opens a dataset's transaction",
    "renew_transaction": "the holder of the open transaction may keep it, but not commit it",
    "start_build": "builds of clean commits are let through; others are refused at their opening",
    "cancel_build": "of a build that there is: tests/hostile/test_protected_branches.py",
    "work_build": "what a client computes is refused, where it is, when its build is opened",
    "open_attempt_tables": "of an attempt that there is, its opening refuses it: test_api_tasks.py",
    "publish_workspace": "of an attempt that there is, the door refuses it: test_api_tasks.py",
}
OF_NO_DATASET = {"open_unit"}
OF_A_BUILD = {"cancel_build", "work_build"}
# Status of an authorized request whose object does not exist.
LET_THROUGH = {
    "register_dataset": 404,
    "publish_jobspecs": 409,
    # The branch exists.
    "restore_branch": 409,
    "start_build": 404,
    "open_attempt_tables": 404,
    "publish_workspace": 404,
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, front: Front) -> Iterator[Api]:
    """One server for all worlds of this file, which accepts code from writers."""
    place = tmp_path_factory.mktemp("rights")
    with new_store(f"sqlite:///{place}/catalog.db", place) as store:
        served = Api(store, front)
        front.app = served.app = create_server(store, code_from=Role.WRITER)
        served.admin.make_files()
        yield served
        served.close()


@pytest.fixture(autouse=True)
def at_the_front(request: pytest.FixtureRequest, front: Front) -> None:
    """Restore the shared server: tests with their own server replaced it."""
    if "shared" in request.fixturenames:
        front.app = request.getfixturevalue("shared").app


def _world(api: Api, operation: str, branch: str) -> World:
    made = make_world(api.admin, f"{branch}_{operation}", f"{branch}/{operation}")
    if operation in ON_ROWS:
        make_table(api.admin, made)
    return made


def _dataset_world(api: Api, operation: str) -> World:
    made = make_world(api.admin, f"only_{operation}", f"walt/only/{operation}")
    if operation in ON_ROWS:
        make_table(api.admin, made)
    return made


def _status(client: ApiClient, request: Request) -> int:
    method, path, more = request
    return client.call(method, path, **more).status_code


def _passes(client: ApiClient, operation: str, request: Request) -> bool:
    status = _status(client, request)
    return status == LET_THROUGH[operation] if operation in LET_THROUGH else status < 300


def test_every_route_has_a_rule_and_asks_who_calls() -> None:
    routes = [route for router in ROUTERS for route in router.routes]
    assert len(routes) == len(set(RULES) - ICEBERG)
    for route in routes:
        assert isinstance(route, APIRoute) and route.operation_id in RULES
        assert identify in [part.call for part in route.dependant.dependencies], route.path


def test_every_operation_is_in_this_matrix() -> None:
    world = World(name="n", branch="b", views=("v", "w"), open="t", unit="u")
    assert {*branch_requests(world), *OTHER_REQUESTS} == set(RULES) - ICEBERG
    assert set(branch_requests(world)) == set(BRANCH_OPERATIONS) > set(UNHINDERED)


@pytest.mark.parametrize("operation", sorted(OTHER_REQUESTS))
def test_route_of_no_branch_by_role(shared: Api, operation: str) -> None:
    right = RULES[operation].right
    request = OTHER_REQUESTS[operation]
    assert _status(shared.bearing(None), request) == 401
    assert (_status(shared.reader, request) == 403) is (right is not Right.READ)
    assert (_status(shared.writer, request) == 403) is (right is Right.ADMINISTER)
    assert _status(shared.admin, request) not in {401, 403, 500}


@pytest.mark.parametrize("operation", BRANCH_OPERATIONS)
def test_route_of_a_branch_by_role_own_and_foreign(shared: Api, operation: str) -> None:
    for branch, is_own in (("walt", True), ("others", False)):
        request = branch_requests(_world(shared, operation, branch))[operation]
        assert _status(shared.bearing(None), request) == 401
        assert _status(shared.reader, request) == 403
        if operation in OF_A_BUILD:
            # Only an existing build has a branch to authorize.
            assert _status(shared.writer, request) == 404
            continue
        writes = is_own and RULES[operation].right is not Right.ADMINISTER
        if not writes:
            assert _status(shared.writer, request) == 403
        assert _passes(shared.writer if writes else shared.admin, operation, request)


@pytest.mark.parametrize("operation", BRANCH_OPERATIONS)
def test_route_of_a_protected_branch_is_for_admins_unless_it_shows_nothing_new(
    shared: Api, operation: str
) -> None:
    made = make_world(shared.admin, f"safe_{operation}", f"walt/safe/{operation}")
    if operation in ON_ROWS:
        make_table(shared.admin, made)
    shared.admin.ok("PUT", f"/protected/{made.branch}")
    method, path, more = branch_requests(made)[operation]
    reply = shared.writer.call(method, path, **more)
    if operation in UNHINDERED:
        assert reply.status_code != 403, (UNHINDERED[operation], reply.text)
        return
    by_role = RULES[operation].right is Right.ADMINISTER
    refused = "role_denied" if by_role else "branch_protected"
    assert (reply.status_code, reply.json()["code"]) == (403, refused)
    assert _passes(shared.admin, operation, (method, path, more))


@pytest.mark.parametrize("operation", BRANCH_OPERATIONS)
def test_route_of_a_branch_by_pattern_of_datasets(shared: Api, operation: str) -> None:
    world = _dataset_world(shared, operation)
    request = branch_requests(world)[operation]

    def writer(*datasets: str, reads: Sequence[str] = ("*",)) -> ApiClient:
        made = shared.store.create_token(
            actor="dora", role=Role.WRITER, branches=["walt/*"], reads=reads, datasets=datasets
        )
        return shared.bearing(made["token"])

    own = f"{world.name}.*"
    # With another pattern of datasets, and without the right to read the parent of a new branch.
    refused = [writer("elsewhere.*")]
    if operation == "create_branch":
        refused.append(writer(own, reads=["walt/*"]))
    before = shared.admin.get("/log", limit=1)
    for client in refused:
        if operation in OF_NO_DATASET:
            continue
        assert _status(client, request) in {400, 403, 404}
        assert shared.admin.get("/log", limit=1) == before
    if operation in OF_A_BUILD:
        return
    may = operation not in {"publish_jobspecs", "register_dataset"}
    assert _passes(writer(own), operation, request) is may


def test_refusal_is_kept_as_an_event_once_an_hour_with_its_count(small_api: Api) -> None:
    small_api.admin.make_files()
    request: Request = ("PUT", "/files/raw.scans/a", {"params": {"branch": "master"}})
    for _ in range(3):
        assert _status(small_api.writer, request) == 403
    assert _status(small_api.reader, request) == 403
    events = small_api.admin.get("/events", kind="refused")
    assert [(e["actor"], e["wanted"], e["code"]) for e in events] == [
        ("rea", "put_file", "role_denied"),
        ("walt", "put_file", "role_denied"),
    ]
    assert events[1]["branch"] == "master"
    assert [e["count"] for e in events] == [1, 3]


def test_admin_of_some_branches_makes_no_token_for_others(small_api: Api) -> None:
    made = small_api.admin.post("/tokens", actor="bo", role="admin", branches=["bo/*"])
    bo = small_api.bearing(made["token"])
    body = {"actor": "bo", "role": "admin", "branches": ["*"]}
    assert bo.error(403, "POST", "/tokens", json=body) == "role_denied"
    assert bo.post("/tokens", actor="eve", role="writer", branches=["bo/eve/*"])["token"]


def test_token_unknown_expired_or_revoked_is_refused_and_never_told(small_api: Api) -> None:
    made = small_api.admin.post("/tokens", actor="bo", role="admin")
    bo = small_api.bearing(made["token"])
    bo.get("/datasets")
    small_api.admin.ok("DELETE", f"/tokens/{made['id']}")
    reply = bo.call("GET", "/datasets")
    assert reply.status_code == 401 and reply.headers["www-authenticate"] == "Bearer"
    assert "revoked" in reply.json()["error"] and made["token"] not in reply.text
    assert small_api.bearing("hg_guess").error(401, "GET", "/datasets") == "token_refused"
    listed = small_api.admin.call("GET", "/tokens").text
    assert made["token"] not in listed
    [event] = small_api.admin.get("/events", kind="refused")
    assert (event["actor"], event["code"]) == ("bo", "token_refused")


def test_reply_has_the_security_headers_refused_or_not(small_api: Api) -> None:
    for client in (small_api.admin, small_api.bearing(None)):
        headers = client.call("GET", "/datasets").headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["cache-control"] == "no-store"
        assert "default-src 'none'" in headers["content-security-policy"]
