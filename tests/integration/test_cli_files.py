"""`headgate files`: put, get, ls, rm."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headgate.cli.files import _is_stream
from tests.support.cli import EMBEDDED_ONLY, Cli, put


def a_directory(cli: Cli) -> Path:
    """Create a file, one in a subdirectory, an executable, and an empty directory."""
    source = cli.directory / "source"
    cli.file("source/top.txt", "top")
    cli.file("source/sub/data[1].csv", "1,2")
    cli.file("source/tool", "#!/bin/sh").chmod(0o755)
    (source / "empty").mkdir()
    return source


def paths(cli: Cli, *words: str) -> list[str]:
    return [file["path"] for file in cli.json("files", "ls", "raw.scans", *words)]


def test_put_of_a_file_is_one_publication(cli: Cli) -> None:
    local = str(cli.file("a.txt", "hello"))
    made = cli.json("files", "put", "raw.scans", "-b", "master", local, "in/b.txt")
    assert (made["kind"], made["actor"], len(made["moves"])) == ("commit", "ana", 1)
    digest = hashlib.sha256(b"hello").hexdigest()
    assert cli.json("files", "ls", "raw.scans") == [
        {"path": "in/b.txt", "size": 5, "digest": digest}
    ]
    again = cli.json("files", "put", "raw.scans", "-b", "master", local, "in/b.txt")
    assert (again["publication"], again["moves"]) == (None, [])


def test_put_without_a_path_takes_the_names_as_they_are(cli: Cli) -> None:
    cli.ok("files", "put", "raw.scans", "-b", "master", str(cli.file("a.txt")))
    cli.ok("files", "put", "raw.scans", "-b", "master", str(a_directory(cli)))
    cli.ok("files", "put", "raw.scans", "-b", "master", str(cli.file("b.txt")), ".")
    assert paths(cli) == ["a.txt", "b.txt", "empty/", "sub/data[1].csv", "tool", "top.txt"]


def test_put_and_get_of_a_directory_is_the_same_directory(cli: Cli) -> None:
    source = a_directory(cli)
    cli.ok("files", "put", "raw.scans", "-b", "master", str(source), "2026/")
    got = cli.json("files", "get", "raw.scans", "2026", "target")
    target = cli.directory / "target"
    assert [file["path"] for file in got] == paths(cli)
    assert (target / "sub" / "data[1].csv").read_text() == "1,2"
    assert os.access(target / "tool", os.X_OK) and (target / "empty").is_dir()
    said = cli.ok("files", "get", "raw.scans", ".", "all")
    assert (cli.directory / "all" / "2026" / "top.txt").read_text() == "top"
    assert said.out == "" and "in all" in said.err


def test_get_of_a_file_writes_it_under_the_given_name(cli: Cli) -> None:
    put(cli, "d/a.txt", "new")
    cli.file("here.txt", "old")
    cli.ok("files", "get", "raw.scans", "d/a.txt", "here.txt")
    cli.ok("files", "get", "raw.scans", "d/a.txt", "made/there.txt")
    assert (cli.directory / "here.txt").read_text() == "new"
    assert (cli.directory / "made" / "there.txt").read_text() == "new"
    assert sorted(p.name for p in (cli.directory / "made").iterdir()) == ["there.txt"]


def test_get_of_a_file_into_a_directory_keeps_its_name(cli: Cli) -> None:
    put(cli, "d/a.txt", "new")
    (cli.directory / "into").mkdir()
    cli.ok("files", "get", "raw.scans", "d/a.txt", "into")
    assert (cli.directory / "into" / "a.txt").read_text() == "new"


def test_get_never_writes_through_a_link(cli: Cli) -> None:
    put(cli, "a.txt", "new")
    cli.file("precious", "old")
    (cli.directory / "link").symlink_to("precious")
    cli.ok("files", "get", "raw.scans", "a.txt", "link")
    assert (cli.directory / "precious").read_text() == "old"
    assert not (cli.directory / "link").is_symlink()


def test_get_to_a_pipe_writes_to_it_and_leaves_it_there(cli: Cli) -> None:
    put(cli, "d/a.txt", "new")
    pipe = cli.directory / "pipe"
    os.mkfifo(pipe)
    # Open for both ends: neither blocks, and the pipe keeps the data for the reader.
    reader = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    try:
        cli.ok("files", "get", "raw.scans", "d/a.txt", "pipe")
        assert (os.read(reader, 100), pipe.is_fifo()) == (b"new", True)
    finally:
        os.close(reader)
    assert [path.name for path in cli.directory.glob(".headgate-*")] == []


def test_get_to_stdout_is_the_file_alone_whether_piped_or_redirected(cli: Cli) -> None:
    put(cli, "a.txt", "new")
    # Checked first: a command that replaces a device as root damages the machine.
    assert _is_stream(Path("/dev/stdout")) and _is_stream(Path("/dev/null"))
    words = [sys.executable, "-m", "headgate", "files", "get", "raw.scans", "a.txt", "/dev/stdout"]
    assert subprocess.check_output(words) == b"new"
    with (cli.directory / "there").open("wb") as there:
        subprocess.run(words, stdout=there, check=True)
    assert (cli.directory / "there").read_text() == "new"


@pytest.mark.parametrize("local", ["n" * 10_000, "file/below", "file/below/it"])
def test_get_to_where_nothing_can_be_written_says_so(cli: Cli, local: str) -> None:
    put(cli, "a.txt")
    cli.file("file", "old")
    for path in ("a.txt", "."):
        words = ("files", "get", "raw.scans", path, local)
        assert cli.error(*words, code=6) == "storage_unavailable"
    assert (cli.directory / "file").read_text() == "old"


def test_get_at_a_transaction_reads_the_past(cli: Cli) -> None:
    first = put(cli, "a.txt", "1")
    put(cli, "a.txt", "2")
    cli.ok("files", "get", "raw.scans", "a.txt", "then", "--at", first)
    cli.ok("files", "get", "raw.scans", "a.txt", "now", "-b", "master")
    assert (cli.directory / "then").read_text() == "1"
    assert (cli.directory / "now").read_text() == "2"
    assert paths(cli, "--at", first) == ["a.txt"]


def test_read_at_what_is_not_of_the_datasets_past_is_refused(cli: Cli) -> None:
    cli.ok("dataset", "create", "raw.other", "--kind", "files")
    mine = put(cli, "a.txt")
    aborted = cli.json("txn", "open", "raw.scans", "-b", "master")["transaction"]
    cli.ok("txn", "abort", aborted)
    assert cli.error("files", "ls", "raw.other", "--at", mine, code=3) == "not_in_history"
    words = ("files", "ls", "raw.scans", "--at", aborted)
    assert cli.error(*words, code=4) == "transaction_not_committed"


def test_ls_below_a_path_lists_only_that(cli: Cli) -> None:
    for path in ("a/1", "a/2/x", "ab", "b"):
        put(cli, path)
    assert paths(cli, "a") == paths(cli, "a/") == ["a/1", "a/2/x"]
    assert paths(cli, "ab") == ["ab"]
    assert cli.error("files", "ls", "raw.scans", "c", code=3) == "file_not_found"
    shown = cli.ok("files", "ls", "raw.scans", "a/1").out.splitlines()
    assert shown[1].split() == ["5", "B", hashlib.sha256(b"hello").hexdigest()[:12], "a/1"]


def test_rm_of_files_and_directories_is_a_delete(cli: Cli) -> None:
    for path in ("a/1", "a/2/x", "b", "c"):
        put(cli, path)
    moved = cli.json("files", "rm", "raw.scans", "-b", "master", "a/", "b")["moves"]
    assert paths(cli) == ["c"]
    assert cli.json("txn", "show", moved[0]["to"])["type"] == "DELETE"
    words = ("files", "rm", "raw.scans", "-b", "master", "b")
    assert cli.error(*words, code=3) == "file_not_found"


@EMBEDDED_ONLY
def test_put_with_a_key_is_done_once_and_tells_the_same_again(cli: Cli) -> None:
    words = ("files", "put", "raw.scans", "-b", "master", "a.txt", "--idempotency-key", "k1")
    cli.file("a.txt", "1")
    first = cli.json(*words)
    put(cli, "b.txt")
    assert cli.json(*words) == first
    assert cli.json("status", "k1")["publication"] == first["publication"]
    cli.file("a.txt", "2")
    assert cli.error(*words, code=2) == "idempotency_key_reused"
    bo = cli.json(*words, "--actor", "bo")
    assert bo["publication"] > first["publication"]


@pytest.mark.parametrize(
    "first",
    [
        ("branch", "create", "raw.scans", "feature"),
        ("branch", "delete", "raw.scans", "old"),
        ("branch", "delete", "--all-datasets", "old"),
        ("files", "rm", "raw.scans", "-b", "master", "a.txt"),
        ("dataset", "create", "raw.new"),
    ],
)
def test_command_with_a_key_repeated_when_it_could_not_be_done_again_succeeds(
    cli: Cli, first: tuple[str, ...]
) -> None:
    put(cli, "a.txt")
    cli.ok("branch", "create", "raw.scans", "old")
    answer = cli.json(*first, "--idempotency-key", "k")
    assert cli.json(*first, "--idempotency-key", "k") == answer
    assert cli(*first).code in {3, 4}


def test_writing_where_is_not_said_or_said_twice_is_bad_usage(cli: Cli) -> None:
    local = str(cli.file("a.txt"))
    assert cli("files", "put", "raw.scans", local).code == 2
    assert cli("files", "put", "raw.scans", local, "-b", "master", "--txn", "t-1").code == 2
    assert cli("files", "ls", "raw.scans", "-b", "master", "--txn", "t-1").code == 2
    txn = cli.json("txn", "open", "raw.scans", "-b", "master")["transaction"]
    words = ("files", "put", "raw.scans", local, "--txn", txn, "--idempotency-key", "k")
    assert "txn commit" in cli(*words).err


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (["raw.none", "-b", "master", "a.txt"], 3, "dataset_not_found"),
        (["raw.scans", "-b", "none", "a.txt"], 3, "branch_not_found"),
        (["raw.scans", "-b", "master", "none.txt"], 3, "not_found"),
        (["raw.scans", "--txn", "t-none", "a.txt"], 3, "transaction_not_found"),
        (["raw.table", "-b", "master", "a.txt"], 2, "invalid"),
        (["raw.scans", "-b", "master", "link"], 2, "unsafe_path"),
        (["raw.scans", "-b", "master", "n" * 10_000, "a"], 6, "storage_unavailable"),
        (["raw.scans", "-b", "master", "n" * 10_000], 6, "storage_unavailable"),
        (["raw.scans", "-b", "master", "a\0b", "a"], 2, "usage"),
    ],
)
def test_put_that_cannot_be_changes_nothing(
    cli: Cli, words: list[str], code: int, error: str
) -> None:
    cli.file("a.txt")
    (cli.directory / "link").symlink_to("a.txt")
    cli.ok("dataset", "create", "raw.table")
    before = cli.json("log")
    assert cli.error("files", "put", *words, code=code) == error
    assert cli.json("log") == before


def test_put_into_a_transaction_of_another_dataset_is_refused(cli: Cli) -> None:
    cli.ok("dataset", "create", "raw.other", "--kind", "files")
    txn = cli.json("txn", "open", "raw.other", "-b", "master")["transaction"]
    words = ("files", "put", "raw.scans", "--txn", txn, str(cli.file("a.txt")))
    assert cli.error(*words, code=3) == "not_in_history"


def test_put_into_a_branch_that_somebody_holds_is_a_conflict(cli: Cli) -> None:
    cli.ok("txn", "open", "raw.scans", "-b", "master", "--actor", "bo")
    words = ("files", "put", "raw.scans", "-b", "master", str(cli.file("a.txt")))
    assert cli.error(*words, code=4) == "open_transaction_exists"


def test_put_where_a_file_is_in_the_way_is_refused(cli: Cli) -> None:
    put(cli, "a")
    words = ("files", "put", "raw.scans", "-b", "master", str(cli.file("x")), "a/b")
    assert cli.error(*words, code=2) == "unsafe_path"


def test_rm_on_an_empty_branch_names_the_dataset(cli: Cli) -> None:
    found = cli.json("files", "rm", "raw.scans", "-b", "master", "a.txt", code=3)
    assert (found["code"], found["dataset"]) == ("file_not_found", "raw.scans")
