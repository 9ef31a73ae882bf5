"""Datasets, branches, tags, transactions and history over HTTP, on each database."""

from __future__ import annotations

from typing import Any

from tests.support.api import Api
from tests.support.pipelines import build, files_spec, publish
from tests.support.stores import expire_leases


def test_dataset_created_is_listed_shown_and_unique(api: Api) -> None:
    ana = api.admin
    made = ana.post("/datasets", dataset="sales.orders")
    assert (made["kind"], made["branches"]) == ("table", ["master"])
    assert ana.get("/datasets") == [made]
    assert ana.get("/datasets/sales.orders") == made
    assert ana.error(409, "POST", "/datasets", json={"dataset": "sales.orders"}) == "dataset_exists"
    assert ana.error(404, "GET", "/datasets/sales.none") == "dataset_not_found"
    assert ana.error(400, "GET", "/datasets/nope") == "invalid_name"


def test_branch_lives_and_dies(api: Api) -> None:
    ana = api.admin
    ana.make_files()
    first = ana.put("a.txt")["moves"][0]["to"]
    ana.put("b.txt")
    child = ana.post("/branches", dataset="raw.scans", name="x/y", parent="master", at=first)
    assert (child["parent"], child["view"]) == ("master", first)
    assert ana.get("/branches/raw.scans/x/y") == child
    reset = ana.post("/branches/reset", dataset="raw.scans", branch="master", to=first)
    assert reset["kind"] == "reset" and reset["moves"][0]["to"] == first
    root = ana.post("/branches/reparent", dataset="raw.scans", branch="x/y")
    assert root["parent"] is None
    gone = ana.ok("DELETE", "/branches/raw.scans/x/y")
    assert gone["kind"] == "delete"
    assert [b["name"] for b in ana.get("/branches", dataset="raw.scans")] == ["master"]


def test_branch_deleted_everywhere_is_one_publication(api: Api) -> None:
    ana = api.admin
    for dataset in ("raw.a", "raw.b"):
        ana.make_files(dataset)
        ana.post("/branches", dataset=dataset, name="feature", parent="master")
    gone = ana.ok("DELETE", "/branches", params={"name": "feature"})
    assert {move["dataset"] for move in gone["moves"]} == {"raw.a", "raw.b"}
    assert ana.error(404, "DELETE", "/branches", params={"name": "feature"}) == "no_such_branch"


def test_tag_pins_and_is_taken_away(api: Api) -> None:
    ana = api.admin
    ana.make_files()
    at = ana.put("a.txt")["moves"][0]["to"]
    tag = ana.post("/tags", dataset="raw.scans", name="q3/final", at=at)
    assert ana.get("/tags", dataset="raw.scans") == [tag]
    assert ana.ok("DELETE", "/tags/raw.scans/q3/final")["transaction"] is None
    assert ana.error(404, "DELETE", "/tags/raw.scans/q3/final") == "tag_not_found"


def test_transaction_opens_once_and_commits_once(api: Api) -> None:
    ana = api.admin
    ana.make_files()
    opened = ana.post("/transactions", dataset="raw.scans", branch="master", type="APPEND")
    body = {"dataset": "raw.scans", "branch": "master"}
    assert ana.error(409, "POST", "/transactions", json=body) == "open_transaction_exists"
    id = opened["transaction"]
    ana.ok("PUT", "/files/raw.scans/a.txt", params={"txn": id}, content=b"1")
    assert ana.get("/files/raw.scans") == []
    ana.ok("POST", f"/transactions/{id}/renew")
    done = ana.ok("POST", f"/transactions/{id}/commit")
    assert (done["state"], done["publication"]) == ("COMMITTED", 2)
    assert ana.error(409, "POST", f"/transactions/{id}/abort") == "transaction_not_open"
    assert [file["path"] for file in ana.get("/files/raw.scans")] == ["a.txt"]


def test_unit_commits_several_datasets_in_one_publication(api: Api) -> None:
    ana = api.admin
    for dataset in ("raw.a", "raw.b"):
        ana.make_files(dataset)
    unit = ana.post("/units", branch="master")["unit"]
    for dataset in ("raw.a", "raw.b"):
        ana.post(f"/units/{unit}/transactions", dataset=dataset)
        ana.ok("PUT", f"/files/{dataset}/f", params={"txn": unit}, content=b"1")
    number = ana.ok("POST", f"/transactions/{unit}/commit")["publication"]
    assert len(ana.get(f"/log/{number}")["moves"]) == 2
    assert ana.get(f"/transactions/{unit}")["state"] == "COMMITTED"


def test_every_list_is_paged_by_links_without_gap_or_repetition(api: Api) -> None:
    ana = api.admin
    _fill_lists(api)
    document = api.app.openapi()["paths"]
    lists = {path for path, routes in document.items() if "Link" in _headers(routes.get("get"))}
    for path in sorted(lists):
        where = path.removeprefix("/api/v1").format(dataset="raw.scans")
        whole = ana.get(where, limit=1000)
        assert len(whole) >= 3, where
        seen, url = [], f"{where}?limit=2"
        while url:
            reply = ana.call("GET", url)
            assert len(reply.json()) <= 2
            seen += reply.json()
            url = reply.links.get("next", {}).get("url", "").removeprefix("/api/v1")
        assert seen == whole, where


def test_every_route_that_answers_with_a_list_is_paged(small_api: Api) -> None:
    for path, routes in small_api.app.openapi()["paths"].items():
        if "get" in routes and _answer(routes["get"]).get("type") == "array":
            assert "Link" in _headers(routes["get"]), path
            assert {"limit", "cursor"} <= {p["name"] for p in routes["get"]["parameters"]}, path


def _fill_lists(api: Api) -> None:
    """Create at least three entries of every list."""
    ana = api.admin
    for name in ("raw.a", "raw.b", "raw.scans"):
        ana.make_files(name)
    for n in range(3):
        at = ana.put(f"{n}.txt")["moves"][0]["to"]
        ana.post("/tags", dataset="raw.scans", name=f"tag-{n}", at=at)
        ana.post("/tokens", actor=f"actor-{n}", role="reader")
        publish(api.store, f"branch-{n}", files_spec(f"made.d{n}"))
        build(api.store, f"made.d{n}", branch=f"branch-{n}")
        ana.ok("PUT", f"/protected/branch-{n}")
        ana.post("/transactions", dataset="raw.a", branch="master")
        expire_leases(api.store)
        assert len(ana.post("/recover")["aborted_transactions"]) == 1


def _headers(route: dict[str, Any] | None) -> Any:
    return (route or {"responses": {}})["responses"].get("200", {}).get("headers", {})


def _answer(route: dict[str, Any]) -> dict[str, Any]:
    content = route["responses"].get("200", {}).get("content", {})
    schema: dict[str, Any] = content.get("application/json", {}).get("schema", {})
    return schema


def test_log_filters_and_a_wrong_cursor_is_refused(api: Api) -> None:
    ana = api.admin
    ana.make_files()
    ana.put("a.txt")
    assert [p["kind"] for p in ana.get("/log", kind="commit", dataset="raw.scans")] == ["commit"]
    assert ana.error(404, "GET", "/log", params={"branch": "none"}) == "no_such_branch"
    assert ana.error(400, "GET", "/log", params={"cursor": "1; drop table"}) == "invalid"
    assert ana.error(404, "GET", "/log/99") == "not_found"
    assert ana.error(400, "GET", "/log", params={"kind": "stolen"}) == "malformed_request"


def test_diff_and_content_are_the_documents_of_the_command_line(api: Api) -> None:
    ana = api.admin
    ana.make_files()
    ana.post("/branches", dataset="raw.scans", name="feature", parent="master")
    ana.put("a.txt", branch="feature")
    sides = {"from": "master", "to": "feature"}
    assert ana.get("/diff", dataset="raw.scans", **sides)["counts"]["added"] == 1
    assert [d["dataset"] for d in ana.get("/diff", **sides)] == ["raw.scans"]
    content = ana.get("/datasets/raw.scans/content", context="feature>master", rows=9)
    assert (content["files"], content["paths"]) == (1, ["a.txt"])
