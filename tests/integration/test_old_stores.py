"""A store of every release opens, migrates, reads as before, and can be used and cleaned.

The archives have SQLite catalogs. A PostgreSQL catalog of the release is made from one: the schema
is the release's own migrations, and the rows are those of the archive.

Each is opened by clocks that a test sets, since a store that nobody used for long is recovered and
cleaned differently.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from headgate.catalog.migrate import closing_database
from tests.support.cli import Cli, new_cli
from tests.support.clocks import SetClock
from tests.support.old_stores import (
    RELEASES,
    assert_says_at_least,
    move_to_postgres,
    replies,
    unpacked,
)
from tests.support.postgres import PostgresServer, fresh_database

# Days since the last publication. The transaction that was left OPEN has a lease of a day, and
# recovery aborts it five leases later; cleanup refuses a gap of two weeks in the records.
_SOON, _LEASE_OVER, _ABANDONED, _LONG_GAP, _YEARS = 0.1, 2, 8, 16, 1500


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[_SOON, _ABANDONED, _LONG_GAP, _YEARS])
def days(request: pytest.FixtureRequest) -> float:
    return float(request.param)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, release: str) -> str:
    """Return the URL of the catalog; that of PostgreSQL is a new database."""
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        return fresh_database(server)
    return f"sqlite:////tmp/headgate-store-{release}/.headgate/catalog.db"


@pytest.fixture
def old(
    release: str,
    days: float,
    url: str,
    set_clock: SetClock,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Cli]:
    """Yield the command line in a store whose catalog is that of the release."""
    [log] = [document for command, document in replies(release) if command[0] == "log"]
    made = datetime.fromisoformat(log[0]["at"]).timestamp()
    set_clock(days - (time.time() - made) / 86_400)
    with unpacked(release) as place:
        if url.startswith("postgresql"):
            move_to_postgres(place, url)
        yield new_cli(place, monkeypatch, capsys)


@pytest.fixture
def cli(old: Cli, url: str) -> Cli:
    """Return the command line in an opened store: SQLite is migrated by the first command."""
    if url.startswith("postgresql"):
        old.ok("migrate")
    return old


def test_archives_of_releases_are_there() -> None:
    assert "0.1.0" in RELEASES


@pytest.mark.parametrize("days", [_SOON], indirect=True)
def test_old_postgres_store_is_refused_until_it_is_migrated(old: Cli, url: str) -> None:
    if url.startswith("sqlite"):
        old.ok("log")
        return
    for command in (["log"], ["dataset", "list"], ["cleanup"]):
        assert old.error(*command, code=2) == "store_too_old"
    old.ok("migrate")
    old.ok("log")


def test_old_store_reads_as_its_release_read_it(
    release: str, days: float, url: str, cli: Cli
) -> None:
    for command, document in replies(release):
        expected = document if days < _ABANDONED else _recovered(document)
        assert_says_at_least(cli.json(*command), expected)
    backups = list((cli.directory / ".headgate").glob("catalog.db.*"))
    # A SQLite catalog is copied before it is migrated; the owner of a PostgreSQL server copies it.
    assert bool(backups) == url.startswith("sqlite")


def _recovered(document: Any) -> Any:
    """Return a reply after recovery has aborted the transactions that were left OPEN."""
    if isinstance(document, list):
        return [_recovered(one) for one in document]
    if document.get("open") is True:
        return {**document, "head": document["view"], "open": False}
    if document.get("state") == "OPEN":
        kept = {key: value for key, value in document.items() if key != "closed_at"}
        return {**kept, "state": "ABORTED"}
    return document


def test_old_store_can_be_used_and_cleaned(days: float, cli: Cli, tmp_path: Path) -> None:
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
    left = [one["head"] for one in cli.json("branch", "list", "raw.scans") if one["open"]]
    assert len(left) == (1 if days < _ABANDONED else 0)
    for transaction in left:
        cli.ok("txn", "abort", transaction)
    cli.ok("files", "put", "raw.scans", "-b", "trial", str(cli.file("new.txt")), "2026/new.txt")
    [tag] = cli.json("tag", "list")
    cli.ok("branch", "create", "raw.scans", "old", "--from", "master", "--at", tag["transaction"])
    if days < _LONG_GAP:
        cli.ok("cleanup")
    else:
        assert cli.json("cleanup", code=4)["code"] == "clock_implausible"
        cli.ok("cleanup", "--confirm-clock")
    rows = cli.json("dataset", "show", "shop.orders", "-b", "master", "--rows", "10")["rows"]
    assert sorted((row["id"], row["amount"]) for row in rows) == [(1, 11), (2, 20), (3, 30)]
    backup = tmp_path / "backup"
    cli.ok("backup", str(backup))
    cli.ok("restore-check", str(backup))


# What a build and a reset of 0.1.0 write: `shop.totals` was built twice, and reset to the first.
_RESET = """
INSERT INTO transactions
    SELECT 't-first', dataset_id, branch_id, branch_name, parent_id, depth, jump_id, type, state,
        version_id, actor, opened_at, closed_at, lease_seconds, lease_until, attempt_key,
        attempt_epoch, unit_id, publication, 'earlier key', 'earlier key', 1,
        REPLACE(provenance, '"orders","c-', '"orders","c-earlier-')
    FROM transactions WHERE inputs_key IS NOT NULL;
UPDATE transactions SET parent_id = 't-first', depth = 1, jump_id = 't-first', publication = 14,
    adoptable = 0, opened_at = (SELECT last_at + 30000000 FROM log_counter),
    closed_at = (SELECT last_at + 60000000 FROM log_counter)
    WHERE inputs_key IS NOT NULL AND id <> 't-first';
UPDATE moves SET to_id = 't-first' WHERE publication = 12;
INSERT INTO publications SELECT 14, last_at + 60000000, 'bo', 'commit', 'o-14' FROM log_counter;
INSERT INTO publications SELECT 15, last_at + 120000000, 'bo', 'reset', 'o-15' FROM log_counter;
INSERT INTO moves
    SELECT 14, 0, dataset_id, branch_id, branch_name, 't-first', id, 'moved'
    FROM transactions WHERE publication = 14;
INSERT INTO moves
    SELECT 15, 0, dataset_id, branch_id, branch_name, id, 't-first', 'moved'
    FROM transactions WHERE publication = 14;
UPDATE branches SET head_id = 't-first', view_id = 't-first'
    WHERE id IN (SELECT branch_id FROM moves WHERE publication = 15);
UPDATE log_counter SET number = 15, last_at = last_at + 120000000;
"""


@pytest.mark.parametrize("days", [_SOON], indirect=True)
def test_reset_of_an_old_release_holds_what_it_removed(
    request: pytest.FixtureRequest, old: Cli, url: str
) -> None:
    with closing_database(url) as catalog, catalog.raw() as connection:
        for statement in _RESET.strip().removesuffix(";").split(";\n"):
            connection.execute(text(statement))
        connection.commit()
    cli: Cli = request.getfixturevalue("cli")
    [job] = cli.json("plan", "shop.totals", "-b", "master")["jobs"]
    assert (job["state"], job["reason"]) == ("skipped", "held")
    assert (job["held"]["publication"], job["held"]["actor"]) == (15, "bo")
    assert _findings(cli) == {"access": 1}


@pytest.mark.parametrize("days", [_SOON, _LEASE_OVER, _YEARS], indirect=True)
def test_doctor_finds_in_an_old_store_the_modes_of_its_files_and_an_expired_lease(
    days: float, cli: Cli
) -> None:
    cli.ok("migrate")
    left = {} if days == _SOON else {"leases": 1}
    assert _findings(cli) == {"access": 1} | left
    cli.ok("recover")
    assert _findings(cli) == {"access": 1} | ({} if days == _YEARS else left)


def _findings(cli: Cli) -> dict[str, int]:
    checks = cli.json("doctor", "--deep", code=1)["checks"]
    return {check["check"]: len(check["findings"]) for check in checks if check["findings"]}
