"""S06: what a token may not read appears in no list, page, log, lineage, diff, content or error."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from headgate.errors import HeadgateError
from headgate.model.access import RULES, Grant, Right, Role
from headgate.server.web.branches_page import branches_page
from headgate.server.web.build_page import build_page, builds_page
from headgate.server.web.dataset_page import dataset_page
from headgate.server.web.datasets_page import datasets_page
from headgate.server.web.host import make_safely
from headgate.server.web.lineage_page import lineage_page
from headgate.server.web.log_page import log_page
from headgate.server.web.page import Page, Visit
from headgate.server.web.review_page import review_page
from tests.support.api import Api, ApiClient
from tests.support.hidden import WORD, HiddenWorld, make_hidden_world
from tests.support.rights import SECRET, Request
from tests.support.stores import new_store

READS = ("main", "ana/*")
DATASETS = ("gold.*",)
READ_OPERATIONS = sorted(
    name
    for name, rule in RULES.items()
    if rule.right is Right.READ and name not in {"iceberg_read", "iceberg_write"}
)


def limited(api: Api, role: Role, **rights: Any) -> ApiClient:
    rights = {"reads": READS, "datasets": DATASETS, **rights}
    if role is not Role.READER:
        rights.setdefault("branches", ("ana/*",))
    made = api.store.create_token(actor="bo", role=role, **rights)
    return api.bearing(made["token"])


def reading(world: HiddenWorld, *, hidden: bool) -> dict[str, list[Request]]:
    """Return requests that read: of all, or of objects that are hidden, or of others like them."""
    dataset = "hush.payroll" if hidden else "gold.orders"
    files = "hush.scans" if hidden else "gold.orders"
    branch = "hush/plan" if hidden else "main"
    build = world.hidden_build if hidden else world.shown_build
    transaction = world.hidden_transaction if hidden else world.shown_transaction
    digest = world.hidden_content if hidden else world.shown_content
    content = {"headers": {"headgate-tree": world.shown_root}}
    root = {"headers": {"headgate-tree": world.hidden_root if hidden else world.shown_root}}

    def get(path: str, **params: Any) -> Request:
        return ("GET", path, {"params": params})

    return {
        "show_store": [get("/store")],
        "list_datasets": [get("/datasets")],
        "show_dataset": [get(f"/datasets/{dataset}")],
        "show_content": [
            get(f"/datasets/{dataset}/content", rows=5),
            get("/datasets/gold.orders/content", context=branch, rows=5),
            get("/datasets/gold.orders/content", context=f"ana/x>{branch}", rows=5),
            get("/datasets/gold.orders/content", context=f"{branch}@9", rows=5),
            get("/datasets/gold.orders/content", context=f"txn:{transaction}", rows=5),
        ],
        "list_branches": [get("/branches"), get("/branches", dataset=dataset)],
        "show_branch": [
            get(f"/branches/gold.orders/{branch}"),
            get(f"/branches/{dataset}/main"),
            get("/branches/gold.orders/ana/x"),
        ],
        "list_protected": [get("/protected")],
        "list_tags": [get("/tags"), get("/tags", dataset=files)],
        "show_transaction": [
            get(f"/transactions/{transaction}"),
            *([get(f"/transactions/{world.hidden_open}")] if hidden else []),
            *([get(f"/transactions/{world.hidden_unit}")] if hidden else []),
        ],
        "list_files": [
            get(f"/files/{files}", branch="main"),
            get("/files/gold.orders", branch=branch),
            get("/files/gold.orders", branch="main", at=transaction),
        ],
        "get_file": [
            get(f"/files/{files}/hush.txt" if hidden else f"/files/{files}/a.txt", branch="main"),
            get("/files/gold.orders/hush.txt", branch=branch) if hidden else get("/store"),
            get("/files/gold.orders/hush.txt", branch="main", at=transaction)
            if hidden
            else get("/store"),
        ],
        "find_content": [
            ("HEAD", f"/contents/{digest}", content),
            ("HEAD", f"/contents/{digest}", root),
        ],
        "get_content": [
            ("GET", f"/contents/{digest}", content),
            ("GET", f"/contents/{digest}", root),
            *([("GET", f"/contents/{digest}", {})] if hidden else []),
        ],
        "find_missing_contents": [
            ("POST", "/contents/missing", {**root, "json": {"digests": [digest]}})
        ],
        "get_contents": [("POST", "/contents/get", {**root, "json": {"digests": [digest]}})],
        "list_history": [
            get(f"/history/{dataset}", branch="main", all=True),
            get("/history/gold.orders", branch=branch, all=True),
        ],
        "list_publications": [
            get("/log", limit=100),
            get("/log", dataset=dataset),
            get("/log", branch=branch),
        ],
        "show_publication": [get(f"/log/{world.hidden_publication if hidden else 2}")],
        "list_events": [get("/events"), get("/events", branch=branch), get("/events", actor="ana")],
        "list_recoveries": [get("/recoveries")],
        "status": [get("/status/hush-gold.sales")] if hidden else [get("/store")],
        "list_jobspecs": [get("/jobspecs"), get("/jobspecs", branch=branch)],
        "plan": [
            (
                "POST",
                "/plan",
                {"json": {"targets": ["hush.out" if hidden else "gold.plain"], "branch": "main"}},
            ),
            *(
                [("POST", "/plan", {"json": {"targets": ["gold.plain"], "branch": branch}})]
                if hidden
                else []
            ),
        ],
        "list_builds": [get("/builds")],
        "show_build": [get(f"/builds/{build}")],
        "build_logs": [get(f"/builds/{build}/logs")],
        "watch_build": [get(f"/builds/{build}/progress")] if hidden else [get("/store")],
        "show_workspace": [
            get(f"/tasks/workspaces/{files}", branch="main", ref=transaction),
            get("/tasks/workspaces/gold.orders", branch=branch, ref=transaction),
        ],
        "diff": [
            get("/diff", **{"from": "main", "to": branch}),
            get("/diff", **{"from": "main", "to": "ana/x"}),
            get("/diff", **{"from": "main", "to": transaction}),
            get("/diff", branch="ana/x", into=branch),
            get("/diff", branch="ana/x", into="main"),
        ],
        "plan_schema": [
            (
                "POST",
                "/schema/plan",
                {
                    "json": {
                        "branch": "main",
                        "text": f'[dataset."{dataset if hidden else "gold.sales"}"]\n'
                        'columns = {id = "string"}\nkey = ["id"]\n',
                    }
                },
            )
        ],
    }


def told(reply: httpx.Response, *sent: str) -> str:
    """Return everything that a reply tells, but for what the request itself said."""
    text = f"{dict(reply.headers)} {reply.text}"
    for word in sent:
        text = text.replace(word, "")
    return text


def test_s06_every_operation_that_reads_is_in_this_test(
    made_sqlite_url: str, tmp_path: Path
) -> None:
    with new_store(made_sqlite_url, tmp_path) as store:
        world = make_hidden_world(store)
        assert sorted(reading(world, hidden=False)) == READ_OPERATIONS


@pytest.mark.parametrize("role", [Role.READER, Role.WRITER, Role.ADMIN])
def test_s06_no_answer_of_the_api_tells_what_is_hidden(api: Api, role: Role) -> None:
    world = make_hidden_world(api.store)
    bo = limited(api, role)
    tells = set()
    for operation, requests in reading(world, hidden=False).items():
        for method, path, more in requests:
            whole = api.admin.call(method, path, **more)
            part = bo.call(method, path, **more)
            assert part.status_code == whole.status_code == 200, (operation, path, part.text)
            assert WORD not in told(part).lower(), (operation, path, part.text)
            if WORD in told(whole).lower():
                tells.add(operation)
    logs = bo.get(f"/builds/{world.shown_build}/logs")["jobs"]
    assert [one["log"] for one in logs] == ["public rows\n", None, None]
    # The same requests of an admin do tell it, so that this test can fail.
    assert tells >= {
        "list_datasets",
        "show_dataset",
        "list_branches",
        "show_transaction",
        "list_history",
        "list_publications",
        "list_events",
        "list_jobspecs",
        "list_builds",
        "show_build",
        "list_tags",
        "list_protected",
        "show_branch",
        "build_logs",
    }


@pytest.mark.parametrize("role", [Role.READER, Role.WRITER])
def test_s06_request_for_what_is_hidden_is_refused_as_if_it_did_not_exist(
    api: Api, role: Role
) -> None:
    world = make_hidden_world(api.store)
    bo = limited(api, role)
    for operation, requests in reading(world, hidden=True).items():
        for method, path, more in requests:
            reply = bo.call(method, path, **more)
            if reply.status_code == 200:
                # A list, or a filter that finds nothing.
                sent = (str(reply.url), "hush.payroll", "hush/plan")
                assert WORD not in told(reply, *sent).lower(), (operation, path, reply.text)
                continue
            assert reply.status_code in {400, 403, 404}, (operation, path, reply.text)
            # The error repeats the name in the request, and says nothing that depends on whether
            # the object exists.
            other = _renamed((method, path, more))
            again = bo.call(*other[:2], **other[2])
            expected = _unnamed(again.text)
            assert (reply.status_code, _unnamed(reply.text)) == (again.status_code, expected), path


def _renamed(request: Request) -> Request:
    """Return the same request for names and ids that do not exist."""
    method, path, more = request

    def change(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: change(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [change(inner) for inner in value]
        if not isinstance(value, str):
            return value
        return _no_such(value)

    return method, _no_such(path), change(more)


def _no_such(text: str) -> str:
    return text.replace("hush", "hash")


def _unnamed(text: str) -> str:
    return text.replace("hush", "·").replace("hash", "·")


def test_s06_content_of_a_hidden_tree_is_neither_read_nor_used(api: Api) -> None:
    world = make_hidden_world(api.store)
    bo = limited(api, Role.WRITER)
    hidden, shown = world.hidden_content, world.shown_content
    trees = {"headgate-tree": f"{world.hidden_root},{world.shown_root}"}
    assert bo.call("GET", f"/contents/{hidden}", headers=trees).status_code == 404
    assert bo.call("GET", f"/contents/{shown}", headers=trees).text == "public"
    assert bo.call("GET", f"/contents/{world.hidden_root}", headers=trees).status_code == 404
    missing = bo.ok("POST", "/contents/missing", json={"digests": [hidden]}, headers=trees)
    assert missing == {"missing": [hidden]}
    parcel = bo.call("POST", "/contents/get", json={"digests": [hidden, shown]}, headers=trees)
    assert b"public" in parcel.content and WORD.encode() not in parcel.content
    # To know a digest is not to have the content.
    edit = {"branch": "ana/x", "put": [{"path": "b", "size": 10, "digest": hidden}]}
    assert bo.error(409, "POST", "/files/gold.orders", json=edit) == "content_swept"
    load = {"branch": "ana/x", "contents": {"gold.sales": [hidden]}}
    assert bo.error(404, "POST", "/load", json=load) == "object_not_found"
    # Who uploads the same bytes has them, but no other token of the same actor.
    bo.ok("PUT", f"/contents/{hidden}", content=b"hush bytes")
    another = limited(api, Role.WRITER)
    assert another.error(409, "POST", "/files/gold.orders", json=edit) == "content_swept"
    bo.ok("POST", "/files/gold.orders", json=edit)
    assert bo.call("GET", "/files/gold.orders/b", params={"branch": "ana/x"}).text == "hush bytes"


def test_s06_reader_reads_contents_only_of_trees_and_never_code(api: Api) -> None:
    world = make_hidden_world(api.store)
    code = b"PK\x05\x06" + bytes(18)
    digest = hashlib.sha256(code).hexdigest()
    api.admin.ok("PUT", f"/bundles/{digest}", content=code)
    for client in (api.reader, limited(api, Role.READER), api.admin):
        assert client.call("GET", f"/contents/{digest}").status_code in {403, 404}
    assert api.admin.call("GET", f"/bundles/{digest}").content == code
    assert api.reader.call("GET", f"/bundles/{digest}").status_code == 403
    reply = api.reader.call("GET", f"/contents/{world.shown_content}")
    assert (reply.status_code, reply.json()["code"]) == (403, "content_denied")
    named = {"headgate-tree": world.shown_root}
    assert api.reader.call("GET", f"/contents/{world.shown_content}", headers=named).is_success


WRITES: dict[str, Callable[[HiddenWorld], Request]] = {
    "fork of a hidden branch": lambda w: _post(
        "/branches", dataset="gold.orders", name="ana/steal", parent="hush/plan"
    ),
    "fork at a hidden transaction": lambda w: _post(
        "/branches",
        dataset="gold.orders",
        name="ana/steal",
        parent="main",
        at=w.hidden_transaction,
    ),
    "reparenting under a hidden branch": lambda w: _post(
        "/branches/reparent", dataset="gold.orders", branch="ana/x", under="hush/plan"
    ),
    "reset to a hidden transaction": lambda w: _post(
        "/branches/reset", dataset="gold.orders", branch="ana/x", to=w.hidden_transaction
    ),
    "tag of a hidden transaction": lambda w: _post(
        "/tags", dataset="gold.orders", name="mine", at=w.hidden_transaction
    ),
    "merge of a hidden branch": lambda w: _post("/merge", source="hush/plan", into="ana/x"),
    "script that reads a hidden table": lambda w: _post(
        "/mutate",
        branch="ana/x>main",
        sql="insert into gold.sales select id from hush.payroll",
    ),
    "script that writes a hidden table": lambda w: _post(
        "/mutate", branch="ana/x", sql="insert into hush.payroll (id) values ('x')"
    ),
    "load into a hidden table": lambda w: _post(
        "/load", branch="ana/x", rows={"hush.payroll": [{"id": "x"}]}
    ),
    "load off a hidden branch": lambda w: _post(
        "/load", branch="ana/new>hush/plan", rows={"gold.orders": [{"id": "x"}]}
    ),
    "schema of a hidden table": lambda w: _post(
        "/schema/apply",
        branch="ana/x",
        text='[dataset."hush.payroll"]\ncolumns = {id = "string"}\n',
    ),
    "new dataset outside of the patterns": lambda w: _post(
        "/datasets", dataset="hush.scans", kind="files", branch="ana/x"
    ),
    "file of a hidden dataset": lambda w: (
        "PUT",
        "/files/hush.scans/a",
        {"params": {"branch": "ana/x"}, "content": b"x"},
    ),
    "file in a hidden transaction": lambda w: (
        "PUT",
        "/files/gold.orders/a",
        {"params": {"txn": w.hidden_open}, "content": b"x"},
    ),
    "renewal of a hidden transaction": lambda w: _post(f"/transactions/{w.hidden_open}/renew"),
    "abort of a hidden transaction": lambda w: _post(f"/transactions/{w.hidden_open}/abort"),
    "abort of a hidden unit": lambda w: _post(f"/transactions/{w.hidden_unit}/abort"),
    "build of a hidden dataset": lambda w: _post(
        "/builds", targets=["hush.out"], branch="ana/x", fallback=["main"]
    ),
    "build that reads a hidden dataset": lambda w: _post(
        "/builds", targets=["gold.report"], branch="ana/x", fallback=["main"]
    ),
    "build with a hidden fallback": lambda w: _post(
        "/builds", targets=["gold.plain"], branch="ana/x", fallback=["hush/plan"]
    ),
    "cancellation of a hidden build": lambda w: _post(f"/builds/{w.hidden_build}/cancel"),
    "compaction of a hidden table": lambda w: _post(
        "/optimize", dataset="hush.payroll", branch="ana/x", keep_snapshots=1
    ),
    "fork at a hidden tag": lambda w: _post(
        "/branches", dataset="gold.orders", name="ana/steal", parent="main", at="hush-tag"
    ),
    "reset to a hidden tag": lambda w: _post(
        "/branches/reset", dataset="gold.orders", branch="ana/x", to="hush-tag"
    ),
    "merge of a hidden tag": lambda w: _post("/merge", source="hush-tag", into="ana/x"),
    "creation of a hidden table": lambda w: _post(
        "/load", branch="ana/x", create=True, rows={"hush.new": [{"id": "x"}]}
    ),
    "creation of a table of a hidden branch": lambda w: _post(
        "/load",
        branch="ana/x",
        create=True,
        timeout_seconds=300,
        rows={"gold.apart": [{"id": "x"}]},
    ),
    "schema of a table of a hidden branch": lambda w: _post(
        "/schema/apply",
        branch="ana/x",
        text='[dataset."gold.apart"]\ncolumns = {id = "string"}\n',
    ),
    "restoration of a hidden dataset": lambda w: _post(
        "/branches/restore", dataset="hush.scans", branch="ana/gone"
    ),
    "restoration of a branch of hidden datasets": lambda w: _post(
        "/branches/restore", branch="ana/gone"
    ),
    "workspace of a hidden dataset": lambda w: _post(
        "/tasks/workspaces/hush.scans", secret=SECRET, branch="ana/x", ref="t-1", root=None
    ),
}


def _post(path: str, /, **body: Any) -> Request:
    return ("POST", path, {"json": body} if body else {})


HIDDEN_NAMES = (
    *("hush.payroll", "hush.scans", "hush.out", "hush.new"),
    *("hush/plan", "hush-tag"),
)


def test_s06_no_write_reaches_what_is_hidden(api: Api) -> None:
    world = make_hidden_world(api.store)
    bo = limited(api, Role.WRITER)
    before = api.admin.get("/log", limit=1)
    branches = api.admin.get("/branches")
    for what, request in WRITES.items():
        method, path, more = request(world)
        reply = bo.call(method, path, **more)
        assert 400 <= reply.status_code < 500, (what, reply.status_code, reply.text)
        # At most the names in the request itself.
        sent = (*HIDDEN_NAMES, world.hidden_build)
        assert WORD not in told(reply, *sent).lower(), (what, reply.text)
        sent_text = f"{path} {more}"
        for name in sent:
            if name in reply.text:
                assert name in sent_text, (what, reply.text)
    assert api.admin.get("/log", limit=1) == before
    assert api.admin.get("/branches") == branches
    assert api.admin.get(f"/transactions/{world.hidden_open}")["state"] == "OPEN"


def test_s06_limited_writer_works_within_its_patterns(api: Api) -> None:
    make_hidden_world(api.store)
    bo = limited(api, Role.WRITER)
    where = {"params": {"branch": "ana/x"}}
    bo.ok("PUT", "/files/gold.orders/mine", **where, content=b"mine")
    bo.post("/load", branch="ana/x>main", rows={"gold.sales": [{"id": "s2"}]})
    bo.post("/mutate", branch="ana/x", sql="delete from gold.sales where id = 's1'")
    rows = bo.get("/datasets/gold.sales/content", context="ana/x", rows=5)["rows"]
    assert [row["id"] for row in rows] == ["s2"]
    bo.post("/datasets", dataset="gold.new", kind="files", branch="ana/x")
    assert {one["dataset"] for one in bo.get("/datasets")} == {
        "gold.orders",
        "gold.sales",
        "gold.new",
    }
    # A pattern matches only jobs of which the token may read all inputs and outputs.
    for target in ("gold.plain", "*", "*.*"):
        planned = bo.post("/plan", targets=[target], branch="ana/x", fallback=["main"])
        assert [job["outputs"] for job in planned["jobs"]] == [["gold.plain"]]
    unseen = {"targets": ["hush.*"], "branch": "ana/x", "fallback": ["main"]}
    assert bo.error(404, "POST", "/plan", json=unseen) == "jobspec_not_found"
    body = {"targets": ["gold.report"], "branch": "ana/x", "fallback": ["main"]}
    for path in ("/plan", "/builds"):
        assert bo.error(403, "POST", path, json=body) == "build_input_denied"
    difference = bo.get("/diff", **{"from": "main", "to": "ana/x"})
    assert {one["dataset"] for one in difference} == {"gold.orders", "gold.sales"}
    # A merge to a branch that it may not write stays refused.
    assert bo.error(403, "POST", "/merge", json={"source": "ana/x", "into": "main"}) == (
        "role_denied"
    )


def test_s06_commit_tells_nothing_of_a_hidden_child_that_moves_with_its_parent(api: Api) -> None:
    make_hidden_world(api.store)
    bo = limited(api, Role.WRITER)
    opened = bo.post("/transactions", dataset="gold.orders", branch="ana/x", type="UPDATE")
    child = api.store.dataset("gold.orders").branch("hush/child").create("ana/x").load()
    assert child.head == opened["transaction"]
    commit = f"/transactions/{opened['transaction']}/commit"
    api.store.protect("hush/child")
    refused = bo.call("POST", commit)
    assert (refused.status_code, refused.json()["code"]) == (403, "branch_protected")
    assert "hush" not in refused.text and "ana/x" in refused.text
    api.store.protect("hush/child", protected=False)
    done = bo.call("POST", commit)
    assert done.status_code == 200 and "hush" not in done.text
    assert list(done.json()["receipt"].values()) == [opened["transaction"]]
    assert child.id not in done.text
    assert (
        api.store.dataset("gold.orders").branch("hush/child").load().view == (opened["transaction"])
    )


def test_s06_no_answer_of_the_iceberg_endpoint_tells_what_is_hidden(api: Api) -> None:
    make_hidden_world(api.store)
    bo = limited(api, Role.WRITER)
    root = api.url + "/iceberg/v1"

    def prefix(context: str) -> httpx.Response:
        return bo.http.get(f"{root}/config", params={"warehouse": context})

    for context in ("hush/plan", "ana/x>hush/plan", "hush/plan@3"):
        assert prefix(context).status_code == 403, context
    for context in ("main", "ana/x>main", "main@10"):
        at = f"{root}/{prefix(context).json()['overrides']['prefix']}"
        listed = bo.http.get(f"{at}/namespaces").json()
        assert listed["namespaces"] == [["gold"]]
        tables = bo.http.get(f"{at}/namespaces/gold/tables").json()
        assert [one["name"] for one in tables["identifiers"]] == ["sales"]
        assert bo.http.get(f"{at}/namespaces/gold/tables/sales").is_success
        for path in ("namespaces/hush", "namespaces/hush/tables", "namespaces/hush/tables/payroll"):
            hidden, absent = (
                bo.http.get(f"{at}/{p}") for p in (path, path.replace("hush", "hash"))
            )
            assert hidden.status_code == absent.status_code == 404
            assert _unnamed(hidden.text) == _unnamed(absent.text)
    at = f"{root}/{prefix('ana/x').json()['overrides']['prefix']}"
    body = {"name": "payroll", "schema": {"type": "struct", "fields": []}}
    for method, path, sent in (
        ("POST", "namespaces/hush/tables", body),
        ("POST", "namespaces", {"namespace": ["hush2"]}),
        ("POST", "namespaces/gold/properties", {"updates": {"owner": "bo"}}),
        ("DELETE", "namespaces/gold", None),
        ("DELETE", "namespaces/hush/tables/payroll", None),
        (
            "POST",
            "tables/rename",
            {
                "source": {"namespace": ["gold"], "name": "sales"},
                "destination": {"namespace": ["hush"], "name": "mine"},
            },
        ),
    ):
        reply = bo.http.request(method, f"{at}/{path}", json=sent)
        assert reply.status_code in {403, 404}, (path, reply.text)
    assert api.admin.get("/log", branch="ana/x", limit=1)[0]["kind"] == "create"


PAGES: dict[str, tuple[Callable[[Visit], Page], str, dict[str, str]]] = {
    "datasets": (datasets_page, "", {}),
    "search": (datasets_page, "", {"q": "hu"}),
    "dataset": (dataset_page, "gold.orders", {}),
    "history": (dataset_page, "gold.orders", {"branch": "main", "tab": "history"}),
    "checks": (dataset_page, "gold.orders", {"branch": "main", "tab": "checks"}),
    "logic": (dataset_page, "gold.report", {"branch": "main", "tab": "logic"}),
    "made": (dataset_page, "gold.plain", {"tab": "logic"}),
    "branches": (branches_page, "", {}),
    "lineage": (lineage_page, "", {"branch": "main"}),
    "lineage of a branch": (lineage_page, "", {"branch": "ana/x"}),
    "builds": (builds_page, "", {}),
    "build": (build_page, "build-of-main", {}),
    "log": (log_page, "", {}),
    "events": (log_page, "", {"show": "events"}),
    "recoveries": (log_page, "", {"show": "recoveries"}),
    "review": (review_page, "", {"branch": "ana/x", "base": "main"}),
}


def _page(api: Api, grant: Grant, name: str) -> Page:
    make, subject, query = PAGES[name]
    visit = Visit(store=api.store.acting_for(grant), grant=grant, subject=subject, query=query)
    return make_safely(make, visit)


def test_s06_no_page_tells_what_is_hidden(api: Api) -> None:
    make_hidden_world(api.store)
    whole = Grant(actor="ana", role=Role.ADMIN)
    part = Grant(actor="bo", role=Role.READER, reads=READS, datasets=DATASETS)
    tells = set()
    for name in PAGES:
        shown = "".join(_page(api, part, name).sections.values())
        assert WORD not in shown.lower(), (name, shown)
        if WORD in "".join(_page(api, whole, name).sections.values()).lower():
            tells.add(name)
    assert tells >= {"datasets", "branches", "builds", "build", "log"}
    for subject in ("hush.payroll", "hash.payroll"):
        visit = Visit(store=api.store.acting_for(part), grant=part, subject=subject, query={})
        assert make_safely(dataset_page, visit).status == 404


def test_s06_limited_admin_administers_no_more_than_its_patterns(api: Api) -> None:
    make_hidden_world(api.store)
    bo = limited(api, Role.ADMIN)
    for method, path, more in (
        ("POST", "/recover", {"json": {}}),
        ("POST", "/cleanup", {"json": {"dry_run": True}}),
        ("GET", "/doctor", {}),
        ("PUT", "/protected/main", {}),
        ("DELETE", "/protected/hush/plan", {}),
        ("POST", "/tokens", {"json": {"actor": "x", "role": "reader"}}),
        ("POST", "/tokens", {"json": {"actor": "x", "role": "reader", "reads": ["main"]}}),
    ):
        assert bo.error(403, method, path, **more) == "role_denied", path
    mine = {"actor": "x", "role": "reader", "reads": ["main"], "datasets": ["gold.*"]}
    made = bo.ok("POST", "/tokens", json={**mine, "branches": ["ana/*"]})
    ids = {one["id"] for one in bo.get("/tokens")}
    everybody = {one["id"]: one["actor"] for one in api.admin.get("/tokens")}
    assert made["id"] in ids and ids < set(everybody)
    [other] = [id for id, actor in everybody.items() if actor == "ana"]
    assert bo.error(404, "DELETE", f"/tokens/{other}") == "not_found"
    bo.ok("DELETE", f"/tokens/{made['id']}")


def test_s06_token_that_could_write_what_it_may_not_read_is_not_made(api: Api) -> None:
    with pytest.raises(HeadgateError, match="without reading them"):
        api.store.create_token(actor="x", role="writer", reads=["main"])


def test_s06_limited_writer_restores_only_what_it_may_read(api: Api) -> None:
    make_hidden_world(api.store)
    bo = limited(api, Role.WRITER)
    api.store.dataset("hush.scans").branch("ana/x").create("main")
    api.store.delete_everywhere("ana/x", force=True)
    for name in ("ana/gone", "ana/gon"):
        reply = bo.call("POST", "/branches/restore", json={"branch": name})
        assert reply.status_code == 404 and "ana/gone" not in reply.json()["near"]
    restored = bo.post("/branches/restore", branch="ana/x")
    assert {move["dataset"] for move in restored["moves"]} == {"gold.orders"}
    assert [one["name"] for one in api.admin.get("/branches", dataset="hush.scans")] == ["main"]
