"""Every role on every route, embedded and served; tokens that are invalid, expired or foreign."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from headgate.catalog.branches import protect_branch
from headgate.catalog.tokens import create_token, revoke_token
from headgate.iceberg.app import ROUTES, Route
from headgate.iceberg.service import Action
from headgate.model.access import Grant, Role
from headgate.model.contexts import encode_prefix, parse_context
from headgate.server.app import create_server
from tests.support.attempts import dispatch_job
from tests.support.iceberg import Front, RestClient, Served, error, rename
from tests.support.metadata import commit, two_columns

# Body for each writing route; each is valid by itself, on the tables of the fixture.
_BODIES: dict[str, Any] = {
    "POST namespaces": {"namespace": ["fresh"]},
    "POST namespaces/{namespace}/properties": {"updates": {"a": "b"}},
    "POST namespaces/{namespace}/tables": {"name": "fresh", "schema": two_columns()},
    "POST namespaces/{namespace}/register": {"name": "r", "metadata-location": "/nowhere"},
    "POST namespaces/{namespace}/tables/{table}": {"requirements": [], "updates": commit(2)},
    "POST tables/rename": rename("u", "v"),
    "POST transactions/commit": {"table-changes": []},
    "POST namespaces/{namespace}/tables/{table}/metrics": {"report-type": "scan-report"},
}
_DENIED = {401, 403}


@dataclass(frozen=True, kw_only=True)
class Door:
    """One server: a URL, and tokens of several kinds, accepted or rejected."""

    url: str
    served: Served
    is_embedded: bool

    def knock(self, route: Route, token: str | None, context: str = "master") -> httpx.Response:
        prefix = encode_prefix(parse_context(context))
        path = route.pattern.replace("{namespace}", "db").replace("{table}", "t")
        headers = {"authorization": f"Bearer {token}"} if token else {}
        body = _BODIES.get(f"{route.method} {route.pattern}")
        return httpx.request(
            route.method,
            f"{self.url}/v1/{prefix}/{path}",
            headers=headers,
            json=body,
            verify=False,
            timeout=60,
        )

    def token(self, role: Role, *branches: str, lifetime_seconds: int | None = None) -> str:
        secret, _ = create_token(
            self.served.store.database,
            Grant(actor=role.value, role=role, branches=branches or ("*",)),
            lifetime_seconds=lifetime_seconds,
            created_by="ana",
        )
        return secret


@pytest.fixture(params=["embedded", "served"])
def door(
    request: pytest.FixtureRequest, two_tables: RestClient, served: Served, front: Front
) -> Iterator[Door]:
    if request.param == "embedded":
        yield Door(url=served.url, served=served, is_embedded=True)
        return
    front.app = create_server(served.store)
    yield Door(url=f"{served.url}/iceberg", served=served, is_embedded=False)


@pytest.fixture
def served_door(two_tables: RestClient, served: Served, front: Front) -> Door:
    front.app = create_server(served.store)
    return Door(url=f"{served.url}/iceberg", served=served, is_embedded=False)


def refused(door: Door, token: str | None, context: str = "master") -> dict[Action, set[int]]:
    """Return the statuses of rejections by kind of route; check the error bodies."""
    found: dict[Action, set[int]] = {action: set() for action in Action}
    for route in ROUTES:
        response = door.knock(route, token, context)
        assert response.status_code < 500 or "register" in route.pattern, response.text
        # A server registers no tables for clients, whatever their role.
        is_denied = response.status_code in _DENIED and "no metadata files" not in response.text
        found[route.action].add(response.status_code if is_denied else 0)
        if is_denied and route.method != "HEAD":
            assert error(response)[1] in {"ForbiddenException", "NotAuthorizedException"}
    return found


def everything(status: int) -> dict[Action, set[int]]:
    return {Action.READ: {status}, Action.WRITE: {status}}


@pytest.mark.parametrize("token", [None, "hg_nobody", "", "Bearer"])
def test_whoever_has_no_good_token_gets_nothing_anywhere(door: Door, token: str | None) -> None:
    before = door.served.publications
    assert refused(door, token) == everything(401)
    assert door.served.publications == before


def test_token_expired_or_revoked_gets_nothing_anywhere(served_door: Door) -> None:
    door = served_door
    database = door.served.store.database
    revoked, record = create_token(
        database,
        Grant(actor="eve", role=Role.ADMIN),
        lifetime_seconds=None,
        created_by="ana",
    )
    revoke_token(database, record.id)
    assert refused(door, revoked) == everything(401)
    assert refused(door, door.token(Role.ADMIN, lifetime_seconds=-1)) == everything(401)


def test_reader_reads_everywhere_and_writes_nowhere(served_door: Door) -> None:
    before = served_door.served.publications
    reader = served_door.token(Role.READER)
    assert refused(served_door, reader) == {Action.READ: {0}, Action.WRITE: {403}}
    assert refused(served_door, reader, "master@1")[Action.READ] == {0}
    assert served_door.served.publications == before


def test_writer_bound_to_branches_writes_on_those_only(served_door: Door) -> None:
    bound = served_door.token(Role.WRITER, "walt/*")
    assert refused(served_door, bound) == {Action.READ: {0}, Action.WRITE: {403}}
    # Properties of a namespace, and its end, concern all branches.
    assert refused(served_door, bound, "walt/try>master") == {
        Action.READ: {0},
        Action.WRITE: {0, 403},
    }


@pytest.mark.parametrize("role", [Role.WRITER, Role.ADMIN])
def test_writer_and_admin_write_and_only_the_admin_where_it_is_protected(
    served_door: Door, role: Role
) -> None:
    assert refused(served_door, served_door.token(role)) == everything(0)
    store = served_door.served.store
    store.dataset("db.u").branch("safe").create(parent="master")
    protect_branch(store.database, "safe", actor="ana")
    [create] = [r for r in ROUTES if r.method == "POST" and r.pattern.endswith("}/tables")]
    answer = served_door.knock(create, served_door.token(role), "safe")
    assert answer.status_code == (200 if role is Role.ADMIN else 403)
    events = served_door.served.store.events(kind="refused")
    kept = [(e["wanted"], e["branch"], e["code"]) for e in events if e["branch"] == "safe"]
    assert kept == ([] if role is Role.ADMIN else [("iceberg_write", "safe", "branch_protected")])


def test_moment_is_closed_to_every_writer(door: Door) -> None:
    token = door.served.token if door.is_embedded else door.token(Role.ADMIN)
    assert refused(door, token, "master@1") == {Action.READ: {0}, Action.WRITE: {403}}


def test_foreign_token_opens_neither_a_job_nor_what_a_job_may_not_see(door: Door) -> None:
    job = dispatch_job(door.served.store, "build-1/0", outputs=("db.t",))
    person = door.served.token if door.is_embedded else door.token(Role.ADMIN)
    assert refused(door, person, job.context) == everything(403)
    assert refused(door, job.token, "master") == everything(403)
    assert refused(door, job.token, "job:build-1/1:1") == everything(403)
    dispatch_job(door.served.store, "build-1/0", outputs=("db.t",))
    assert refused(door, job.token, job.context) == everything(403)
