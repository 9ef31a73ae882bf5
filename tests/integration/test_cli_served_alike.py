"""Every command prints the same JSON on a local store and as the client of a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headgate.connection import open as open_store
from tests.support.api import served_to_the_command_line
from tests.support.cli import Cli, new_store_cli, put
from tests.support.iceberg import Front
from tests.support.pipelines import build, files_spec, publish

_SCHEMA = '[dataset."t.a"]\ncolumns = {id = "long", n = "string"}\nkey = ["id"]\n'


@pytest.fixture
def filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Cli:
    """A store with an object of every kind, created on the store itself."""
    cli = new_store_cli(tmp_path, monkeypatch, capsys)
    at = put(cli, "a.csv", "1")
    cli.ok("branch", "create", "raw.scans", "feature", "--idempotency-key", "made")
    put(cli, "b.csv", "2", branch="feature")
    cli.ok("tag", "create", "raw.scans", "v1", "--at", at)
    cli.ok("branch", "create", "raw.scans", "release")
    cli.ok("branch", "protect", "release")
    cli.ok("token", "create", "--actor", "bo", "--role", "reader")
    cli.file("schema.toml", _SCHEMA)
    cli.ok("schema", "apply", "schema.toml", "-b", "master")
    cli.ok("mutate", "-b", "master", "insert into t.a (id, n) values (1, 'x'), (2, null)")
    cli.ok("branch", "create", "t.a", "feature")
    cli.ok("mutate", "-b", "feature", "update t.a set n = 'y' where id = 1")
    with open_store(tmp_path) as store:
        made = (files_spec("made.a", "raw.scans"), files_spec("made.b", "made.a"))
        for logic in ("1", "2"):
            publish(store, "master", *made, files_spec("made.held", logic=logic))
            build(store, "made.held")
        held = store.dataset("made.held").branch("master")
        held.reset(to=held.history()[1].id)
        build(store, "made.a", upstream=False)
    cli.ok("txn", "open", "raw.scans", "-b", "feature")
    return cli


def _asked(cli: Cli) -> list[tuple[str, ...]]:
    """Return every command that reads, and some that are rejected."""
    [branch] = [b for b in cli.json("branch", "list", "raw.scans") if b["name"] == "feature"]
    build_id = cli.json("builds", "list")[0]["build"]
    words = (
        "dataset list; dataset show raw.scans -b feature --rows 5; dataset show t.a --rows 5;"
        "branch list; branch list t.a; tag list; tag list raw.scans;"
        f"txn show {branch['head']}; files ls raw.scans -b feature;"
        "history raw.scans -b feature; history raw.scans -b feature --all; history t.a --limit 1;"
        "log; log --branch feature --kind commit --limit 2; status made;"
        "diff raw.scans --from master --to feature; diff t.a --from master --to feature --rows 3;"
        "diff --from master --to feature; diff feature; diff feature t.a --into master;"
        "schema plan schema.toml -b feature;"
        "merge feature --into master --datasets t.a --dry-run;"
        "jobspecs list; jobspecs list --branch none; jobspecs show made.a;"
        "plan made.b --upstream -b master; plan made.b -b feature --fallback master --graph dot;"
        "plan made.* -b master --explain; plan --all -b master; plan no.* -b master;"
        f"builds list; builds show {build_id}; recover --dry-run; cleanup --dry-run; doctor;"
        "dataset show no.such; branch list no.such; txn show t-none; log --dataset no.such;"
        "status nobody; builds show build-none; diff t.a --from none --to master;"
        "files ls raw.scans -b none; jobspecs show no.such; plan no.such -b master;"
        "dataset create raw.scans; branch create raw.scans feature; tag create raw.scans v1 --at x"
    )
    return [tuple(line.split()) for line in words.split(";")]


def test_command_on_a_served_store_prints_the_document_of_the_local_one(
    filled: Cli, front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = _asked(filled)
    here = [_said(filled, words) for words in asked]
    with served_to_the_command_line(filled.directory, front, monkeypatch):
        for words, said in zip(asked, here, strict=True):
            assert _said(filled, words) == said, words


def _said(cli: Cli, words: tuple[str, ...]) -> Any:
    said = cli(*words, "--json")
    assert said.out.count("\n") == 1, (words, said)
    return said.code, said.out
