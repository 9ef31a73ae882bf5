"""`headgate history`, `log`, `status`, `recover` and `migrate`."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing

import headgate
from headgate.catalog.migrate import NEWEST
from tests.support.cli import EMBEDDED_ONLY, Cli, put
from tests.support.stores import expire_leases


def abandon(cli: Cli) -> str:
    """Open a transaction whose owner is dead."""
    txn = str(cli.json("txn", "open", "raw.scans", "-b", "master", "--actor", "bo")["transaction"])
    with headgate.open(cli.directory) as hg:
        expire_leases(hg)
    return txn


def test_history_is_newest_first_and_follows_the_branch(cli: Cli) -> None:
    first, second = put(cli, "a", "1"), put(cli, "a", "2")
    cli.ok("branch", "create", "raw.scans", "feature")
    third = put(cli, "a", "3", branch="feature")
    assert [t["transaction"] for t in cli.json("history", "raw.scans")] == [second, first]
    on_feature = cli.json("history", "raw.scans", "-b", "feature")
    assert [t["transaction"] for t in on_feature] == [third, second, first]
    assert [t["type"] for t in on_feature] == ["UPDATE", "UPDATE", "APPEND"]
    assert len(cli.json("history", "raw.scans", "--limit", "1")) == 1
    assert cli.ok("history", "raw.scans").out.count("COMMITTED") == 2


def test_history_of_nothing_says_so(cli: Cli) -> None:
    assert "is empty" in cli.ok("history", "raw.scans").err
    assert cli.error("history", "raw.scans", "-b", "none", code=3) == "branch_not_found"
    assert cli.error("history", "raw.none", code=3) == "dataset_not_found"


@EMBEDDED_ONLY
def test_log_filters_by_actor_dataset_branch_and_kind(cli: Cli) -> None:
    put(cli, "a")
    cli.ok("branch", "create", "raw.scans", "feature", "--actor", "bo")
    cli.ok("dataset", "create", "raw.other")

    def numbers(*words: str) -> list[int]:
        return [p["publication"] for p in cli.json("log", *words)]

    assert numbers() == [4, 3, 2, 1]
    assert numbers("--actor", "bo") == [3]
    assert numbers("--dataset", "raw.scans") == [3, 2, 1]
    assert numbers("--branch", "feature") == [3]
    assert numbers("--kind", "commit") == [2]
    assert numbers("--kind", "create", "--dataset", "raw.scans", "--limit", "1") == [3]
    assert numbers("--actor", "nobody") == []


def test_log_for_a_person_is_a_table(cli: Cli) -> None:
    view = put(cli, "a")
    lines = cli.ok("log").out.splitlines()
    assert lines[0].split() == ["NUMBER", "TIME", "KIND", "ACTOR", "WHAT"]
    assert lines[1].endswith(f"raw.scans@master nothing → {view}")
    assert "no publications" in cli.ok("log", "--actor", "nobody").err


def test_log_of_an_unknown_kind_lists_those_there_are(cli: Cli) -> None:
    said = cli("log", "--kind", "push")
    assert said.code == 2 and "commit, adopt, merge, reset" in said.err
    assert cli("log", "--kind", "abandoned").code == 2
    assert cli("log", "--dataset", "raw.none").code == 3


@EMBEDDED_ONLY
def test_log_of_recovery_shows_what_it_settled_without_publishing(cli: Cli) -> None:
    txn = abandon(cli)
    cli.ok("recover")
    [event] = cli.json("log", "--actor", "headgate:recovery")
    assert (event["publication"], event["kind"], event["moves"]) == (None, "abandoned", [])
    assert (event["transaction"], event["original_actor"]) == (txn, "bo")
    words = ("log", "--actor", "headgate:recovery")
    assert len(cli.json(*words, "--dataset", "raw.scans", "--branch", "master")) == 1
    assert len(cli.json(*words, "--kind", "abandoned")) == 1
    assert cli.json(*words, "--kind", "commit") == []
    assert cli.json(*words, "--branch", "other", code=3)["code"] == "no_such_branch"
    assert f"raw.scans@master {txn} of bo" in cli.ok(*words).out


def test_log_of_recoveries_is_the_audit(cli: Cli) -> None:
    assert cli.json("log", "--recoveries") == []
    assert "no recoveries" in cli.ok("log", "--recoveries").err
    view = put(cli, "a")
    older = abandon(cli)
    cli.ok("recover")
    newer = abandon(cli)
    cli.ok("recover")
    found = cli.json("log", "--recoveries")
    assert [row["operation"] for row in found] == [newer, older]
    assert {row["kind"] for row in found} == {"abort"}
    target = {"dataset": "raw.scans", "branch": "master"}
    assert found[0]["outcomes"] == [{"target": target, "outcome": "aborted", "restored_to": view}]
    whose = found[0]["original_actor"]
    assert len(cli.json("log", "--recoveries", "--actor", whose, "--kind", "abort")) == 2
    assert len(cli.json("log", "--recoveries", "--limit", "1")) == 1
    assert cli.json("log", "--recoveries", "--actor", "nobody") == []
    lines = cli.ok("log", "--recoveries").out.splitlines()
    assert lines[0].split() == ["TIME", "KIND", "OF", "OPERATION", "WHAT"]
    assert lines[1].endswith(f"raw.scans@master aborted, back at {view}")
    assert cli("log", "--recoveries", "--branch", "master").code == 2


def test_status_tells_what_became_of_a_key(cli: Cli) -> None:
    cli.file("a.txt")
    words = ("files", "put", "raw.scans", "-b", "master", "a.txt", "--idempotency-key", "k")
    made = cli.json(*words)
    found = cli.json("status", "k")
    assert (found["operation"], found["state"]) == (made["operation"], "committed")
    assert found["publication"] == made["publication"]
    assert cli.json("status", "k", "-b", "master", "--kind", "files-put") == found
    unknown = cli.json("status", "k", "-b", "other", code=3)
    assert (unknown["code"], unknown["state"]) == ("not_found", "not_committed")
    assert "Branch 'other' does not exist. Nothing was committed there." in unknown["error"]
    assert "publication" in cli.ok("status", "k").err


def test_status_of_a_key_that_several_have_used_asks_which(cli: Cli) -> None:
    cli.ok("branch", "create", "raw.scans", "a", "--idempotency-key", "k")
    cli.ok("branch", "create", "raw.scans", "b", "--idempotency-key", "k")
    refused = cli.json("status", "k", code=2)
    assert {operation["branch"] for operation in refused["operations"]} == {"a", "b"}
    assert cli.json("status", "k", "-b", "b")["state"] == "committed"


def test_status_of_what_changed_nothing_has_no_publication(cli: Cli) -> None:
    view = put(cli, "a")
    words = ("branch", "reset", "raw.scans", "master", "--to", view, "--idempotency-key", "k")
    cli.ok(*words)
    assert cli.json("status", "k")["publication"] is None
    assert "nothing was published" in cli.ok("status", "k").err


def test_recover_aborts_what_is_abandoned_once(cli: Cli) -> None:
    txn = abandon(cli)
    dry = cli.json("recover", "--dry-run")
    assert dry["aborted_transactions"] == [txn]
    assert cli.json("recover", "--dry-run") == dry
    assert "would be aborted" in cli.ok("recover", "--dry-run").err
    assert cli.json("recover") == {
        "rolled_forward": [],
        "rolled_back": [],
        "aborted_transactions": [txn],
        "kept": [],
    }
    assert cli.json("recover")["aborted_transactions"] == []
    assert "nothing to settle" in cli.ok("recover").err


def test_migrate_of_a_new_store_has_nothing_to_do(cli: Cli) -> None:
    done = cli.json("migrate")
    assert (done["from"], done["to"]) == (NEWEST, NEWEST)
    assert "already" in cli.ok("migrate").err


@EMBEDDED_ONLY
def test_migrate_of_an_empty_database_makes_the_schema(cli: Cli) -> None:
    catalog = cli.directory / ".headgate" / "catalog.db"
    catalog.unlink()
    with closing(sqlite3.connect(catalog)):
        pass
    # Not while the warehouse is that of the catalog that was there.
    assert cli.error("migrate", code=4) == "warehouse_occupied"
    shutil.rmtree(cli.directory / ".headgate" / "warehouse")
    assert cli.json("migrate")["from"] == 0
    assert cli.json("dataset", "list") == []


def test_recover_leaves_with_4_where_only_a_person_can_settle_an_operation(cli: Cli) -> None:
    kept = ("i-1", "o-1", "workspace", "ana", "A", 1, 60, 1, "{}", 1)
    with closing(sqlite3.connect(cli.directory / ".headgate" / "catalog.db")) as connection:
        connection.execute(f"INSERT INTO intents VALUES ({', '.join('?' * len(kept))})", kept)
        connection.commit()
    [said] = cli.json("recover", code=4)["kept"]
    assert said == {"operation": "o-1", "why": "its intent cannot be read"}
    assert "o-1: its intent cannot be read" in cli("recover").err
