"""Requests that a client may repeat when it does not know the outcome of the first."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from headgate.files.tree import EMPTY
from tests.support.api import Api
from tests.support.pipelines import files_spec, publish

_SCHEMA = '[dataset."t.a"]\ncolumns = {id = "long"}\nkey = ["id"]\n'
_SQL = "insert into t.a (id) values (1)"
# Needs an existing table of another catalog: `dataset register` has its own tests.
_ELSEWHERE = {"register_dataset"}
# Operations that change no view take no key; a repetition has no effect, or is rejected.
_AGAIN = {
    **dict.fromkeys(("plan", "plan_schema", "recover", "clean_up"), 200),
    **dict.fromkeys(("reparent_branch", "protect_branch", "unprotect_branch"), 200),
    "create_tag": 409,
    "delete_tag": 404,
    "put_content": 201,
    "put_contents": 201,
    "put_bundle": 201,
    **dict.fromkeys(("find_missing_contents", "get_contents"), 200),
    "revoke_token": 200,
    "open_transaction": 409,
    "open_in_unit": 200,
    "renew_transaction": 200,
    "abort_transaction": 409,
    "dispatch_attempt": 201,
    "open_attempt_tables": 200,
    "publish_workspace": 200,
    "renew_attempt": 200,
    "end_attempt": 200,
}
# A second token or unit is harmless and expires; builds and code have their own tests.
_BUILDS = {"start_build", "cancel_build", "work_build", "publish_jobspecs"}
_TWICE = {"create_token", "open_unit", *_BUILDS}
_HELLO = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"

Call = tuple[str, str, str, dict[str, Any]]


def test_key_repeated_on_every_publishing_route_is_done_once(small_api: Api) -> None:
    ana, done = small_api.admin, set()
    for operation, method, path, more in _publishing(small_api):
        headers = {"Idempotency-Key": f"once-{operation}"}
        first = ana.ok(method, path, headers=headers, **more)
        log = ana.get("/log")
        again = ana.ok(method, path, headers=headers, **more)
        # The steps of a schema are those that remain.
        assert again == (first | {"datasets": again["datasets"]} if "datasets" in first else first)
        assert ana.get("/log") == log, operation
        done.add(operation)
    assert done | _ELSEWHERE == _writing(small_api, keyed=True)


def test_route_without_a_key_sent_again_changes_nothing_more(small_api: Api) -> None:
    ana, done = small_api.admin, {}
    for operation, method, path, more in _others(small_api):
        assert ana.call(method, path, **more).is_success, operation
        state = [ana.get(where) for where in ("/branches", "/tags", "/protected", "/log")]
        done[operation] = ana.call(method, path, **more).status_code
        assert state == [ana.get(where) for where in ("/branches", "/tags", "/protected", "/log")]
    assert done == _AGAIN
    assert set(done) | _TWICE == _writing(small_api, keyed=False)


def _writing(api: Api, *, keyed: bool) -> set[str]:
    """Return the operations that may write, with an idempotency key or without."""
    return {
        route["operationId"]
        for routes in api.app.openapi()["paths"].values()
        for method, route in routes.items()
        if method not in {"get", "head"} and _has_key(route) is keyed
    }


def _has_key(route: dict[str, Any]) -> bool:
    return any(p["name"] == "Idempotency-Key" for p in route.get("parameters", ()))


def _publishing(api: Api) -> Iterator[Call]:
    on = {"dataset": "raw.scans"}
    master = {"params": {"branch": "master"}}
    yield "create_dataset", "POST", "/datasets", {"json": {**on, "kind": "files"}}
    yield "put_file", "PUT", "/files/raw.scans/a", {**master, "content": b"1"}
    first = api.admin.get("/branches/raw.scans/master")["view"]
    yield "delete_file", "DELETE", "/files/raw.scans/a", master
    yield (
        "reset_branch",
        "POST",
        "/branches/reset",
        {"json": {**on, "branch": "master", "to": first}},
    )
    yield "edit_files", "POST", "/files/raw.scans", {"json": {"branch": "master", "remove": ["a"]}}
    opened = api.admin.post("/transactions", **on, branch="master")["transaction"]
    yield "commit_transaction", "POST", f"/transactions/{opened}/commit", {}
    new = {"json": {**on, "name": "b1", "parent": "master"}}
    yield "create_branch", "POST", "/branches", new
    yield "delete_branch", "DELETE", "/branches/raw.scans/b1", {}
    yield "restore_branch", "POST", "/branches/restore", {"json": {**on, "branch": "b1"}}
    api.admin.post("/branches", **on, name="b2", parent="master")
    yield "delete_branch_everywhere", "DELETE", "/branches", {"params": {"name": "b2"}}
    yield "apply_schema", "POST", "/schema/apply", {"json": {"branch": "master", "text": _SCHEMA}}
    yield "mutate", "POST", "/mutate", {"json": {"branch": "master", "sql": _SQL}}
    rows = {"t.a": [{"id": 2}]}
    yield "load", "POST", "/load", {"json": {"branch": "master", "rows": rows, "mode": "append"}}
    yield "optimize", "POST", "/optimize", {"json": {"dataset": "t.a", "branch": "master"}}
    api.admin.post("/branches", dataset="t.a", name="side", parent="master")
    api.admin.post("/mutate", branch="side", sql="insert into t.a (id) values (3)")
    yield "merge", "POST", "/merge", {"json": {"source": "side", "into": "master"}}


def _others(api: Api) -> Iterator[Call]:
    ana, on = api.admin, {"dataset": "raw.scans"}
    ana.make_files()
    at = ana.put("a")["moves"][0]["to"]
    publish(api.store, "master", files_spec("made.d"))
    yield "plan", "POST", "/plan", {"json": {"targets": ["made.d"], "branch": "master"}}
    schema = {"json": {"branch": "master", "text": _SCHEMA}}
    yield "plan_schema", "POST", "/schema/plan", schema
    yield "recover", "POST", "/recover", {"json": {}}
    yield "clean_up", "POST", "/cleanup", {"json": {}}
    ana.post("/branches", **on, name="b1", parent="master")
    yield "protect_branch", "PUT", "/protected/b1", {}
    yield "unprotect_branch", "DELETE", "/protected/b1", {}
    yield "reparent_branch", "POST", "/branches/reparent", {"json": {**on, "branch": "b1"}}
    yield "create_tag", "POST", "/tags", {"json": {**on, "name": "v1", "at": at}}
    yield "delete_tag", "DELETE", "/tags/raw.scans/v1", {}
    yield "put_content", "PUT", f"/contents/{_HELLO}", {"content": b"hello"}
    some = {"json": {"digests": [_HELLO]}}
    yield "put_contents", "POST", "/contents/put", {"content": _HELLO.encode() + b" 5\nhello"}
    code = b"PK\x05\x06" + bytes(18)
    bundle = f"/bundles/{hashlib.sha256(code).hexdigest()}"
    yield "put_bundle", "PUT", bundle, {"content": code}
    yield "find_missing_contents", "POST", "/contents/missing", some
    yield "get_contents", "POST", "/contents/get", some
    token = ana.post("/tokens", actor="bo", role="reader")["id"]
    yield "revoke_token", "DELETE", f"/tokens/{token}", {}
    yield "open_transaction", "POST", "/transactions", {"json": {**on, "branch": "master"}}
    open_now = ana.get("/branches/raw.scans/master")["head"]
    yield "renew_transaction", "POST", f"/transactions/{open_now}/renew", {}
    yield "abort_transaction", "POST", f"/transactions/{open_now}/abort", {}
    attempt = {"secret": "s" * 43}
    new = {"json": {"key": "k", "branch": "master", **attempt}}
    yield "dispatch_attempt", "POST", "/tasks/attempts", new
    ana.post("/schema/apply", **schema["json"])
    tables = {"repository": "raw.scans", "branch": "master", "ref": at, "outputs": ["t.a"]}
    yield "open_attempt_tables", "POST", "/tasks/attempts/tables", {"json": {**attempt, **tables}}
    made = {"branch": "master", "ref": at, "root": EMPTY}
    yield (
        "publish_workspace",
        "POST",
        "/tasks/workspaces/raw.scans",
        {"json": {**attempt, **made}},
    )
    yield "renew_attempt", "POST", "/tasks/attempts/renew", {"json": attempt}
    yield "end_attempt", "POST", "/tasks/attempts/end", {"json": {**attempt, "state": "succeeded"}}
    unit = ana.post("/units", branch="master")["unit"]
    yield "open_in_unit", "POST", f"/units/{unit}/transactions", {"json": on}
