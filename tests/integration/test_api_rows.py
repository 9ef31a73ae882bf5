"""Operations on rows over HTTP, and by a client of the server: one publication each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headgate.connection import open as open_store
from headgate.errors import ConstraintsViolated, Invalid, MergeConflict, ViewConflict
from headgate.model.access import Role
from headgate.rows.outcome import OptimizeState
from headgate.store.embedded import Store
from tests.support.api import Api
from tests.support.iceberg import Front
from tests.support.rows import KNOWS, PERSON, graph_store, ids_of, publications, rows_of


@pytest.fixture
def graph(made_sqlite_url: str, tmp_path: Path) -> Iterator[Store]:
    with graph_store(made_sqlite_url, tmp_path, "a", "b") as store:
        yield store


@pytest.fixture
def served(graph: Store, front: Front) -> Iterator[Api]:
    api = Api(graph, front)
    yield api
    api.close()


def test_api_mutate_answers_with_publication_and_counts(served: Api) -> None:
    body = {"branch": "master", "sql": "update graph.person set age = 1 where id = 'a'"}
    reply = served.admin.http.post("/mutate", json=body)
    assert reply.status_code == 200, reply.text
    assert reply.json() == {
        "publication": publications(served.store)[0].number,
        "counts": {PERSON: {"inserted": 0, "updated": 1, "deleted": 0}},
    }
    assert publications(served.store)[0].actor == "ana"


def test_api_mutate_of_another_view_is_409_with_the_conflict(served: Api) -> None:
    body = {
        "branch": "master",
        "sql": "delete from graph.person",
        "if_head": {PERSON: "t-0"},
    }
    reply = served.admin.http.post("/mutate", json=body)
    assert reply.status_code == 409
    conflict = reply.json()
    assert conflict["code"] == "conflict"
    assert conflict["manifest_conflict"]["table_key"] == f"{PERSON}@master"
    assert conflict["manifest_conflict"]["expected"] == "t-0"


def test_api_load_of_rows_with_a_key_is_done_once(served: Api) -> None:
    body = {
        "branch": "master",
        "mode": "merge",
        "rows": {PERSON: [{"id": "c", "age": 3}], KNOWS: [{"id": 1, "src": "c", "dst": "a"}]},
    }
    first, again = (
        served.admin.http.post("/load", json=body, headers={"Idempotency-Key": "k"})
        for _ in range(2)
    )
    assert first.status_code == 200, first.text
    assert first.json() == again.json()
    assert again.headers["idempotency-replayed"] == "true"
    assert ids_of(served.store, PERSON) == ["a", "b", "c"]


def test_client_of_a_server_has_the_same_verbs(served: Api, tmp_path: Path, graph: Store) -> None:
    token = served.token("bea", Role.WRITER)
    path = tmp_path / "people.csv"
    path.write_text("id,age\nx,5\n")
    with open_store(served.url, token=token) as hg:
        loaded = hg.load("side>master", {PERSON: path}, mode="merge")
        assert loaded.counts[PERSON].inserted == 1
        hg.mutate("master", "update graph.person set age = 2 where id = 'b'")
        hg.mutate("side", "update graph.person set age = 3 where id = 'b'")
        with pytest.raises(MergeConflict) as refused:
            hg.merge("side", into="master")
        assert refused.value.facts["conflicts"][0]["kind"] == "update_update"
        with pytest.raises(ConstraintsViolated):
            hg.mutate("master", "insert into graph.person (id) values ('a')")
        with pytest.raises(ViewConflict):
            hg.mutate("master", "delete from graph.person", if_head={PERSON: "t-0"})
        hg.mutate("side", "update graph.person set age = 2 where id = 'b'")
        assert hg.merge("side", into="master", dry_run=True).publication is None
        hg.merge("side", into="master")
    assert [(r["id"], r["age"]) for r in rows_of(graph, PERSON)] == [("a", 7), ("b", 2), ("x", 5)]
    assert publications(graph)[0].actor == "bea"


def test_load_at_a_server_tells_the_files_and_lines_that_a_local_one_would(
    served: Api, graph: Store, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text('id,name\n"p","two\nlines"\nq,x\nq,y\n')
    odd = tmp_path / "odd.jsonl"
    odd.write_text('\n{"id": "s", "age": "no"}\n')
    typed = pa.table({"id": ["t"], "age": [1]})
    cases: list[dict[str, Any]] = [{PERSON: [typed, bad]}, {PERSON: [odd, typed]}]
    with open_store(served.url, token=served.token("ana", Role.ADMIN)) as hg:
        for given in cases:
            with pytest.raises(Invalid) as here:
                graph.load("master", given)
            with pytest.raises(Invalid) as there:
                hg.load("master", given)
            assert there.value.to_json() == here.value.to_json()
    assert "odd.jsonl:2" in here.value.message


def test_load_of_more_than_a_document_holds_is_sent_as_contents(
    served: Api, graph: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate.client.rows._INLINE_BYTES", 0)
    with open_store(served.url, token=served.token("bea", Role.WRITER)) as hg:
        given = {PERSON: [pa.table({"id": ["x"]}), pa.table({"id": ["y"], "age": [1]})]}
        assert hg.load("master", given).counts[PERSON].inserted == 2
    assert ids_of(graph, PERSON) == ["a", "b", "x", "y"]
    body = {"branch": "master", "contents": {PERSON: ["0" * 64]}}
    assert served.admin.error(404, "POST", "/load", json=body) == "object_not_found"


def test_rows_of_a_protected_branch_are_changed_by_admins_only(served: Api) -> None:
    served.admin.ok("PUT", "/protected/master")
    body = {"branch": "master", "sql": "update graph.person set age = 1 where id = 'a'"}
    writer = served.client("bea", Role.WRITER)
    assert writer.error(403, "POST", "/mutate", json=body) == "branch_protected"
    assert served.admin.ok("POST", "/mutate", json=body)["publication"]
    [refused] = served.admin.get("/events", kind="refused")
    assert (refused["actor"], refused["wanted"], refused["branch"]) == ("bea", "mutate", "master")


def test_schema_and_compaction_from_afar_answer_as_they_do_here(
    served: Api, tmp_path: Path
) -> None:
    file = tmp_path / "new.toml"
    file.write_text('[dataset."graph.new"]\ncolumns = {id = "string"}\nkey = ["id"]\n')
    with open_store(served.url, token=served.token("ana", Role.ADMIN)) as hg:
        planned = hg.rows.plan_schema(file, branch="master")
        assert planned.steps["graph.new"]
        applied = hg.rows.apply_schema(file, branch="master")
        assert applied.publication and applied.steps == planned.steps
        done = hg.rows.optimize(PERSON, branch="master")
        assert done.state in set(OptimizeState) and done.files_after
