"""One request for every operation of the HTTP API, each with objects of its own to act on."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from headgate.files.objects import Digest, encode_frame
from tests.support.api import ApiClient

CONTENT = b"some bytes"
DIGEST = hashlib.sha256(CONTENT).hexdigest()
# Token of no attempt.
SECRET = "s" * 43
SCHEMA = '[dataset."{table}"]\ncolumns = {{id = "string"}}\nkey = ["id"]\n'

Request = tuple[str, str, dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class World:
    """Objects that an admin created on a branch, for the requests of other actors."""

    # Namespace of its datasets, so that many worlds fit into one store.
    name: str
    branch: str
    views: tuple[str, str]
    open: str
    unit: str

    def __getattr__(self, dataset: str) -> str:
        return f"{self.name}.{dataset}"


def make_world(ana: ApiClient, name: str, branch: str) -> World:
    """Create files that were published twice, an OPEN transaction and an OPEN unit."""
    scans, busy = f"{name}.scans", f"{name}.busy"
    for dataset in (scans, busy):
        ana.make_files(dataset, branch)
    ana.make_files(f"{name}.bare", f"{name}/elsewhere")
    first, second = (_put(ana, scans, branch, content) for content in (b"1", b"2"))
    _put(ana, f"{name}.bare", f"{name}/elsewhere", b"3")
    ana.post("/tags", dataset=scans, name="t1", at=second)
    opened = ana.post("/transactions", dataset=busy, branch=branch)["transaction"]
    unit = ana.post("/units", branch=branch)["unit"]
    return World(name=name, branch=branch, views=(first, second), open=opened, unit=unit)


def make_table(ana: ApiClient, world: World) -> None:
    """Create a keyed table with a row, and a child branch that changed it."""
    text = SCHEMA.format(table=world.rows)
    ana.post("/schema/apply", branch=world.branch, text=text)
    for id in ("a", "z"):
        ana.post("/load", branch=world.branch, rows={world.rows: [{"id": id}]})
    side = f"{world.branch}-side"
    ana.post("/branches", dataset=world.rows, name=side, parent=world.branch)
    ana.post("/load", branch=side, rows={world.rows: [{"id": "b"}]})


def branch_requests(world: World) -> dict[str, Request]:
    """Return one request for each operation that writes a branch."""
    branch, where = world.branch, {"params": {"branch": world.branch}}
    both = {"dataset": world.scans, "branch": branch}
    files = f"/files/{world.scans}"
    bare = {"dataset": world.bare, "name": branch, "parent": f"{world.name}/elsewhere"}
    tag = {"dataset": world.scans, "name": "t2", "at": world.views[0]}
    edit = {"branch": branch, "remove": ["a.txt"]}
    update = f"delete from {world.rows} where id = 'a'"
    schema = SCHEMA.format(table=world.more)
    table = {"metadata_location": "/no/such/table", "branch": branch}
    merge = {"source": f"{branch}-side", "into": branch, "timeout_seconds": 0}
    rows = {"branch": branch, "rows": {world.rows: [{"id": "c"}]}}
    unit = f"/units/{world.unit}/transactions"
    return {
        "create_dataset": _post("/datasets", dataset=world.new, branch=branch),
        "register_dataset": _post(f"/datasets/{world.theirs}/register", **table),
        "create_branch": _post("/branches", **bare),
        "delete_branch": (
            "DELETE",
            f"/branches/{world.scans}/{branch}",
            {"params": {"force": True}},
        ),
        "delete_branch_everywhere": (
            "DELETE",
            "/branches",
            {"params": {"name": branch, "force": True}},
        ),
        "restore_branch": _post("/branches/restore", **both),
        "reset_branch": _post("/branches/reset", **both, to=world.views[0]),
        "reparent_branch": _post("/branches/reparent", **both),
        "create_tag": _post("/tags", **tag),
        "delete_tag": ("DELETE", f"/tags/{world.scans}/t1", {}),
        "open_transaction": _post("/transactions", **both),
        "open_unit": _post("/units", branch=branch),
        "open_in_unit": _post(unit, dataset=world.scans),
        "renew_transaction": _post(f"/transactions/{world.open}/renew"),
        "commit_transaction": _post(f"/transactions/{world.open}/commit"),
        "abort_transaction": _post(f"/transactions/{world.open}/abort"),
        "put_file": ("PUT", f"{files}/b.txt", {**where, "content": CONTENT}),
        "delete_file": ("DELETE", f"{files}/a.txt", where),
        "edit_files": _post(files, **edit),
        "mutate": _post("/mutate", branch=branch, sql=update),
        "load": _post("/load", **rows),
        "merge": _post("/merge", **merge),
        "apply_schema": _post("/schema/apply", branch=branch, text=schema),
        "optimize": _post("/optimize", dataset=world.rows, branch=branch, keep_snapshots=1),
        "publish_jobspecs": _post("/jobspecs", **_jobspecs(branch)),
        "start_build": _post("/builds", targets=[world.none], branch=branch),
        "cancel_build": _post("/builds/build-none/cancel"),
        "work_build": _post("/builds/build-none/work", running=[]),
        "open_attempt_tables": _post(
            "/tasks/attempts/tables",
            secret=SECRET,
            repository=world.scans,
            branch=branch,
            ref="t-none",
        ),
        "publish_workspace": _post(
            f"/tasks/workspaces/{world.scans}",
            secret=SECRET,
            branch=branch,
            ref=world.views[1],
            root=None,
        ),
    }


OTHER_REQUESTS: dict[str, Request] = {
    "show_store": ("GET", "/store", {}),
    "list_datasets": ("GET", "/datasets", {}),
    "show_dataset": ("GET", "/datasets/raw.scans", {}),
    "show_content": ("GET", "/datasets/raw.scans/content", {}),
    "list_branches": ("GET", "/branches", {}),
    "show_branch": ("GET", "/branches/raw.scans/master", {}),
    "list_protected": ("GET", "/protected", {}),
    "protect_branch": ("PUT", "/protected/other", {}),
    "unprotect_branch": ("DELETE", "/protected/other", {}),
    "list_tags": ("GET", "/tags", {}),
    "show_transaction": ("GET", "/transactions/t-none", {}),
    "list_files": ("GET", "/files/raw.scans", {}),
    "get_file": ("GET", "/files/raw.scans/a.txt", {}),
    "find_content": ("HEAD", f"/contents/{DIGEST}", {}),
    # With a tree that nobody has: the content is not found in it.
    "get_content": ("GET", f"/contents/{DIGEST}", {"headers": {"headgate-tree": DIGEST}}),
    "put_content": ("PUT", f"/contents/{DIGEST}", {"content": CONTENT}),
    "find_missing_contents": ("POST", "/contents/missing", {"json": {"digests": [DIGEST]}}),
    "get_contents": ("POST", "/contents/get", {"json": {"digests": [DIGEST]}}),
    "put_contents": ("POST", "/contents/put", {"content": encode_frame(Digest(DIGEST), CONTENT)}),
    "list_history": ("GET", "/history/raw.scans", {}),
    "list_publications": ("GET", "/log", {}),
    "show_publication": ("GET", "/log/1", {}),
    "list_events": ("GET", "/events", {}),
    "list_recoveries": ("GET", "/recoveries", {}),
    "status": ("GET", "/status/k", {}),
    "list_jobspecs": ("GET", "/jobspecs", {}),
    "plan": ("POST", "/plan", {"json": {"targets": ["no.such"], "branch": "master"}}),
    "get_bundle": ("GET", f"/bundles/{DIGEST}", {}),
    "put_bundle": ("PUT", f"/bundles/{DIGEST}", {"content": CONTENT}),
    "list_builds": ("GET", "/builds", {}),
    "show_build": ("GET", "/builds/build-none", {}),
    "build_logs": ("GET", "/builds/build-none/logs", {}),
    "watch_build": ("GET", "/builds/build-none/progress", {}),
    "dispatch_attempt": ("POST", "/tasks/attempts", {"json": {"key": "k", "secret": "k" * 43}}),
    "renew_attempt": ("POST", "/tasks/attempts/renew", {"json": {"secret": SECRET}}),
    "end_attempt": (
        "POST",
        "/tasks/attempts/end",
        {"json": {"secret": SECRET, "state": "failed"}},
    ),
    "show_workspace": (
        "GET",
        "/tasks/workspaces/raw.scans",
        {"params": {"branch": "master", "ref": "t-none"}},
    ),
    "diff": ("GET", "/diff", {"params": {"from": "master", "to": "master"}}),
    "plan_schema": ("POST", "/schema/plan", {"json": {"branch": "master", "text": "x = 1"}}),
    "recover": ("POST", "/recover", {"json": {}}),
    "clean_up": ("POST", "/cleanup", {"json": {"dry_run": True}}),
    "examine": ("GET", "/doctor", {}),
    "list_tokens": ("GET", "/tokens", {}),
    "create_token": ("POST", "/tokens", {"json": {"actor": "x", "role": "reader"}}),
    "revoke_token": ("DELETE", "/tokens/tok-none", {}),
}


def _post(path: str, /, **body: Any) -> Request:
    return ("POST", path, {"json": body} if body else {})


def _put(ana: ApiClient, dataset: str, branch: str, content: bytes) -> str:
    where = f"/files/{dataset}/a.txt"
    done = ana.ok("PUT", where, params={"branch": branch}, content=content)
    return str(done["moves"][0]["to"])


def _jobspecs(branch: str) -> dict[str, Any]:
    """Return an empty publication whose bundle does not exist.

    The error about the bundle shows that the request was authorized.
    """
    source = {"repository": "r", "commit": "abcdef0", "branch": branch, "clean": True}
    return {"source": source, "bundle": "0" * 64, "jobspecs": []}
