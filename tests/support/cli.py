"""The command line in this process, without the time of a start: returns code and output."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headgate.cli.main import run

_VARIABLES = (
    "HEADGATE_URL",
    "HEADGATE_TOKEN",
    "HEADGATE_STORE_CATALOG",
    "HEADGATE_STORE_WAREHOUSE",
)


# For tests that need another actor than the token's, or an actor who is not an admin.
EMBEDDED_ONLY = pytest.mark.parametrize("cli", ["embedded"], indirect=True)


@dataclass(frozen=True, kw_only=True)
class Said:
    code: int
    out: str
    err: str


@dataclass(frozen=True, kw_only=True)
class Cli:
    """`headgate` as a user types it, in a directory of its own."""

    directory: Path
    capsys: pytest.CaptureFixture[str]

    def __call__(self, *words: str) -> Said:
        self.capsys.readouterr()
        code = run(words)
        captured = self.capsys.readouterr()
        return Said(code=code, out=captured.out, err=captured.err)

    def ok(self, *words: str) -> Said:
        """Run a command that must succeed."""
        said = self(*words)
        assert said.code == 0, said
        return said

    def json(self, *words: str, code: int = 0) -> Any:
        """Run with --json: stdout is exactly one document, on one line."""
        end = words.index("--") if "--" in words else len(words)
        said = self(*words[:end], "--json", *words[end:])
        assert said.code == code, said
        assert said.out.endswith("\n") and said.out.count("\n") == 1, said
        return json.loads(said.out)

    def error(self, *words: str, code: int) -> str:
        """Return the code of the error, which must be equal for people and programs."""
        document = self.json(*words, code=code)
        plain = self(*words)
        assert plain.code == code and plain.out == ""
        assert document["error"].split("\n")[0] in plain.err, (document, plain)
        return str(document["code"])

    def file(self, name: str, text: str = "hello") -> Path:
        """Write a local file to put."""
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path


def new_cli(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Cli:
    """A command line in an empty directory, with the actor ana."""
    monkeypatch.chdir(directory)
    monkeypatch.setenv("HEADGATE_ACTOR", "ana")
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return Cli(directory=directory, capsys=capsys)


def new_store_cli(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Cli:
    """A command line in a new store with the empty files dataset raw.scans."""
    cli = new_cli(directory, monkeypatch, capsys)
    cli.ok("init")
    cli.ok("dataset", "create", "raw.scans", "--kind", "files")
    return cli


def put(
    cli: Cli,
    path: str,
    text: str = "hello",
    *,
    branch: str = "master",
    dataset: str = "raw.scans",
) -> str:
    """Publish one file, and return the new view of the branch."""
    local = cli.file("local", text)
    words = ("files", "put", dataset, "-b", branch, str(local), path)
    return str(cli.json(*words)["moves"][0]["to"])
