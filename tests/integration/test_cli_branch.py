"""`headgate branch`: every subcommand, its output and its errors."""

from __future__ import annotations

import pytest

from tests.support.cli import EMBEDDED_ONLY, Cli, put


def names(cli: Cli, dataset: str = "raw.scans") -> dict[str, str | None]:
    """Return each branch with its parent."""
    return {b["name"]: b["parent"] for b in cli.json("branch", "list", dataset)}


def test_branch_create_from_a_branch_shows_what_it_shows(cli: Cli) -> None:
    view = put(cli, "a.txt")
    assert cli.json("branch", "create", "raw.scans", "feature", "--from", "master") == {
        "dataset": "raw.scans",
        "name": "feature",
        "parent": "master",
        "head": view,
        "view": view,
        "open": False,
    }


def test_branch_create_unless_told_otherwise_is_a_child_of_the_primary(cli: Cli) -> None:
    assert cli.json("branch", "create", "raw.scans", "feature")["parent"] == "master"


def test_branch_create_at_an_earlier_transaction_shows_that(cli: Cli) -> None:
    first = put(cli, "a.txt", "1")
    put(cli, "a.txt", "2")
    made = cli.json("branch", "create", "raw.scans", "old", "--from", "master", "--at", first)
    assert (made["parent"], made["view"]) == ("master", first)


def test_branch_create_root_is_empty_and_has_no_parent(cli: Cli) -> None:
    put(cli, "a.txt")
    made = cli.json("branch", "create", "raw.scans", "alone", "--root")
    assert (made["parent"], made["view"]) == (None, None)
    for words in (["--from", "master"], ["--at", "t-1"]):
        assert cli("branch", "create", "raw.scans", "x", "--root", *words).code == 2


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (["raw.scans", "master"], 4, "branch_exists"),
        (["raw.scans", "x", "--from", "none"], 3, "branch_not_found"),
        (["raw.none", "x"], 3, "dataset_not_found"),
        (["raw.scans", "x", "--at", "t-none"], 3, "transaction_not_found"),
    ],
)
def test_branch_create_that_cannot_be_says_why(
    cli: Cli, words: list[str], code: int, error: str
) -> None:
    assert cli.error("branch", "create", *words, code=code) == error


def test_branch_list_is_a_tree_with_heads_and_views(cli: Cli) -> None:
    view = put(cli, "a.txt")
    cli.ok("branch", "create", "raw.scans", "feature")
    cli.ok("dataset", "create", "a.b")
    head = cli.json("txn", "open", "raw.scans", "-b", "feature")["transaction"]
    cli.ok("branch", "protect", "master")
    assert cli.ok("branch", "list").out.splitlines() == [
        "a.b",
        "└── master  empty  protected",
        "raw.scans",
        f"└── master  {view}  protected",
        f"    └── feature  {view}  OPEN {head}",
    ]
    assert [b["dataset"] for b in cli.json("branch", "list")] == ["a.b", "raw.scans", "raw.scans"]
    assert cli("branch", "list", "raw.none").code == 3


def test_branch_delete_gives_its_children_to_its_parent(cli: Cli) -> None:
    view = put(cli, "a.txt")
    cli.ok("branch", "create", "raw.scans", "develop")
    cli.ok("branch", "create", "raw.scans", "feature", "--from", "develop")
    assert cli.error("branch", "delete", "raw.scans", "develop", code=4) == "branch_in_use"
    gone = cli.json("branch", "delete", "raw.scans", "develop", "--force")
    assert gone["kind"] == "delete"
    assert gone["moves"] == [
        {"dataset": "raw.scans", "branch": "develop", "from": view, "to": None}
    ]
    assert names(cli) == {"feature": "master", "master": None}
    assert cli.error("branch", "delete", "raw.scans", "develop", code=3) == "branch_not_found"


def test_branch_delete_on_all_datasets_is_one_publication(cli: Cli) -> None:
    for dataset in ("raw.one", "raw.two"):
        cli.ok("dataset", "create", dataset)
        cli.ok("branch", "create", dataset, "feature")
    gone = cli.json("branch", "delete", "--all-datasets", "feature")
    assert [move["dataset"] for move in gone["moves"]] == ["raw.one", "raw.two"]
    assert cli.error("branch", "delete", "--all-datasets", "feature", code=3) == "no_such_branch"


@pytest.mark.parametrize(
    "words", [["raw.scans"], ["raw.scans", "a", "b"], ["--all-datasets", "raw.scans", "a"]]
)
def test_branch_delete_with_a_word_too_few_or_too_many_is_bad_usage(
    cli: Cli, words: list[str]
) -> None:
    assert cli("branch", "delete", *words).code == 2


def test_branch_reset_goes_back_and_forth(cli: Cli) -> None:
    first, second = put(cli, "a.txt", "1"), put(cli, "a.txt", "2")
    moved = cli.json("branch", "reset", "raw.scans", "master", "--to", first)
    assert moved["moves"] == [
        {"dataset": "raw.scans", "branch": "master", "from": second, "to": first}
    ]
    again = cli.json("branch", "reset", "raw.scans", "master", "--to", first)
    assert (again["publication"], again["moves"]) == (None, [])
    back = cli.ok("branch", "reset", "raw.scans", "master", "--to", second)
    assert f"{first} → {second}" in back.err


def test_branch_restore_brings_back_what_delete_removed(cli: Cli) -> None:
    view = put(cli, "a.txt")
    cli.ok("branch", "create", "raw.scans", "develop")
    cli.ok("branch", "create", "raw.scans", "feature", "--from", "develop")
    before = cli.json("branch", "list", "raw.scans")
    cli.ok("branch", "delete", "raw.scans", "develop", "--force")
    words = ("branch", "restore", "raw.scans", "develop")
    back = cli.json(*words, "--idempotency-key", "k1")
    assert back["kind"] == "restore"
    assert back["moves"] == [
        {"dataset": "raw.scans", "branch": "develop", "from": None, "to": view}
    ]
    assert cli.json("branch", "list", "raw.scans") == before
    assert cli.json(*words, "--idempotency-key", "k1")["publication"] == back["publication"]
    assert cli.error(*words, code=4) == "restore_refused"
    none = ("branch", "restore", "raw.scans", "none")
    assert cli.error(*none, code=3) == "deleted_branch_not_found"
    assert [p["kind"] for p in cli.json("log", "--kind", "restore")] == ["restore"]


def test_branch_restore_on_all_datasets_is_one_publication(cli: Cli) -> None:
    for dataset in ("raw.one", "raw.two"):
        cli.ok("dataset", "create", dataset)
        cli.ok("branch", "create", dataset, "feature")
    before = cli.json("branch", "list")
    cli.ok("branch", "delete", "--all-datasets", "feature")
    back = cli.json("branch", "restore", "--all-datasets", "feature")
    assert [move["dataset"] for move in back["moves"]] == ["raw.one", "raw.two"]
    assert cli.json("branch", "list") == before
    again = ("branch", "restore", "--all-datasets", "feature")
    assert cli.error(*again, code=3) == "deleted_branch_not_found"
    cli.ok("branch", "delete", "--all-datasets", "feature")
    cli.ok("branch", "create", "raw.two", "feature")
    refused = cli.json(*again, code=4)
    assert (refused["code"], refused["datasets"]) == ("restore_refused", ["raw.two"])
    cli.ok("branch", "restore", "raw.one", "feature")
    assert cli("branch", "restore", "raw.one").code == 2


def test_branch_create_and_reset_reach_a_transaction_of_a_deleted_branch(cli: Cli) -> None:
    first = put(cli, "a.txt", "1")
    cli.ok("branch", "create", "raw.scans", "gone")
    other = put(cli, "x.txt", branch="gone")
    cli.ok("branch", "delete", "raw.scans", "gone")
    made = cli.json("branch", "create", "raw.scans", "again", "--from", "master", "--at", other)
    assert (made["parent"], made["view"]) == ("master", other)
    moved = cli.json("branch", "reset", "raw.scans", "master", "--to", other)
    assert [(m["from"], m["to"]) for m in moved["moves"]] == [(first, other)]


def test_branch_reset_is_refused_where_it_would_lose_or_invent(cli: Cli) -> None:
    first = put(cli, "a.txt", "1")
    cli.ok("dataset", "create", "raw.other", "--kind", "files")
    other = put(cli, "x.txt", dataset="raw.other")
    words = ("branch", "reset", "raw.scans", "master", "--to")
    assert cli.error(*words, other, code=3) == "not_in_history"
    assert cli.error(*words, "t-none", code=3) == "transaction_not_found"
    open_one = cli.json("txn", "open", "raw.scans", "-b", "master")["transaction"]
    assert cli(*words, open_one).code == 4
    assert cli(*words, first).code == 4


def test_branch_reparent_mends_the_record_only(cli: Cli) -> None:
    view = put(cli, "a.txt")
    cli.ok("branch", "create", "raw.scans", "alone", "--root")
    mended = cli.json("branch", "reparent", "raw.scans", "alone", "--under", "master")
    assert (mended["parent"], mended["view"]) == ("master", None)
    assert cli.json("branch", "list", "raw.scans")[1]["view"] == view
    words = ("branch", "reparent", "raw.scans", "master", "--under", "alone")
    assert cli.error(*words, code=2) == "invalid"


@EMBEDDED_ONLY
def test_branch_protect_denies_until_it_is_taken_off(cli: Cli) -> None:
    view = put(cli, "a.txt")
    limited = cli.json("branch", "protect", "master", "--datasets", "gold.*,ref.*")
    assert limited["datasets"] == ["gold.*", "ref.*"]
    assert "protected" not in cli.ok("branch", "list").out
    assert cli.json("branch", "protect", "master") == {
        "name": "master",
        "protected": True,
        "datasets": ["*"],
    }
    local = str(cli.file("b.txt"))
    for words in (
        ("files", "put", "raw.scans", "-b", "master", local),
        ("files", "rm", "raw.scans", "-b", "master", "a.txt"),
        ("txn", "open", "raw.scans", "-b", "master"),
        ("branch", "delete", "raw.scans", "master", "--force"),
    ):
        assert cli.error(*words, code=5) == "branch_protected"
    assert cli.json("branch", "list")[0]["view"] == view
    assert cli.json("branch", "protect", "master", "--off")["protected"] is False
    cli.ok("files", "put", "raw.scans", "-b", "master", local)
