"""`--help` of every command, and the few modules that it imports."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from headgate.cli.main import COMMANDS, app, run
from tests.support.source import PACKAGE

# Modules that make a command slow to start; `--help` needs none of them.
HEAVY = {"sqlalchemy", "pyspark", "pyarrow", "starlette", "orjson", "rich", "headgate.store"}
PUBLISHING = {
    *("dataset create", "branch create", "branch delete", "branch reset"),
    *("txn commit", "files put", "files rm"),
}


def commands() -> Iterator[tuple[str, Any]]:
    """Yield every command that does something, by the words that call it."""
    root = typer.main.get_command(app)
    context = root.make_context("headgate", [], resilient_parsing=True)
    yield from _below(root, context, "")


def _below(group: Any, context: Any, words: str) -> Iterator[tuple[str, Any]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if hasattr(command, "list_commands"):
            yield from _below(command, context, f"{words}{name} ")
        else:
            yield f"{words}{name}", command


@pytest.fixture(scope="module")
def all_commands() -> dict[str, Any]:
    return dict(commands())


def options(command: Any) -> set[str]:
    return {option for parameter in command.params for option in parameter.opts}


def test_every_command_takes_json_and_explains_itself_by_example(
    all_commands: dict[str, Any],
) -> None:
    assert len(all_commands) >= 30
    lacking = [
        words
        for words, command in all_commands.items()
        if "--json" not in options(command) or f"Example: headgate {words}" not in command.help
    ]
    assert lacking == []


def test_every_command_with_a_branch_spells_it_b_too(all_commands: dict[str, Any]) -> None:
    for words, command in all_commands.items():
        assert ("--branch" in options(command)) == ("-b" in options(command)), words


def test_every_publishing_command_takes_an_actor_and_an_idempotency_key(
    all_commands: dict[str, Any],
) -> None:
    for words in PUBLISHING:
        assert {"--actor", "--idempotency-key"} <= options(all_commands[words]), words


def test_command_applications_are_all_listed() -> None:
    """A command that is written and not listed could not be called."""
    written = {
        f"{file.stem}:{name}"
        for file in (PACKAGE / "cli").glob("*.py")
        for names in re.findall(
            r"^(\w*app) = (?:typer\.)?Typer\(|^@(?:output\.)?command\ndef (\w+)",
            file.read_text(),
            re.MULTILINE,
        )
        for name in filter(None, names)
        if file.stem != "main"
    }
    assert written == {place for place, _ in COMMANDS.values()}


def test_help_of_the_whole_loads_nothing_heavy() -> None:
    script = (
        "import sys; from headgate.cli.main import run; code = run(['--help']); "
        "print('LOADED', *sorted(sys.modules)); sys.exit(code)"
    )
    result = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": str(PACKAGE.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    shown, _, loaded = result.stdout.partition("LOADED")
    assert "Create a store" in shown and "headgate COMMAND --help" in shown
    assert HEAVY & set(loaded.split()) == set()


@pytest.mark.parametrize("words", [[], ["--help"]])
def test_help_of_the_whole_lists_the_commands(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 0
    shown = capsys.readouterr().out
    assert all(f"\n  {name} " in shown for name in ("init", "dataset", "branch", "files", "log"))


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("headgate ")
