"""Commands on rows as a user types them, over the project in `examples/graph`."""

from __future__ import annotations

import contextlib
import io
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.rows import engine
from tests.support.api import served_to_the_command_line
from tests.support.cli import EMBEDDED_ONLY, Cli, new_cli
from tests.support.iceberg import Front
from tests.support.source import ROOT

_EXAMPLE = ROOT / "examples" / "graph"


@pytest.fixture(params=["embedded", "served"])
def cli(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    front: Front,
) -> Iterator[Cli]:
    """A store with the example's files and filled tables, embedded and served."""
    made = new_cli(tmp_path, monkeypatch, capsys)
    shutil.copytree(_EXAMPLE, tmp_path, dirs_exist_ok=True)
    made.ok("init")
    with contextlib.ExitStack() as stack:
        if request.param == "served":
            stack.enter_context(served_to_the_command_line(tmp_path, front, monkeypatch))
        made.ok("schema", "apply", "schema.toml", "-b", "master")
        made.ok("load", "-b", "master", "graph.person=people.csv", "graph.knows=knows.jsonl")
        yield made


def _rows(cli: Cli, dataset: str, branch: str = "master") -> list[dict[str, object]]:
    shown = cli.json("dataset", "show", dataset, "-b", branch, "--rows", "100")
    return sorted(shown["rows"], key=lambda row: str(row["id"]))


def test_cli_example_graph_works_from_end_to_end(cli: Cli) -> None:
    done = cli.json("mutate", "-b", "corrections>master", "-f", "corrections.sql")
    assert done["counts"]["graph.person"] == {"inserted": 1, "updated": 1, "deleted": 0}
    assert len(_rows(cli, "graph.person")) == 3
    both = ("--datasets", "graph.person,graph.knows")
    preview = cli.json("merge", "corrections", "--into", "master", *both, "--dry-run")
    merged = cli.json("merge", "corrections", "--into", "master")
    assert preview["counts"] == merged["counts"] and preview["publication"] is None
    assert [row["id"] for row in _rows(cli, "graph.person")] == ["ana", "bea", "cai", "dag"]
    assert [row["id"] for row in _rows(cli, "graph.knows")] == [1, 3]
    done = cli.json("optimize", "graph.person", "-b", "master")
    assert done["state"] in {"optimized", "unchanged"}
    log = cli.json("log", "--kind", "merge")
    assert [entry["publication"] for entry in log] == [merged["publication"]]


def test_cli_schema_plan_of_an_applied_file_has_no_steps(cli: Cli) -> None:
    planned = cli.json("schema", "plan", "schema.toml", "-b", "master")
    assert [d["steps"] for d in planned["datasets"]] == [[], []]
    assert "match the file" in cli.ok("schema", "plan", "schema.toml", "-b", "master").err


def test_cli_mutate_reports_conflicts_and_mistakes_by_exit_code(cli: Cli) -> None:
    words = ("mutate", "-b", "master")
    assert cli.error(*words, "delete from graph.persn", code=2) == "unknown_table"
    assert cli.error("mutate", "-b", "no", "delete from graph.knows", code=3) == "no_such_branch"
    assert cli.error("optimize", "graph.persn", "-b", "master", code=3) == "table_not_found"
    assert cli.error(*words, "delete graph", code=2) == "invalid_script"
    assert cli.json(*words, "-- none of them\ndelete from graph.person where false")["counts"] == {}
    twice = "insert into graph.person (id, name) values ('ana', 'x')"
    assert cli.error(*words, twice, code=2) == "constraints_violated"
    assert cli.error(*words, twice, "--if-head", "graph.person=t-0", code=4) == "conflict"
    assert cli.error(*words, twice, "--if-head", "graph.person", code=2) == "invalid"
    assert cli.error(*words, code=2) == "invalid"


def test_cli_mutate_with_a_key_is_done_once_and_known_by_it(cli: Cli) -> None:
    words = ("mutate", "-b", "master", "--idempotency-key", "k-1")
    sql = "update graph.person set name = name || '!' where id = 'ana'"
    first = cli.json(*words, sql)
    assert cli.json(*words, sql) == first
    status = cli.json("status", "k-1", "-b", "master", "--kind", "mutate")
    assert (status["state"], status["publication"]) == ("committed", first["publication"])
    assert _rows(cli, "graph.person")[0]["name"] == "Ana Aas!"


def _pipe(monkeypatch: pytest.MonkeyPatch, text: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))


def test_cli_load_from_stdin_with_a_key_tells_other_rows_from_the_same(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("load", "-b", "master", "graph.person=-", "--mode", "merge", "--idempotency-key", "p")
    _pipe(monkeypatch, b'{"id": "eli", "name": "Eli"}\n')
    first = cli.json(*words)
    _pipe(monkeypatch, b'{"id": "eli", "name": "Eli"}\n')
    assert cli.json(*words) == first
    _pipe(monkeypatch, b'{"id": "eva", "name": "Eva"}\n')
    assert cli.json(*words, code=2)["code"] == "idempotency_key_reused"


def test_cli_load_from_stdin_and_of_bad_rows(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    _pipe(monkeypatch, b'{"id": "eli", "name": "Eli"}\n')
    done = cli.json("load", "-b", "master", "graph.person=-", "--mode", "merge")
    assert done["counts"]["graph.person"]["inserted"] == 1
    cli.file("bad.csv", "id,src,dst\nx,ana,bea\n5,ana,nobody\n")
    words = ("load", "-b", "master", "graph.knows=bad.csv")
    document = cli.json(*words, code=2)
    assert (document["code"], document["rows"][0]["line"]) == ("invalid_rows", 2)
    cli.file("bad.csv", "id,src,dst\n5,ana,nobody\n")
    document = cli.json(*words, code=2)
    assert document["violations"][0]["line"] == 2
    assert cli.error("load", "-b", "master", "people.csv", code=2) == "invalid"


# The client does not know the memory of the server.
@EMBEDDED_ONLY
def test_cli_advises_spark_where_there_is_too_much_for_arrow(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (("optimize", "graph.person"), ("load", "graph.person=people.csv", "--mode", "merge"))
    for one in words:
        assert "--engine spark" not in cli.ok(*one, "-b", "master").err
    monkeypatch.setattr(engine, "ARROW_BYTES", 1)
    for one in words:
        assert "--engine spark" in cli.ok(*one, "-b", "master").err


def test_cli_merge_with_conflicts_lists_them(cli: Cli) -> None:
    for branch, name in (("side>master", "one"), ("master", "two")):
        cli.ok("mutate", "-b", branch, f"update graph.person set name = '{name}' where id = 'ana'")
    document = cli.json("merge", "side", "--into", "master", code=4)
    [conflict] = document["conflicts"]
    assert (conflict["kind"], conflict["key"]) == ("update_update", {"id": "ana"})
    assert (conflict["source"]["name"], conflict["target"]["name"]) == ("one", "two")
    assert "both sides changed it" in cli("merge", "side", "--into", "master").err


def test_cli_load_create_shows_the_columns_of_the_table_that_it_creates(cli: Cli) -> None:
    cli.file("raw.csv", "id,zip,born\n1,01067,1990-01-02\n")
    refused = cli("load", "-b", "master", "raw.person=raw.csv").err
    assert "Table does not exist: raw.person on master" in refused
    assert "headgate load --create" in refused
    key = ("--primary-key", "raw.person=id")
    said = cli.ok("load", "-b", "master", "raw.person=raw.csv", "--create", *key)
    assert "raw.person: created (id long, zip string, born date)" in said.err
    assert "raw.person: 1 inserted, 0 updated, 0 deleted" in said.err
    cli.file("more.jsonl", '{"id": 1, "zip": "1"}\n{"id": 2, "zip": "2"}\n')
    done = cli.json("load", "-b", "master", "raw.person=more.jsonl", "--create", "--mode", "merge")
    assert done["counts"] == {"raw.person": {"inserted": 1, "updated": 1, "deleted": 0}}
    assert "created" not in done
    assert _rows(cli, "raw.person")[0] == {"id": 1, "zip": "1", "born": "1990-01-02"}
    done = cli.json("load", "-b", "master", "raw.other=raw.csv", "--create")
    assert done["created"] == {"raw.other": {"id": "long", "zip": "string", "born": "date"}}
    refused = cli("load", "-b", "master", "raw.c=raw.csv", "--create", "--primary-key", "id").err
    assert "write DATASET=COLUMNS, such as graph.person=id" in refused


def test_cli_load_of_rows_without_a_column_leaves_its_value_alone(cli: Cli) -> None:
    before = {row["id"]: row for row in _rows(cli, "graph.person")}
    lines = [
        '{"id": "ana", "name": "Anna"}',
        '{"id": "bea", "mail": "b@x"}',
        '{"id": "new", "name": "New"}',
    ]
    cli.file("some.jsonl", "\n".join(lines))
    done = cli.json("load", "-b", "master", "graph.person=some.jsonl", "--mode", "merge")
    assert done["counts"] == {"graph.person": {"inserted": 1, "updated": 2, "deleted": 0}}
    after = {row["id"]: row for row in _rows(cli, "graph.person")}
    assert after["ana"] == {**before["ana"], "name": "Anna"}
    assert after["bea"] == {**before["bea"], "mail": "b@x"}
    assert after["new"] == {"id": "new", "name": "New", "mail": None, "status": "active"}
