"""Invalid input and damaged stores: a message, a code, no change; never a traceback."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from headgate.catalog.migrate import NEWEST
from tests.support.cli import Cli, new_cli, new_store_cli, put
from tests.support.repositories import new_repository


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    return new_store_cli(tmp_path, monkeypatch, capsys)


RAW = "raw.people"


def shown(text: str) -> str:
    return ascii(text)[:30]


BAD_DATASETS = [
    *("", "x", ".", "..", "a.", ".b", "a..b", "a.b/../c", "a.`b", "a.b\\c"),
    *("a.\0", "a.b\n", "a.b\u200b", "a.\u202eb", " a.b", "a.b ", "a." + "x" * 10_000),
    # Cyrillic letters that look like Latin ones, full-width letters, an unpaired surrogate.
    *("sales.оrders", "sales.ｏrders", "sales.\udcff"),
]
BAD_BRANCHES = [
    *("", ".", "..", "a..b", "a//b", "/a", "a/", "-a", "a b", "a\\b", "a\0b", "a\nb"),
    *("mаster", "ｍaster", "a@1", "a>b", "x" * 10_000, "\udcff"),
]
BAD_PATHS = [
    *("..", "../x", "a/../b", "a/./b", "a//b", "/etc/passwd", "//x", "a\\b", "..\\x"),
    *("a\0b", "a\nb", "a\u202eb", "x" * 10_000, "/".join(["d" * 300, "x"]), "\udcff", "e\u0301"),
]


@pytest.mark.parametrize("name", BAD_DATASETS, ids=shown)
def test_dataset_with_a_bad_name_is_refused(cli: Cli, name: str) -> None:
    assert cli.error("dataset", "create", "--", name, code=2) == "invalid_name"
    assert len(cli.json("dataset", "list")) == 1


@pytest.mark.parametrize("name", BAD_BRANCHES, ids=shown)
def test_branch_with_a_bad_name_is_refused(cli: Cli, name: str) -> None:
    words = ("branch", "create", "raw.scans", "--from", "master")
    assert cli.error(*words, "--", name, code=2) == "invalid_name"
    assert len(cli.json("branch", "list")) == 1


@pytest.mark.parametrize("path", BAD_PATHS, ids=shown)
def test_file_with_a_bad_path_is_refused_before_anything_is_stored(cli: Cli, path: str) -> None:
    local = str(cli.file("a.txt"))
    for words in (
        ("files", "put", "raw.scans", "-b", "master", local, path),
        ("files", "rm", "raw.scans", "-b", "master", path),
        ("files", "get", "raw.scans", "-b", "master", path, "out"),
    ):
        assert cli.error(*words, code=2) == "unsafe_path"
    assert not (cli.directory / ".headgate" / "warehouse" / "objects").exists()
    assert len(cli.json("log")) == 1


@pytest.mark.parametrize("label", ["", "x" * 201, "a\x1b[31m", "a\nb", "\udcff", "a\0"], ids=shown)
@pytest.mark.parametrize("option", ["--actor", "--idempotency-key"])
def test_actor_or_key_that_a_terminal_would_obey_is_refused(
    cli: Cli, option: str, label: str
) -> None:
    words = ("dataset", "create", "a.b", option, label)
    assert cli.error(*words, code=2) == "invalid"


@pytest.mark.parametrize(
    "words",
    [
        ("txn", "show", "\udce9"),
        ("txn", "commit", "\udce9"),
        ("log", "--actor", "\udce9"),
        ("log", "--branch", "\udce9"),
        ("status", "\udce9"),
        ("status", "k", "--kind", "\udce9"),
        ("jobspecs", "show", "\udce9"),
        ("jobspecs", "list", "--branch", "\udce9"),
        ("builds", "show", "\udce9"),
        ("builds", "cancel", "\udce9"),
        ("token", "revoke", "\udce9"),
        ("merge", "\udce9", "--into", "master"),
        ("build", "raw.scans", "--task-key", "\udce9"),
        ("status", "a\0b"),
        ("log", "--actor", "a\0b"),
    ],
    ids=shown,
)
def test_text_in_another_encoding_is_refused_or_found_nowhere(cli: Cli, words: list[str]) -> None:
    said = cli(*words)
    assert said.code in (0, 2, 3), said
    assert "Traceback" not in said.err
    assert "defect" not in said.err


@pytest.mark.parametrize(
    "words",
    [
        ["nonsense"],
        ["branch", "nonsense"],
        ["branch", "create", "raw.scans"],
        ["branch", "create", "raw.scans", "a", "b"],
        ["branch", "create", "raw.scans", "a", "--nonsense"],
        ["branch", "reset", "raw.scans", "master"],
        ["history", "raw.scans", "--limit", "0"],
        ["history", "raw.scans", "--limit", "1.5"],
        ["log", "--limit", "many"],
        ["dataset", "create", "a.b", "--kind", "vew"],
        ["dataset", "show", "raw.scans", "--rows", "-1"],
    ],
)
def test_command_line_that_cannot_be_read_is_bad_usage(cli: Cli, words: list[str]) -> None:
    assert cli.error(*words, code=2) == "usage"


@pytest.mark.parametrize(
    "words",
    [
        "log --limit",
        "history raw.scans -b master --limit",
        "builds list --limit",
        "dataset show raw.scans --rows",
        "diff raw.scans --from master --to master --rows",
        "optimize raw.scans -b master --keep-snapshots",
        "txn open -b master --lease",
        "txn open raw.scans -b master --lease",
        "build a.b -b master --retries",
        "task start tasks.py -j",
    ],
)
def test_number_that_nobody_counts_to_is_bad_usage(cli: Cli, words: str) -> None:
    assert cli.error(*words.split(), "9" * 30, code=2) == "usage"


@pytest.mark.parametrize("text", ["0d", "0", "-1d", "36501d", "9" * 5000, "9" * 5000 + "d", "nan"])
def test_token_lasts_a_second_to_a_hundred_years_or_for_ever(cli: Cli, text: str) -> None:
    words = ("token", "create", "--actor", "ana", "--role", "reader", f"--expires={text}")
    assert cli.error(*words, code=2) == "invalid"
    assert cli.json("token", "list") == []
    assert cli.json(*words[:-1], "--expires", "36500d")["expires_at"]
    assert cli.json(*words[:-1], "--expires", "never")["expires_at"] is None


def test_command_that_is_misspelt_suggests_the_right_one(cli: Cli) -> None:
    assert "Did you mean 'branch'?" in cli("brnach").err


def test_outside_a_store_the_error_says_how_to_make_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cli = new_cli(tmp_path, monkeypatch, capsys)
    assert cli.error("dataset", "list", code=3) == "not_found"
    assert "headgate init" in cli("dataset", "list").err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[store]\ncatalg = 'x'\n", "Did you mean 'catalog'"),
        ("[stores]\n", "Did you mean 'store'"),
        ("[store]\ncatalog = 1\n", "must be a string"),
        ("[store\n", "cannot be read"),
    ],
)
def test_settings_that_cannot_be_read_are_bad_input(cli: Cli, text: str, said: str) -> None:
    (cli.directory / "headgate.toml").write_text(text)
    refused = cli("dataset", "list")
    assert refused.code == 2 and said in refused.err


@pytest.mark.parametrize("kept", [0, 1, 100, 4096, 0.5])
def test_catalog_that_was_cut_off_is_unavailable(cli: Cli, kept: float) -> None:
    catalog = cli.directory / ".headgate" / "catalog.db"
    content = catalog.read_bytes()
    catalog.write_bytes(content[: int(kept * len(content)) if kept == 0.5 else int(kept)])
    for words in (["dataset", "list"], ["dataset", "create", "a.b"], ["recover"]):
        assert cli.error(*words, code=6) == "catalog_broken"


def test_catalog_that_is_something_else_is_unavailable_and_left_alone(cli: Cli) -> None:
    catalog = cli.directory / ".headgate" / "catalog.db"
    catalog.write_text("this is a letter, not a database. " * 200)
    before = catalog.read_bytes()
    assert cli.error("dataset", "list", code=6) == "catalog_broken"
    assert catalog.read_bytes() == before


def test_catalog_of_another_program_is_not_ours_to_use(cli: Cli) -> None:
    catalog = cli.directory / ".headgate" / "catalog.db"
    catalog.unlink()
    with closing(sqlite3.connect(catalog)) as connection:
        connection.execute("CREATE TABLE letters (text)")
    said = cli("dataset", "list")
    assert said.code == 6 and "not Headgate's" in said.err


def test_catalog_of_a_newer_release_is_refused_and_left_alone(cli: Cli) -> None:
    catalog = cli.directory / ".headgate" / "catalog.db"
    with closing(sqlite3.connect(catalog)) as connection:
        connection.execute("UPDATE store SET value = ? WHERE key = 'schema_version'", [NEWEST + 1])
        connection.commit()
    before = catalog.read_bytes()
    for words in (["dataset", "list"], ["dataset", "create", "a.b"], ["migrate"], ["recover"]):
        assert cli.error(*words, code=2) == "store_too_new"
    assert catalog.read_bytes() == before


@pytest.mark.parametrize("place", ["file/catalog.db", "missing/catalog.db", "directory"])
def test_catalog_where_none_can_be_is_unavailable(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    cli.file("file")
    (cli.directory / "directory").mkdir()
    monkeypatch.setenv("HEADGATE_STORE_CATALOG", place)
    assert cli.error("dataset", "list", code=6) == "catalog_broken"


def test_catalog_behind_a_server_that_does_not_answer_is_unavailable(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADGATE_STORE_CATALOG", "postgresql://ana@127.0.0.1:1/none")
    assert cli.error("dataset", "list", code=6) == "catalog_unavailable"


def test_warehouse_that_cannot_be_written_is_unavailable_and_publishes_nothing(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADGATE_STORE_WAREHOUSE", str(cli.file("file") / "warehouse"))
    words = ("files", "put", "raw.scans", "-b", "master", str(cli.file("a.txt")))
    assert cli.error(*words, code=6) == "storage_unavailable"
    assert len(cli.json("log")) == 1


def test_object_that_is_gone_or_damaged_is_named(cli: Cli) -> None:
    put(cli, "a.txt", "precious")
    digest = cli.json("files", "ls", "raw.scans")[0]["digest"]
    stored = cli.directory / f".headgate/warehouse/objects/sha256/{digest[:2]}/{digest[2:]}"
    stored.write_text("PRECIOUS")
    words = ("files", "get", "raw.scans", "a.txt", "out")
    assert cli.error(*words, code=6) == "object_corrupted"
    stored.unlink()
    assert cli.error(*words, code=3) == "object_not_found"
    assert not (cli.directory / "out").exists()


_SPEC = """\
from headgate.transforms import Output, transform_df

@transform_df(Output("sales.daily"))
def daily(ctx):
    return ctx.spark_session.range(1)
"""


def test_names_that_are_not_known_suggest_the_nearest(cli: Cli, tmp_path: Path) -> None:
    assert "Publish transforms first" in cli("plan", "--all").err
    put(cli, "2026/scan.txt", "1")
    cli.file("people.csv", "id,name\n1,Ana\n")
    cli.ok("load", "-b", "master", "raw.people=people.csv", "--create")
    work = new_repository(tmp_path / "work")
    work.write(daily=_SPEC)
    work.commit()
    cli.ok("jobspecs", "publish", "--repo", str(work.root), "--branch", "master")
    cli.ok("branch", "create", "raw.people", "feature", "--from", "master")
    cli.ok("branch", "delete", "raw.people", "feature")
    scans = ("raw.scans", "-b", "master")
    for words, near, code in (
        (("merge", "master", "--into", "other>master", "--datasets", "raw.poeple"), RAW, 3),
        (("files", "get", *scans, "2026/sacn.txt", "out"), "2026/scan.txt", 3),
        (("files", "ls", *scans, "2026/sacn.txt"), "2026/scan.txt", 3),
        (("files", "rm", *scans, "2026/sacn.txt"), "2026/scan.txt", 3),
        (("plan", "sales.dialy"), "sales.daily", 3),
        (("log", "--branch", "mastr"), "master", 3),
        (("branch", "restore", RAW, "featre"), "feature", 3),
        (("mutate", "-b", "master", f"update {RAW} set nmae = 'x'"), "name", 2),
        (("mutate", "-b", "master", f"insert into {RAW} (id, nmae) values (1, 'x')"), "name", 2),
    ):
        said = cli(*words)
        assert (said.code, f"did you mean '{near}'?" in said.err) == (code, True), said
    # A deleted branch has a log; a schema file that does not exist is said to be that.
    assert cli.json("log", "--branch", "feature")
    assert "(No such file or directory)" in cli("schema", "plan", "x.toml", "-b", "master").err
    assert "(any)" not in cli("jobspecs", "show", RAW).err
