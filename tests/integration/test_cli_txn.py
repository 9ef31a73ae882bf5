"""`headgate txn`: transactions and units from open to their end."""

from __future__ import annotations

import pytest

import headgate
from tests.support.cli import EMBEDDED_ONLY, Cli, put
from tests.support.stores import expire_just_now

TRANSACTION = {
    *("transaction", "dataset", "branch", "type", "state"),
    *("parent", "actor", "opened_at", "closed_at", "version"),
}


def paths(cli: Cli, *where: str) -> list[str]:
    return [file["path"] for file in cli.json("files", "ls", "raw.scans", *where)]


def open_txn(cli: Cli, *words: str) -> str:
    return str(cli.json("txn", "open", "raw.scans", "-b", "master", *words)["transaction"])


def test_txn_open_prints_the_noun_and_the_bare_id(cli: Cli) -> None:
    parent = put(cli, "a.txt")
    opened = cli.json("txn", "open", "raw.scans", "-b", "master")
    assert set(opened) == TRANSACTION
    assert (opened["type"], opened["state"], opened["parent"]) == ("UPDATE", "OPEN", parent)
    assert (opened["actor"], opened["closed_at"]) == ("ana", None)
    cli.ok("txn", "abort", opened["transaction"])
    said = cli.ok("txn", "open", "raw.scans", "-b", "master", "--type", "APPEND")
    assert cli.json("txn", "show", said.out.strip())["type"] == "APPEND"


def test_txn_is_invisible_until_its_commit_and_then_whole(cli: Cli) -> None:
    put(cli, "a.txt")
    txn = open_txn(cli)
    staged = cli.json("files", "put", "raw.scans", "--txn", txn, str(cli.file("x", "1")), "b.txt")
    assert (staged["transaction"], staged["state"]) == (txn, "OPEN")
    assert (paths(cli), paths(cli, "--txn", txn)) == (["a.txt"], ["a.txt", "b.txt"])
    committed = cli.json("txn", "commit", txn)
    assert set(committed) == TRANSACTION | {"publication"}
    assert (committed["state"], paths(cli)) == ("COMMITTED", ["a.txt", "b.txt"])
    [newest, *_] = cli.json("log")
    assert newest["publication"] == committed["publication"]


def test_txn_abort_leaves_no_trace_but_in_the_full_history(cli: Cli) -> None:
    txn = open_txn(cli)
    cli.ok("files", "put", "raw.scans", "--txn", txn, str(cli.file("x")), "b.txt")
    assert cli.json("txn", "abort", txn)["state"] == "ABORTED"
    assert paths(cli) == []
    assert cli.json("history", "raw.scans") == []
    assert [t["transaction"] for t in cli.json("history", "raw.scans", "--all")] == [txn]


@EMBEDDED_ONLY
def test_txn_open_on_a_branch_that_has_one_is_a_conflict_that_names_the_holder(cli: Cli) -> None:
    txn = open_txn(cli, "--actor", "bo")
    refused = cli.json("txn", "open", "raw.scans", "-b", "master", code=4)
    assert refused["code"] == "open_transaction_exists"
    assert (refused["transaction"], refused["holder"]) == (txn, "bo")


def test_txn_open_after_the_lease_takes_over(cli: Cli) -> None:
    old = open_txn(cli, "--lease", "60")
    with headgate.open(cli.directory) as hg:
        expire_just_now(hg, old)
    new = open_txn(cli)
    assert new != old
    assert cli.json("txn", "show", old)["state"] == "ABORTED"
    assert cli.error("txn", "commit", old, code=4) == "transaction_not_open"


def test_txn_commit_against_its_type_fails_and_leaves_it_open(cli: Cli) -> None:
    put(cli, "a.txt", "1")
    txn = open_txn(cli, "--type", "APPEND")
    cli.ok("files", "put", "raw.scans", "--txn", txn, str(cli.file("x", "2")), "a.txt")
    assert cli.error("txn", "commit", txn, code=2) == "transaction_type_violated"
    assert cli.json("txn", "show", txn)["state"] == "OPEN"


@pytest.mark.parametrize("verb", ["commit", "abort", "show"])
def test_txn_of_an_unknown_id_is_not_found(cli: Cli, verb: str) -> None:
    assert cli.error("txn", verb, "t-none", code=3) == "transaction_not_found"


@pytest.mark.parametrize("verb", ["commit", "abort"])
def test_txn_that_has_ended_cannot_end_again(cli: Cli, verb: str) -> None:
    txn, unit = open_txn(cli), cli.json("txn", "open", "-b", "master")["unit"]
    for id in (txn, unit):
        cli.ok("txn", "commit", id)
        assert cli.error("txn", verb, id, code=4) == "transaction_not_open"


def test_txn_commit_with_a_key_gives_the_first_answer_again(cli: Cli) -> None:
    txn = open_txn(cli)
    cli.ok("files", "put", "raw.scans", "--txn", txn, str(cli.file("x")), "b.txt")
    first = cli.json("txn", "commit", txn, "--idempotency-key", "k")
    assert cli.json("txn", "commit", txn, "--idempotency-key", "k") == first
    assert cli.error("txn", "commit", open_txn(cli), "--idempotency-key", "k", code=2) == (
        "idempotency_key_reused"
    )


def test_unit_opens_each_transaction_at_its_first_write_and_commits_all_at_once(cli: Cli) -> None:
    cli.ok("dataset", "create", "raw.other", "--kind", "files")
    opened = cli.json("txn", "open", "-b", "master")
    assert (opened["branch"], opened["transactions"]) == ("master", [])
    for dataset in ("raw.scans", "raw.other"):
        cli.ok("files", "put", dataset, "--txn", opened["unit"], str(cli.file("x")), "a.txt")
    shown = cli.json("txn", "show", opened["unit"])
    assert [t["dataset"] for t in shown["transactions"]] == ["raw.scans", "raw.other"]
    assert paths(cli) == []
    committed = cli.json("txn", "commit", opened["unit"])
    [newest, *_] = cli.json("log")
    assert newest["publication"] == committed["publication"]
    assert {move["dataset"] for move in newest["moves"]} == {"raw.scans", "raw.other"}
    assert {t["state"] for t in committed["transactions"]} == {"COMMITTED"}


def test_unit_shows_its_branch_until_it_writes_and_opens_nothing_for_it(cli: Cli) -> None:
    put(cli, "a.txt")
    unit = cli.json("txn", "open", "-b", "master")["unit"]
    assert paths(cli, "--txn", unit) == ["a.txt"]
    assert cli.json("txn", "show", unit)["transactions"] == []
    cli.ok("files", "put", "raw.scans", "--txn", unit, str(cli.file("x")), "b.txt")
    assert paths(cli, "--txn", unit) == ["a.txt", "b.txt"]
    cli.ok("txn", "abort", unit)
    words = ("files", "ls", "raw.scans", "--txn", unit)
    assert cli.error(*words, code=4) == "transaction_not_open"


def test_txn_that_was_aborted_can_no_longer_be_read(cli: Cli) -> None:
    txn = open_txn(cli)
    cli.ok("files", "put", "raw.scans", "--txn", txn, str(cli.file("x")), "b.txt")
    cli.ok("txn", "abort", txn)
    for words in (["ls", "raw.scans"], ["get", "raw.scans", "b.txt", "out"]):
        assert cli.error("files", *words, "--txn", txn, code=4) == "transaction_not_open"
    words = ["dataset", "show", "raw.scans", "-b", f"txn:{txn}"]
    assert cli.error(*words, code=4) == "transaction_not_open"


def test_unit_that_was_committed_is_read_as_it_was_committed(cli: Cli) -> None:
    unit = cli.json("txn", "open", "-b", "master")["unit"]
    cli.ok("files", "put", "raw.scans", "--txn", unit, str(cli.file("x")), "a.txt")
    cli.ok("txn", "commit", unit)
    put(cli, "b.txt")
    shown = cli.json("dataset", "show", "raw.scans", "-b", f"txn:{unit}")
    assert (shown["files"], shown["shown"]["state"]) == (1, "COMMITTED")
    assert paths(cli, "--txn", unit) == ["a.txt"]
    for words in (["raw.scans"], []):
        found = cli.json("diff", *words, "--from", f"txn:{unit}", "--to", "master")
        [of_scans] = found if isinstance(found, list) else [found]
        assert of_scans["from"] == shown["transaction"]
        assert of_scans["counts"] == {"from": 1, "to": 2, "added": 1, "removed": 0, "changed": 0}
    write = ("files", "put", "raw.scans", "--txn", unit, str(cli.file("x")), "c.txt")
    assert cli.error(*write, code=4) == "transaction_not_open"


def test_unit_that_was_aborted_can_be_neither_shown_nor_compared(cli: Cli) -> None:
    unit = cli.json("txn", "open", "-b", "master")["unit"]
    cli.ok("files", "put", "raw.scans", "--txn", unit, str(cli.file("x")), "a.txt")
    cli.ok("txn", "abort", unit)
    between = ("--from", f"txn:{unit}", "--to", "master")
    for words in (
        ("dataset", "show", "raw.scans", "-b", f"txn:{unit}"),
        ("diff", "raw.scans", *between),
        ("diff", *between),
    ):
        assert cli.error(*words, code=4) == "transaction_not_open"


def test_txn_that_is_used_keeps_its_lease(cli: Cli) -> None:
    txn = open_txn(cli)
    for use in (["ls", "raw.scans"], ["put", "raw.scans", str(cli.file("x"))]):
        with headgate.open(cli.directory) as hg:
            expire_just_now(hg, txn)
        cli.ok("files", *use, "--txn", txn)
        assert cli("txn", "open", "raw.scans", "-b", "master").code == 4


def test_unit_aborted_aborts_all_of_its_transactions(cli: Cli) -> None:
    unit = cli.ok("txn", "open", "-b", "master").out.strip()
    cli.ok("files", "put", "raw.scans", "--txn", unit, str(cli.file("x")), "a.txt")
    aborted = cli.json("txn", "abort", unit)
    assert [t["state"] for t in aborted["transactions"]] == ["ABORTED"]
    assert paths(cli) == []
    assert "ABORTED" in cli.ok("txn", "show", unit).out


def test_unit_without_a_write_commits_to_nothing_and_repeats_with_its_key(cli: Cli) -> None:
    unit = cli.json("txn", "open", "-b", "master")["unit"]
    for _ in range(2):
        committed = cli.json("txn", "commit", unit, "--idempotency-key", "k")
        assert (committed["publication"], committed["state"]) == (None, "COMMITTED")


@pytest.mark.parametrize("verb", ["commit", "abort"])
def test_transaction_of_a_unit_cannot_end_without_it(cli: Cli, verb: str) -> None:
    unit = cli.json("txn", "open", "-b", "master")["unit"]
    words = ("files", "put", "raw.scans", "--txn", unit, str(cli.file("x")), "a.txt")
    member = cli.json(*words)["transaction"]
    refused = cli.json("txn", verb, member, code=2)
    assert refused["unit"] == unit
    assert cli.json("txn", "show", member)["state"] == "OPEN"


def test_txn_open_with_nonsense_is_bad_usage(cli: Cli) -> None:
    assert cli("txn", "open", "-b", "master", "--type", "APPEND").code == 2
    for words in (["--type", "MERGE"], ["--lease", "0"], ["--lease", "soon"], ["--lease", "-1"]):
        assert cli.error("txn", "open", "raw.scans", "-b", "master", *words, code=2) == "usage"
    assert cli.error("txn", "open", "raw.scans", code=2) == "usage"


def test_txn_is_named_by_its_context_too_and_its_type_in_any_case(cli: Cli) -> None:
    txn = f"txn:{open_txn(cli, '--type', 'append')}"
    cli.ok("files", "put", "raw.scans", "--txn", txn, str(cli.file("x", "1")), "b.txt")
    assert (paths(cli), paths(cli, "--txn", txn)) == ([], ["b.txt"])
    assert cli.json("txn", "commit", txn)["type"] == "APPEND"
    unit = f"txn:{cli.json('txn', 'open', '-b', 'master')['unit']}"
    cli.ok("files", "rm", "raw.scans", "--txn", unit, "b.txt")
    assert cli.json("txn", "abort", unit)["state"] == "ABORTED"
