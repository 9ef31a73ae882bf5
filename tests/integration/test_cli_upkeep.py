"""`headgate cleanup` and `headgate doctor`, as text and as JSON."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

import headgate
from tests.support.cli import Cli, new_cli, new_store_cli, put
from tests.support.source import PACKAGE
from tests.support.stores import everything
from tests.support.table_upkeep import TableClient
from tests.support.upkeep import let_days_pass, stored_keys


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    return new_store_cli(tmp_path, monkeypatch, capsys)


def _wait(days: float) -> None:
    with headgate.open() as hg:
        let_days_pass(hg, days)


def _keys() -> set[str]:
    with headgate.open() as hg:
        return stored_keys(hg)


def _catalog(cli: Cli) -> Path:
    return cli.directory / ".headgate" / "catalog.db"


# --- cleanup --------------------------------------------------------------------------------


def test_cleanup_of_a_young_store_deletes_nothing(cli: Cli) -> None:
    put(cli, "a", "1")
    put(cli, "a", "2")
    before = _keys()
    said = cli.json("cleanup")
    assert {k: said[k] for k in ("condemned", "deleted", "bytes", "dry_run")} == {
        "condemned": 0,
        "deleted": 0,
        "bytes": 0,
        "dry_run": False,
    }
    assert {"what", "why", "count", "bytes", "examples"} == set(said["kept"][0])
    assert _keys() == before


def test_cleanup_condemns_then_sweeps_and_says_expired(cli: Cli) -> None:
    old = put(cli, "a", "1")
    put(cli, "a", "2")
    _wait(40)
    assert cli.json("cleanup")["condemned"] == 4
    ls = ("files", "ls", "raw.scans", "-b", "master")
    assert cli.error(*ls, "--at", old, code=3) == "expired"
    assert cli.error("branch", "reset", "raw.scans", "master", "--to", old, code=3) == "expired"
    assert cli.error("tag", "create", "raw.scans", "v1", "--at", old, code=3) == "expired"
    branch = ("branch", "create", "raw.scans", "x", "--from", "master", "--at", old)
    assert cli.error(*branch, code=3) == "expired"
    _wait(1.1)
    swept = cli.json("cleanup")
    assert (swept["condemned"], swept["deleted"]) == (0, 3)
    assert [e["path"] for e in cli.json(*ls)] == ["a"]


def test_cleanup_of_a_table_says_what_goes_and_frees_it(cli: Cli) -> None:
    with headgate.open() as hg, TableClient(hg) as client:
        client.create(1)
        client.overwrite(2)
        client.forget()
        let_days_pass(hg, 40)
    said = cli.json("cleanup", "--dry-run")
    assert {"version", "data file", "manifest list"} <= {item["what"] for item in said["items"]}
    assert "condemn" in cli.ok("cleanup").out
    _wait(1.1)
    assert cli.json("cleanup")["deleted"] == said["condemned"] - 2
    shown = cli.json("dataset", "show", "shop.orders", "--rows", "9")
    assert shown["rows"] == [{"id": 2}]
    # Not --deep, which finds that `let_days_pass` has rewritten the metadata files.
    assert cli.json("doctor")["ok"] is True


def test_cleanup_follows_the_time_to_retain_in_the_settings(cli: Cli) -> None:
    put(cli, "a", "1")
    put(cli, "a", "2")
    _wait(10)
    assert cli.json("cleanup")["condemned"] == 0
    file = cli.directory / "headgate.toml"
    file.write_text(file.read_text().replace("[store]\n", '[store]\nretain = "8d"\n'))
    assert cli.json("cleanup")["condemned"] == 4


def test_dry_cleanup_tells_what_and_why_and_does_nothing(cli: Cli) -> None:
    old = put(cli, "a", "1")
    put(cli, "a", "2")
    _wait(40)
    with headgate.open() as hg:
        before = everything(hg)
    said = cli.ok("cleanup", "--dry-run")
    assert f"transaction {old} of raw.scans@master" in said.out
    assert "not shown by a branch within the retention period" in said.out
    assert "would be condemned: 4" in said.err
    with headgate.open() as hg:
        assert everything(hg) == before
    assert cli.json("cleanup", "--dry-run")["dry_run"] is True


def test_cleanup_older_than_a_day_is_the_least(cli: Cli) -> None:
    put(cli, "a", "1")
    assert cli.error("cleanup", "--older-than", "23h", code=2) == "invalid"
    assert cli.error("cleanup", "--older-than", "soon", code=2) == "invalid"
    assert cli.error("cleanup", "--older-than", "-7d", code=2) == "invalid"
    assert cli.json("cleanup", "--older-than", "24h")["deleted"] == 0
    assert cli.error("cleanup", "--older-than", "99999999999d", code=2) == "invalid"
    assert cli.json("cleanup", "--older-than", "36500d")["deleted"] == 0


def test_cleanup_with_a_shorter_grace_condemns_sooner(cli: Cli) -> None:
    with headgate.open() as hg:
        hg.trees.store(b"orphan")
    _wait(2)
    assert cli.json("cleanup")["condemned"] == 0
    [item] = cli.json("cleanup", "--older-than", "24h")["items"]
    assert (item["step"], item["what"], item["bytes"]) == ("condemn", "object", 6)


def test_cleanup_names_what_it_leaves_alone(cli: Cli) -> None:
    warehouse = cli.directory / ".headgate" / "warehouse"
    warehouse.mkdir(parents=True, exist_ok=True)
    (warehouse / "notes.txt").write_text("mine")
    said = cli.ok("cleanup").err
    assert "kept: 1 unknown, 4 B (not written by Headgate) [notes.txt]" in said


# --- doctor ---------------------------------------------------------------------------------


def test_doctor_of_a_sound_store_ends_with_0(cli: Cli) -> None:
    put(cli, "a", "1")
    said = cli.json("doctor")
    assert said["ok"] is True
    assert all(check["ok"] and check["findings"] == [] for check in said["checks"])
    assert cli.json("doctor", "--deep")["ok"] is True
    assert cli.ok("doctor").err == "no problems found.\n"
    assert not list((cli.directory / ".headgate" / "warehouse").glob(".headgate-*"))


def _findings(cli: Cli, *words: str) -> str:
    """Return the doctor's findings, which are equal as text and as JSON; its exit code is 1."""
    said = cli.json("doctor", *words, code=1)
    assert said["ok"] is False
    found = [finding for check in said["checks"] for finding in check["findings"]]
    assert all(finding["remedy"] for finding in found)
    plain = cli("doctor", *words)
    assert plain.code == 1 and all(finding["remedy"] in plain.out for finding in found)
    return "\n".join(f"{finding['where']}: {finding['what']}" for finding in found)


def test_doctor_without_a_store_says_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cli = new_cli(tmp_path, monkeypatch, capsys)
    assert cli.error("doctor", code=3) == "not_found"


def test_doctor_of_settings_that_cannot_be_read_names_the_key(cli: Cli) -> None:
    (cli.directory / "headgate.toml").write_text('[store]\ncatalogue = "x"\n')
    assert "key store.catalogue is unknown" in _findings(cli)


def test_doctor_of_settings_with_an_impossible_branch_says_so(cli: Cli) -> None:
    (cli.directory / "headgate.toml").write_text('[builds]\nbranch = "a..b"\n')
    assert "branch name 'a..b' is not allowed" in _findings(cli)


def test_doctor_of_a_missing_catalog_does_not_make_one(cli: Cli) -> None:
    _catalog(cli).unlink()
    assert "the file does not exist" in _findings(cli)
    assert not _catalog(cli).exists()


def test_doctor_of_something_else_than_a_catalog_says_so(cli: Cli) -> None:
    _catalog(cli).write_bytes(b"no database at all" * 100)
    assert "not a database" in _findings(cli)


def test_doctor_of_another_database_says_so(cli: Cli) -> None:
    _catalog(cli).unlink()
    with closing(sqlite3.connect(_catalog(cli))) as other:
        other.execute("CREATE TABLE mine (x)")
    assert "not Headgate's" in _findings(cli)


def test_doctor_of_a_truncated_catalog_says_so(cli: Cli) -> None:
    put(cli, "a", "1")
    with closing(sqlite3.connect(_catalog(cli))) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    whole = _catalog(cli).read_bytes()
    _catalog(cli).write_bytes(whole[: len(whole) // 2])
    assert "malformed" in _findings(cli) or "damaged" in _findings(cli)


def test_doctor_looks_at_indexes_when_it_looks_deep(cli: Cli) -> None:
    put(cli, "a", "1")
    index = "FROM sqlite_master WHERE name = 'versions_by_location'"
    # Removes the index from the schema, changes its rows, and restores it.
    with closing(sqlite3.connect(_catalog(cli), isolation_level=None)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        row = connection.execute(f"SELECT * {index}").fetchone()
        connection.execute(f"DELETE {index}")
    with closing(sqlite3.connect(_catalog(cli), isolation_level=None)) as connection:
        connection.execute(
            "INSERT INTO versions SELECT 'v', dataset_id, 'x', 'c', 1, 1 FROM versions"
        )
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("INSERT INTO sqlite_master VALUES (?, ?, ?, ?, ?)", row)
    assert cli.json("doctor")["ok"] is True
    assert "SQLite: the file is damaged" in _findings(cli, "--deep")


def test_doctor_finds_rows_that_refer_to_nothing(cli: Cli) -> None:
    with closing(sqlite3.connect(_catalog(cli), isolation_level=None)) as connection:
        connection.execute("PRAGMA foreign_keys = OFF")
        connection.execute("DELETE FROM datasets")
    assert "row 1 of branches refers to a row of datasets" in _findings(cli)


def test_doctor_of_a_warehouse_that_cannot_be_written_says_so(cli: Cli) -> None:
    warehouse = cli.directory / ".headgate" / "warehouse"
    shutil.rmtree(warehouse)
    warehouse.write_text("a file in its place")
    assert "file://" in _findings(cli)


def test_doctor_changes_nothing_and_recovers_nothing(cli: Cli) -> None:
    cli.ok("txn", "open", "raw.scans", "-b", "master", "--lease", "1")
    _wait(1)
    with closing(sqlite3.connect(_catalog(cli))) as connection:
        before = list(connection.iterdump())
    assert "is OPEN, and its lease ran out" in _findings(cli)
    with closing(sqlite3.connect(_catalog(cli))) as connection:
        assert list(connection.iterdump()) == before


def test_doctor_with_a_server_in_the_environment_asks_that_one(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADGATE_URL", "http://127.0.0.1:1")
    assert cli.error("doctor", code=6) == "unavailable"


def test_doctor_loads_no_spark(cli: Cli) -> None:
    code = (
        "import sys; from headgate.cli.main import run; code = run(['doctor', '--json'])\n"
        "sys.exit(code or 'pyspark' in sys.modules or 'py4j' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=cli.directory,
        env={"PYTHONPATH": str(PACKAGE.parent), "PATH": "", "HOME": str(cli.directory)},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
