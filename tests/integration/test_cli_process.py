"""The command as a process: its behavior in a shell, a pipe and a script."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cli import Cli, new_store_cli, put
from tests.support.source import PACKAGE

COMMAND = [sys.executable, "-c", "from headgate.cli.main import main; main()"]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    return new_store_cli(tmp_path, monkeypatch, capsys)


def headgate(cli: Cli, *words: str | bytes, **environ: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*COMMAND, *words],
        cwd=cli.directory,
        env={**os.environ, "PYTHONPATH": str(PACKAGE.parent), **environ},
        capture_output=True,
        check=False,
    )


def test_process_with_json_prints_one_document_and_nothing_else(cli: Cli) -> None:
    done = headgate(cli, "dataset", "create", "sales.orders", "--json", HEADGATE_ACTOR="bo")
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout)["dataset"] == "sales.orders"
    assert cli.json("log", "--actor", "bo")[0]["kind"] == "create"


def test_process_with_an_argument_that_is_not_unicode_refuses_it(cli: Cli) -> None:
    done = headgate(cli, "dataset", "create", b"sales.\xff", "--json")
    assert done.returncode == 2
    assert json.loads(done.stdout)["code"] == "invalid_name"


def test_process_whose_reader_went_away_ends_quietly(cli: Cli) -> None:
    read, write = os.pipe()
    os.close(read)
    process = subprocess.Popen(
        [*COMMAND, "dataset", "list"],
        cwd=cli.directory,
        env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)},
        stdout=write,
        stderr=subprocess.PIPE,
    )
    os.close(write)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (0, b"")


def test_process_on_a_terminal_without_unicode_shows_a_tree(cli: Cli) -> None:
    put(cli, "a.txt")
    ascii_only = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C"}
    for words in (["branch", "list"], ["log"]):
        done = headgate(cli, *words, **ascii_only)
        assert done.returncode == 0, done.stderr
        assert b"master" in done.stdout
