"""`headgate sql` and `hg.table` without a JVM, on an embedded and on a served store."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headgate
from headgate.errors import Invalid, NotFound, TableNotFound, Unavailable
from headgate.rows.spark_sql import Unlisted, translate
from headgate.tables.scan import Within
from tests.support.cli import Cli

_SCHEMA = """
[dataset."g.person"]
columns = {id = "string", age = "int", score = "double"}
key = ["id"]
"""
_COUNT = "select count(*) as n from g.person"


@pytest.fixture
def people(cli: Cli) -> Cli:
    """A table of three rows on master, of which a branch deletes one."""
    cli.file("schema.toml", _SCHEMA)
    cli.ok("schema", "apply", "schema.toml", "-b", "master")
    rows = "('ana', 31, 0.5), ('bo', null, 1.5), ('cy', 7, 0.25)"
    cli.ok("mutate", "-b", "master", f"insert into g.person values {rows}")
    cli.ok("branch", "create", "g.person", "try", "--from", "master")
    cli.ok("mutate", "-b", "try", "delete from g.person where id = 'bo'")
    return cli


def test_sql_of_each_context_is_answered_without_spark(people: Cli) -> None:
    newest = people.json("log", "--limit", "1")[0]["publication"]
    people.ok("mutate", "-b", "master", "insert into g.person values ('di', 1, 1)")
    for context, count in (("master", 4), ("try>master", 2), (f"master@{newest}", 3)):
        done = people.ok("sql", "-b", context, "--json", _COUNT)
        assert json.loads(done.out) == [{"n": count}]
        assert done.err == "engine: duckdb\n"


def test_sql_at_a_tag_reads_the_tagged_rows_and_a_wrong_tag_is_an_error(people: Cli) -> None:
    tagged = people.json("dataset", "show", "g.person", "-b", "master")["transaction"]
    people.ok("tag", "create", "g.person", "release-7", "--at", tagged)
    people.ok("mutate", "-b", "master", "insert into g.person values ('di', 1, 1)")
    for context, count in (("master@release-7", 3), ("master", 4)):
        assert people.json("sql", "-b", context, _COUNT) == [{"n": count}]
    assert people.error("sql", "-b", "master@relase-7", _COUNT, code=3) == "tag_not_found"


def test_sql_in_a_transaction_reads_its_own_writes(people: Cli) -> None:
    with headgate.open() as hg, hg.transaction(branch="master") as unit:
        found = hg.sql(_COUNT, branch=unit.context, engine="duckdb")
        assert found.result.rows == [{"n": 3}]


def test_sql_of_a_context_that_does_not_exist_starts_no_engine(people: Cli) -> None:
    assert people.error("sql", "-b", "mastr", _COUNT, code=3) == "no_such_branch"


def test_forced_duckdb_refuses_what_is_not_a_query_of_tables(people: Cli, tmp_path: Path) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("a\n1\n")
    for text in (
        f"select * from read_csv('{secret}')",
        f"select * from '{secret}'",
        f"copy (select 1) to '{tmp_path / 'out.csv'}'",
        "select * from duckdb_settings",
        "set memory_limit = '1GB'",
        "delete from g.person",
        "select 1; select 2",
    ):
        assert people.error("sql", "--engine", "duckdb", text, code=2) == "invalid"
    assert not (tmp_path / "out.csv").exists()


def test_output_is_written_by_its_suffix_or_not_at_all(people: Cli) -> None:
    text = "select id, age from g.person order by id"
    for name in ("out.parquet", "out.csv", "out.arrow", "out.jsonl"):
        assert "3 rows in" in people.ok("sql", "-o", name, text).err
    rows = [{"id": "ana", "age": 31}, {"id": "bo", "age": None}, {"id": "cy", "age": 7}]
    directory = people.directory
    assert pq.read_table(directory / "out.parquet").to_pylist() == rows
    assert pa.ipc.open_file(directory / "out.arrow").read_all().to_pylist() == rows
    assert (directory / "out.csv").read_text() == '"id","age"\n"ana",31\n"bo",\n"cy",7\n'
    lines = (directory / "out.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == rows
    assert people.error("sql", "-o", "out.xls", text, code=2) == "invalid"
    failing = "select id, age * 1000000000 as n from g.person where id = 'ana'"
    assert people.error("sql", "-o", "bad.csv", "--engine", "duckdb", failing, code=2) == "invalid"
    assert not [path for path in directory.iterdir() if "bad" in path.name]


def test_statements_are_read_from_stdin(people: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    script = f"{_COUNT};\nselect 'a;b' as s -- no; end\n , 1\n;\\d g.person\n\\q\nselect 9;"
    monkeypatch.setattr(sys, "stdin", io.StringIO(script))
    done = people.ok("sql")
    assert [line.split() for line in done.out.splitlines()] == [
        ["n"],
        ["3"],
        ["s", "1"],
        ["a;b", "1"],
        ["column", "type", "required"],
        ["id", "string", "True"],
        ["age", "int", "False"],
        ["score", "double", "False"],
    ]


def test_a_table_is_read_as_arrow_and_data_frames(people: Cli) -> None:
    with headgate.open() as hg:
        table = hg.table("g.person", branch="try>master")
        assert {row["id"] for row in table.to_arrow().to_pylist()} == {"ana", "cy"}
        assert set(table.to_pandas()["age"]) == {31, 7}
        assert table.to_duckdb().filter("age > 10").fetchall() == [("ana", 31, 0.5)]
        with pytest.raises(TableNotFound):
            hg.table("g.nobody").to_arrow()
        with pytest.raises(NotFound, match="mastr"):
            hg.table("g.person", branch="mastr")


def test_a_missing_table_is_named_with_the_nearest_name(people: Cli) -> None:
    with headgate.open() as hg:
        with pytest.raises(TableNotFound, match=r"Did you mean 'g\.person'") as caught:
            hg.table("g.persn", branch="try").to_arrow()
        assert caught.value.facts["context"] == "try"
    people.ok("dataset", "create", "g.persons", "--branch", "try")
    with headgate.open() as hg, pytest.raises(TableNotFound) as caught:
        hg.table("g.persons").to_arrow()
    # A name that another branch has is not misspelled.
    assert caught.value.facts["near"] == []


def test_sql_names_its_branch_where_git_has_another_one_checked_out(people: Cli) -> None:
    git = ["git", "-C", str(people.directory)]
    subprocess.run([*git, "init", "--quiet", "--initial-branch=master"], check=True)
    assert "branch:" not in people.ok("sql", _COUNT).err
    subprocess.run([*git, "checkout", "--quiet", "-b", "try"], check=True)
    said = people.ok("sql", "--json", _COUNT)
    assert said.err.startswith("branch: master; -b 'try>master' reads")
    assert json.loads(said.out) == [{"n": 3}]
    assert "branch:" not in people.ok("sql", "-b", "master", _COUNT).err


def test_a_missing_library_is_named_with_its_install_line(
    people: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    with headgate.open() as hg, pytest.raises(Unavailable, match="pip install polars"):
        hg.table("g.person").to_polars()


def test_an_unknown_engine_is_refused(people: Cli) -> None:
    with headgate.open() as hg, pytest.raises(Invalid, match="auto, duckdb, spark"):
        hg.sql(_COUNT, engine="arrow")


def test_a_query_reads_only_its_columns_and_the_files_that_its_conditions_leave() -> None:
    columns = {"id": "long", "Region": "string", "price": "decimal(5,2)"}
    text = "select sum(id) from t.v a where region = 'eu' and id between 3 and 9 and price > 0.5"
    found = translate(text, lambda _: columns).mentions
    assert [one.columns for one in found] == [["id", "Region", "price"]]
    assert Within(column="id", low=3, high=9) in found[0].where
    [count] = translate("select count(*) from t.v", lambda _: columns).mentions
    assert (count.columns, count.where) == ([], [])


def test_a_statement_nested_too_deeply_is_left_to_spark() -> None:
    with pytest.raises(Unlisted):
        translate("select " + "(" * 5000 + "1" + ")" * 5000, lambda _: None)


def test_the_prompt_completes_names_and_survives_errors(people: Cli) -> None:
    master, slave = pty.openpty()
    script = (
        "import sys; from headgate.cli.main import main; sys.argv = ['headgate', 'sql']; main()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=people.directory,
        env={**os.environ, "TERM": "dumb"},
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    seen = _until(master, "master> ", "")
    for typed, expected in (
        ("select count(*) as n\n", "master> "),
        ("from g.per\t;\n", "engine: duckdb"),
        ("select nonsense from g.person limit 1 +;\n", "error:"),
        ("\\q\n", ""),
    ):
        os.write(master, typed.encode())
        seen = _until(master, expected, seen[-1:])
    assert child.wait(30) == 0
    os.close(master)


def _until(terminal: int, text: str, seen: str) -> str:
    """Return what a terminal shows up to a text."""
    deadline = time.monotonic() + 60
    while text not in seen:
        assert time.monotonic() < deadline, seen
        try:
            seen += os.read(terminal, 4096).decode(errors="replace")
        except OSError as error:
            raise AssertionError(seen) from error
    return seen
