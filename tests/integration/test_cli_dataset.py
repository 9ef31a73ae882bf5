"""`headgate dataset` and `headgate tag`."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

import headgate
from headgate.catalog.publish import publish
from headgate.model.changes import AddTransaction, Caller, PublishRequest
from headgate.model.ids import mint_content, mint_version
from headgate.model.nouns import PublicationKind, TransactionType, Version
from tests.support.cli import Cli, new_store_cli, put


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    return new_store_cli(tmp_path, monkeypatch, capsys)


def publish_table(name: str, rows: int) -> None:
    """Publish an Iceberg table of some rows on master."""
    with headgate.open() as hg:
        warehouse = f"{hg.objects.url}/tables"
        catalog = SqlCatalog("made", uri="sqlite:///made.db", warehouse=warehouse)
        catalog.create_namespace_if_not_exists("made")
        columns = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
        table = catalog.create_table("made.orders", schema=columns)
        names = [f"[bold]{number}" for number in range(rows)]
        table.append(pa.table({"id": range(rows), "name": names}, schema=columns))
        catalog.close()
        branch = hg.dataset(name).create().branch("master").load()
        version = Version(
            id=mint_version(), location=table.metadata_location, content_id=mint_content()
        )
        change = AddTransaction(
            branch=branch.id,
            expected_head=None,
            expected_view=None,
            parent=None,
            type=TransactionType.SNAPSHOT,
            version=version,
        )
        request = PublishRequest(
            caller=Caller(actor="ana"), kind=PublicationKind.COMMIT, changes=(change,)
        )
        publish(hg.database, request)


def test_dataset_create_prints_the_noun(cli: Cli) -> None:
    made = cli.json("dataset", "create", "sales.orders", "-b", "trunk", "--create")
    assert made == {"dataset": "sales.orders", "kind": "table", "branches": ["trunk"]}
    assert cli.error("dataset", "create", "sales.orders", code=4) == "dataset_exists"


def test_dataset_create_takes_the_primary_branch_of_the_settings(cli: Cli) -> None:
    (cli.directory / "headgate.toml").write_text('[builds]\nbranch = "main"\n')
    assert cli.json("dataset", "create", "a.b")["branches"] == ["main"]


def test_dataset_list_shows_all_of_them(cli: Cli) -> None:
    cli.ok("dataset", "create", "a.`två ord`")
    assert cli.json("dataset", "list") == [
        {"dataset": "a.`två ord`", "kind": "table", "branches": ["master"]},
        {"dataset": "raw.scans", "kind": "files", "branches": ["master"]},
    ]
    assert "raw.scans" in cli.ok("dataset", "list").out


def test_dataset_list_of_an_empty_store_says_what_to_do(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.ok("init", "new")
    monkeypatch.chdir(cli.directory / "new")
    said = cli.ok("dataset", "list")
    assert said.out == "" and "headgate dataset create" in said.err


def test_dataset_show_of_files_counts_what_the_context_shows(cli: Cli) -> None:
    first = put(cli, "a.txt", "12345")
    put(cli, "b.txt", "123")
    cli.ok("branch", "create", "raw.scans", "old", "--at", first)
    now = cli.json("dataset", "show", "raw.scans")
    then = cli.json("dataset", "show", "raw.scans", "-b", "missing>old")
    assert (now["context"], now["files"], now["bytes"]) == ("master", 2, 8)
    assert (then["shown"]["transaction"], then["files"], then["bytes"]) == (first, 1, 5)
    assert "2 files, 8 B" in cli.ok("dataset", "show", "raw.scans").err


def test_dataset_show_at_a_moment_and_in_a_transaction(cli: Cli) -> None:
    put(cli, "a.txt")
    [newest, *_] = cli.json("log")
    put(cli, "b.txt")
    moment = cli.json("dataset", "show", "raw.scans", "-b", f"master@{newest['publication']}")
    by_time = cli.json("dataset", "show", "raw.scans", "-b", f"master@{newest['at']}")
    assert moment["files"] == by_time["files"] == 1
    txn = cli.ok("txn", "open", "raw.scans", "-b", "master").out.strip()
    cli.ok("files", "put", "raw.scans", "--txn", txn, str(cli.file("c.txt")))
    inside = cli.json("dataset", "show", "raw.scans", "-b", f"txn:{txn}")
    assert (inside["files"], inside["shown"]["state"]) == (3, "OPEN")
    assert cli.json("dataset", "show", "raw.scans")["files"] == 2


def test_dataset_show_of_an_empty_branch_shows_nothing(cli: Cli) -> None:
    shown = cli.json("dataset", "show", "raw.scans")
    assert (shown["shown"], shown["files"]) == (None, 0)
    assert "no transaction is committed on master" in cli.ok("dataset", "show", "raw.scans").err


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_dataset_show_of_a_table_has_columns_and_rows_without_a_jvm(cli: Cli) -> None:
    publish_table("sales.orders", rows=5)
    shown = cli.json("dataset", "show", "sales.orders", "--rows", "2")
    assert shown["schema"] == [
        {"name": "id", "type": "long", "required": True},
        {"name": "name", "type": "string", "required": False},
    ]
    assert shown["rows"] == [{"id": 0, "name": "[bold]0"}, {"id": 1, "name": "[bold]1"}]
    said = cli.ok("dataset", "show", "sales.orders", "--rows", "9")
    assert "[bold]4" in said.out and "long" in said.out


def test_dataset_show_of_an_empty_table_has_no_columns(cli: Cli) -> None:
    cli.ok("dataset", "create", "sales.orders")
    shown = cli.json("dataset", "show", "sales.orders", "--rows", "3")
    assert (shown["schema"], shown["rows"], shown["shown"]) == ([], [], None)


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (["raw.scans", "-b", "a>a"], 2, "invalid_context"),
        (["raw.scans", "-b", "job:x:1"], 2, "invalid_context"),
        (["raw.scans", "-b", "txn:t-none"], 3, "transaction_not_found"),
        (["raw.none"], 3, "dataset_not_found"),
    ],
)
def test_dataset_show_of_what_cannot_be_shown_says_why(
    cli: Cli, words: list[str], code: int, error: str
) -> None:
    assert cli.error("dataset", "show", *words, code=code) == error


def test_tag_create_list_and_delete(cli: Cli) -> None:
    txn = put(cli, "a.txt")
    noun = {"dataset": "raw.scans", "name": "2026/q3", "transaction": txn}
    assert cli.json("tag", "create", "raw.scans", "2026/q3", "--at", txn) == noun
    assert cli.json("tag", "list") == cli.json("tag", "list", "raw.scans") == [noun]
    assert "2026/q3" in cli.ok("tag", "list").out
    assert cli.error("tag", "create", "raw.scans", "2026/q3", "--at", txn, code=4) == "exists"
    cli.ok("tag", "delete", "raw.scans", "2026/q3")
    assert cli.error("tag", "delete", "raw.scans", "2026/q3", code=3) == "tag_not_found"
    assert cli.json("tag", "list") == []


def test_tag_of_what_is_not_of_the_dataset_or_not_committed_is_refused(cli: Cli) -> None:
    cli.ok("dataset", "create", "raw.other", "--kind", "files")
    mine = put(cli, "a.txt")
    open_one = cli.json("txn", "open", "raw.scans", "-b", "master")["transaction"]
    words = ("tag", "create", "raw.other", "x", "--at", mine)
    assert cli.error(*words, code=3) == "not_in_history"
    assert cli("tag", "create", "raw.scans", "x", "--at", open_one).code == 4
    assert cli("tag", "create", "raw.scans", "x", "--at", "t-none").code == 3
