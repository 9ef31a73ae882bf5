"""A store of every release opens, migrates, reads as before, and can be used and cleaned."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli import Cli, new_cli
from tests.support.old_stores import RELEASES, assert_says_at_least, replies, unpacked


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def cli(
    release: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Cli]:
    with unpacked(release) as place:
        yield new_cli(place, monkeypatch, capsys)


def test_archives_of_releases_are_there() -> None:
    assert "0.1.0" in RELEASES


def test_old_store_reads_as_its_release_read_it(release: str, cli: Cli) -> None:
    for command, document in replies(release):
        assert_says_at_least(cli.json(*command), document)
    backups = list((cli.directory / ".headgate").glob("catalog.db.*"))
    assert backups, "a SQLite catalog is copied before it is migrated"


def test_old_store_can_be_used_and_cleaned(cli: Cli, tmp_path: Path) -> None:
    [job] = cli.json("plan", "shop.totals", "-b", "master")["jobs"]
    # The branch has one more transaction since: a compaction, which makes nothing stale.
    assert (job["state"], job["reason"]) == ("skipped", "fresh")
    merged = cli.json("merge", "corrections", "--into", "master")
    assert merged["counts"]["shop.orders"]["updated"] == 1
    [job] = cli.json("plan", "shop.totals", "-b", "master")["jobs"]
    assert (job["state"], job["reason"]) == ("waiting", "stale-input")
    cli.ok("mutate", "-b", "master", "insert into shop.orders values (3, 'n', 30)")
    orphan = "insert into shop.orders values (4, 'x', 1)"
    assert cli.error("mutate", "-b", "master", orphan, code=2) == "constraints_violated"
    [left] = [one for one in cli.json("branch", "list", "raw.scans") if one["open"]]
    cli.ok("txn", "abort", left["head"])
    cli.ok("files", "put", "raw.scans", "-b", "trial", str(cli.file("new.txt")), "2026/new.txt")
    [tag] = cli.json("tag", "list")
    cli.ok("branch", "create", "raw.scans", "old", "--from", "master", "--at", tag["transaction"])
    cli.ok("cleanup")
    rows = cli.json("dataset", "show", "shop.orders", "-b", "master", "--rows", "10")["rows"]
    assert sorted((row["id"], row["amount"]) for row in rows) == [(1, 11), (2, 20), (3, 30)]
    backup = tmp_path / "backup"
    cli.ok("backup", str(backup))
    cli.ok("restore-check", str(backup))


def test_doctor_finds_in_an_old_store_only_the_modes_of_its_files(cli: Cli) -> None:
    cli.ok("migrate")
    checks = cli.json("doctor", "--deep", code=1)["checks"]
    assert [check["check"] for check in checks if check["findings"]] == ["access"]
