"""T04: a misspelled branch is an error in every entrance, with the nearest; nothing is made."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.catalog.schema import (
    branches,
    builds,
    datasets,
    jobspecs,
    namespaces,
    protected_branches,
    transactions,
    units,
)
from headgate.client.store import RemoteStore
from headgate.connection import open as open_store
from headgate.errors import (
    BranchNotFound,
    BranchNowhere,
    DatasetNotFound,
    NotFound,
    ObjectNotFound,
)
from headgate.model.access import Grant, Role
from headgate.server.web.branches_page import branches_page
from headgate.server.web.dataset_page import dataset_page
from headgate.server.web.host import make_safely
from headgate.server.web.lineage_page import lineage_page
from headgate.server.web.review_page import review_page
from headgate.settings import with_server
from headgate.store.embedded import Store
from tests.support.api import Api, served_to_the_command_line
from tests.support.cli import Cli, new_store_cli, put
from tests.support.iceberg import Front, Served, create, refusal, send
from tests.support.metadata import commit
from tests.support.pages import text_of, visit
from tests.support.pipelines import files_spec, publish
from tests.support.stores import new_store

_COUNTED = (
    branches,
    builds,
    datasets,
    jobspecs,
    namespaces,
    protected_branches,
    transactions,
    units,
)
_SCHEMA = '[dataset."t.new"]\ncolumns = {id = "long"}\nkey = ["id"]\n'
_ERRORS = {"no_such_branch", "branch_not_found"}


def _rows(store: Store) -> dict[str, int]:
    """Return the number of rows of every table that a branch could appear in."""
    return store.database.read(
        lambda c: {
            table.name: len(c.execute(table.select().with_only_columns(*table.primary_key)).all())
            for table in _COUNTED
        }
    )


@pytest.fixture(params=["embedded", "served"])
def cli(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    front: Front,
) -> Iterator[Cli]:
    made = new_store_cli(tmp_path, monkeypatch, capsys)
    put(made, "a", "1")
    made.ok("branch", "create", "raw.scans", "feature")
    made.file("schema.toml", _SCHEMA.replace("t.new", "t.a"))
    made.ok("schema", "apply", "schema.toml", "-b", "master")
    made.file("schema.toml", _SCHEMA)
    made.file("rows.csv", "id\n1\n")
    with open_store(tmp_path) as store:
        publish(store, "master", files_spec("made.a", "raw.scans"))
    if request.param == "embedded":
        yield made
        return
    with served_to_the_command_line(tmp_path, front, monkeypatch):
        yield made


_COMMANDS = [
    ("build made.a -b featur", "feature"),
    ("build made.a -b featur --publish", "feature"),
    ("plan made.a -b featur", "feature"),
    ("plan made.a -b featur>mastr", "master"),
    ("sql -b mastr", "master"),
    ("sql -b featur>mastr", "master"),
    ("mutate -b mastr", "master"),
    ("load -b mastr t.a=rows.csv", "master"),
    ("schema apply schema.toml -b mastr", "master"),
    ("schema plan schema.toml -b mastr", "master"),
    ("merge featur --into master", "feature"),
    ("merge feature --into mastr", "master"),
    ("optimize t.a -b mastr", "master"),
    ("txn open -b mastr", "master"),
    ("txn open raw.scans -b mastr", "master"),
    ("files put raw.scans -b mastr rows.csv r", "master"),
    ("files ls raw.scans -b mastr", "master"),
    ("dataset show raw.scans -b mastr", "master"),
    ("diff --from mastr --to feature", "master"),
    ("diff raw.scans --from mastr --to feature", "master"),
    ("history raw.scans -b mastr", "master"),
    ("branch create raw.scans other --from mastr", "master"),
    ("branch protect mastr", "master"),
    ("branch delete --all-datasets featur", "feature"),
    ("branch delete raw.scans featur", "feature"),
    ("jobspecs list -b mastr", "master"),
    ("jobspecs show made.a -b mastr", "master"),
    ("status nightly -b mastr", "master"),
    ("dataset create t.x -b mastr", "master"),
    ("dataset register t.x --metadata-location file:///none -b mastr", "master"),
    ("log -b mastr", "master"),
    ("log -b mastr --actor ana --kind commit --dataset raw.scans", "master"),
    ("log -b mastr --events", "master"),
    ("log -b mastr --actor headgate:recovery", "master"),
]
_SQL = {"sql": "create table t.b (id bigint)", "mutate": "insert into t.a (id) values (1)"}


def test_t04_every_command_names_the_nearest_branch_and_creates_nothing(cli: Cli) -> None:
    with open_store(cli.directory) as store:
        before = _rows(store)
        for line, near in _COMMANDS:
            words = line.split()
            words += [_SQL[words[0]]] if words[0] in _SQL else []
            document = cli.json(*words, code=3)
            # The state of a key is known, whatever branch is named.
            found = document.get("state") == "not_committed" or document["code"] in _ERRORS
            assert found, (line, document)
            assert f"did you mean '{near}'?" in document["error"], (line, document)
            assert cli(*words).err.count(f"'{near}'") >= 1, line
        assert _rows(store) == before


def test_t04_new_branch_is_made_where_it_is_meant(cli: Cli) -> None:
    cli.ok("plan", "made.a", "-b", "new", "--create")
    cli.ok("plan", "made.a", "-b", "new>master")
    cli.ok("plan", "made.a", "-b", "new", "--fallback", "master")
    unit = cli.json("txn", "open", "-b", "new", "--create")["unit"]
    cli.ok("txn", "abort", unit)
    cli.file("schema.toml", _SCHEMA)
    cli.ok("schema", "apply", "schema.toml", "-b", "new>master")
    cli.ok("mutate", "-b", "new", "insert into t.new (id) values (1)")
    # A branch that JobSpecs alone are published under exists too.
    with open_store(cli.directory) as store:
        publish(store, "logic", files_spec("made.a", "raw.scans"))
    cli.ok("plan", "made.a", "-b", "logic")
    cli.ok("diff", "--from", "master", "--to", "logic")
    cli.ok("jobspecs", "list", "-b", "feature")
    cli.ok("dataset", "create", "t.root", "-b", "root", "--create")


def test_t04_every_verb_of_python_names_the_nearest_branch_and_creates_nothing(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        scans = store.dataset("raw.scans").create(kind="files", branch="master")
        publish(store, "master", files_spec("made.a", "raw.scans"))
        before = _rows(store)
        verbs: list[Callable[[], Any]] = [
            lambda: store.build(["made.a"], branch="mastr"),
            lambda: store.plan(["made.a"], branch="mastr"),
            lambda: store.decide(["made.a"], branch="mastr", fallback=["master"], create=False),
            lambda: store.spark("mastr"),
            lambda: store.spark("mastr@1"),
            lambda: store.transaction("mastr"),
            lambda: store.mutate("mastr", "insert into t.a values (1)"),
            lambda: store.load("mastr", {"t.a": [{"id": 1}]}),
            lambda: store.rows.apply_schema_text(_SCHEMA, file="s", branch="mastr"),
            lambda: store.merge("mastr", into="master"),
            lambda: store.differences("mastr", "master"),
            lambda: store.protect("mastr"),
            lambda: store.delete_everywhere("mastr"),
            lambda: scans.branch("mastr").transaction(),
            lambda: scans.branch("mastr").remove("a"),
            lambda: scans.show("mastr"),
            lambda: scans.shown(branch="mastr"),
            lambda: store.dataset("raw.new").create("files", branch="mastr"),
            lambda: store.dataset("raw.new").create(branch="mastr", idempotency_key="k"),
            lambda: store.dataset("raw.new").register("/none", branch="mastr"),
            lambda: store.publications(branch="mastr"),
            lambda: store.publications(branch="mastr", actor="ana", before=9),
            lambda: store.events(branch="mastr"),
            lambda: store.jobspecs(branch="mastr"),
        ]
        for number, verb in enumerate(verbs):
            with pytest.raises(NotFound) as refused:
                verb()
            assert isinstance(refused.value, BranchNowhere | BranchNotFound), number
            assert refused.value.facts["near"] == ["master"], number
        with pytest.raises(DatasetNotFound, match=r"did you mean 'raw\.scans'\?"):
            store.dataset("raw.scnas").load()
        assert _rows(store) == before


def test_t04_dataset_starts_on_a_new_branch_only_with_create(api: Api) -> None:
    publish(api.store, "logic", files_spec("made.a"))
    settings = with_server(api.store.settings, url=api.url, token=api.token("ana", Role.ADMIN))
    with RemoteStore(settings) as client:
        for number, store in enumerate((api.store, client)):
            made = store.dataset(f"raw.scans{number}")
            with pytest.raises(BranchNowhere, match=r"Create it with --create \(in Python"):
                made.create("files", branch="logci")
            with pytest.raises(BranchNowhere, match="did you mean 'logic'"):
                made.register("/none", branch="logci")
            # The primary branch, and one that JobSpecs alone are published under, exist.
            assert not made.exists()
            made.create("files", branch="logic")
            store.dataset(f"raw.first{number}").create()
            new = store.dataset(f"raw.new{number}")
            for _ in range(2):
                new.create(branch=f"new{number}", create=True, idempotency_key="k")
            assert [branch.name for branch in new.branches()] == [f"new{number}"]
            with pytest.raises(ObjectNotFound):
                store.dataset("raw.theirs").register("/none.metadata.json", branch="x", create=True)


def test_t04_iceberg_client_is_refused_an_unknown_warehouse(
    made_catalog_url: str, tmp_path: Path, front: Front
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        served = Served(store, front)
        with served.client() as master:
            master.call("POST", "namespaces", {"namespace": ["db"]}).raise_for_status()
            create(master)
            with served.client("old>master") as old:
                assert send(old, *commit(1)).status_code == 200
            before = _rows(store)
            for warehouse in ("mastr", "mastr@1", "featur>mastr"):
                reply = master.http.get("/v1/config", params={"warehouse": warehouse})
                assert refusal(reply) == (404, "no_such_branch")
                assert "did you mean 'master'?" in reply.json()["error"]["message"]
            assert _rows(store) == before
            # A client that connected before the branch was deleted does not bring it back.
            with served.client("old") as old:
                store.delete_everywhere("old")
                made = old.call("POST", "namespaces/db/tables", {"name": "n", "schema": _COLUMNS})
                assert refusal(made) == (404, "no_such_branch")
            # Deleted branches can be read as they were.
            assert master.http.get("/v1/config", params={"warehouse": "old@3"}).status_code == 200


_COLUMNS = {
    "type": "struct",
    "fields": [{"id": 1, "name": "id", "type": "long", "required": False}],
}


def test_t04_http_and_pages_name_the_nearest_branch(api: Api) -> None:
    store = api.store
    store.dataset("raw.scans").create(kind="files", branch="master")
    publish(store, "master", files_spec("made.a"))
    before = _rows(store)
    asked: list[tuple[str, str, Any]] = [
        ("POST", "/plan", {"targets": ["made.a"], "branch": "mastr"}),
        ("POST", "/builds", {"targets": ["made.a"], "branch": "mastr"}),
        ("POST", "/units", {"branch": "mastr"}),
        ("POST", "/transactions", {"dataset": "raw.scans", "branch": "mastr"}),
        ("GET", "/datasets/raw.scans/content?context=mastr", None),
        ("GET", "/diff?from=mastr&to=master", None),
        ("PUT", "/protected/mastr", None),
        ("DELETE", "/branches?name=mastr", None),
        ("POST", "/datasets", {"dataset": "raw.new", "branch": "mastr"}),
        ("POST", "/datasets/raw.new/register", {"metadata_location": "/n", "branch": "mastr"}),
    ]
    for method, path, body in asked:
        reply = api.admin.http.request(method, f"{api.url}/api/v1{path}", json=body)
        assert reply.status_code == 404, (path, reply.text)
        assert reply.json()["near"] == ["master"], path
    for make in (branches_page, lineage_page, review_page):
        page = make_safely(make, visit(store, branch="mastr"))
        assert page.status == 404 and "did you mean" in text_of(page), make
    for context in ("mastr", "mastr@3", "mastr@2026-11-01"):
        for tab in ("content", "history", "compare"):
            shown = visit(store, "raw.scans", branch=context, tab=tab)
            page = make_safely(dataset_page, shown)
            assert page.status == 404 and "did you mean" in text_of(page), (context, tab)
    assert _rows(store) == before


# Every route that reads by the name of a branch, with its required parameters.
_FILTERS = {
    "/datasets/{dataset}/content": "/datasets/raw.scans/content?context={}",
    "/diff": "/diff?branch={}",
    "/events": "/events?kind=refused&branch={}",
    "/files/{dataset}": "/files/raw.scans?branch={}",
    "/files/{dataset}/{path}": "/files/raw.scans/a?branch={}",
    "/history/{dataset}": "/history/raw.scans?branch={}",
    "/jobspecs": "/jobspecs?dataset=made.a&branch={}",
    "/log": "/log?actor=ana&dataset=raw.scans&kind=commit&branch={}",
    "/status/{key}": "/status/nightly?branch={}",
    "/tasks/workspaces/{dataset}": "/tasks/workspaces/raw.scans?ref=master&branch={}",
}


def test_t04_filters_are_those_of_the_api() -> None:
    document = json.loads(Path("tests/goldens/openapi.json").read_text())
    reads = {path: verbs["get"] for path, verbs in document["paths"].items() if "get" in verbs}
    assert _FILTERS.keys() == {
        path.removeprefix("/api/v1")
        for path, route in reads.items()
        for parameter in route.get("parameters", ())
        if (parameter["in"], parameter["name"]) in {("query", "branch"), ("query", "context")}
    }


@pytest.mark.parametrize("path", _FILTERS.values(), ids=_FILTERS)
def test_t04_filter_by_a_branch_that_never_was_names_the_nearest(api: Api, path: str) -> None:
    scans = api.store.dataset("raw.scans").create(kind="files", branch="master")
    publish(api.store, "master", files_spec("made.a"))
    scans.branch("mastre").create("master").delete()
    reply = api.admin.call("GET", path.format("mastr"))
    assert (reply.status_code, "'master'" in reply.json()["error"]) == (404, True), reply.text


def test_t04_log_and_events_of_a_deleted_branch_are_listed(api: Api) -> None:
    scans = api.store.dataset("raw.scans").create(kind="files", branch="master")
    scans.branch("old").create("master").transaction().abort()
    scans.branch("old").delete()
    kinds = [one["kind"] for one in api.admin.get("/log", branch="old")]
    assert kinds == ["delete", "create"]
    assert api.admin.get("/log", branch="old", actor="bo") == []
    assert api.admin.get("/events", branch="old", kind="refused") == []


def test_t04_limited_reader_is_not_told_of_a_hidden_branch(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        handle = store.dataset("raw.scans").create(kind="files", branch="master")
        handle.branch("secret").create("master")
        grant = Grant(actor="lin", role=Role.WRITER, branches=("lin/*",), reads=("master", "lin/*"))
        seen = store.acting_for(grant)
        for verb in (
            lambda: seen.decide(["raw.scans"], branch="secrte"),
            lambda: seen.dataset("raw.scans").branch("secrte").load(),
            lambda: seen.dataset("raw.scans").branch("secrte").transaction(),
            lambda: seen.transaction("secrte"),
        ):
            with pytest.raises(NotFound) as refused:
                verb()
            assert refused.value.facts["near"] == []
