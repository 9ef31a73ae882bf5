"""Writes docs/reference.md from the command line's own help: `python -m tools.make_reference`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from headgate.cli.main import app

TARGET = Path(__file__).resolve().parents[1] / "docs" / "reference.md"
_WIDTH = 100
_PREFACE = """\
# Command line

Written by `make docs` from the commands' own help; change it there.

Every command takes `--json`: then stdout is one JSON document and nothing else, and what is said
to a person goes to stderr. No command asks a question. Without `--json`, an error is a sentence on
stderr; with it, `{"error", "code", …facts}` on stdout.

| exit code | meaning |
| --- | --- |
| 0 | done |
| 1 | the work failed: a build, a task, a check |
| 2 | bad usage or input |
| 3 | not found |
| 4 | conflict, fence, or it exists already |
| 5 | denied |
| 6 | unavailable |

A command that publishes takes `--idempotency-key`: repeated with the same key by the same actor it
gives the first answer again, and `headgate status KEY` tells what became of it. Who acts is
`--actor`, else `HEADGATE_ACTOR`, else the user of the operating system.
"""


def make_reference() -> str:
    """The whole document: the list of commands, then each one's help."""
    root = typer.main.get_command(app)
    context = _context(root, "headgate", None)
    sections = [_PREFACE, _block(context), *_sections(root, context)]
    return "\n".join(sections)


def _sections(group: Any, context: Any, level: int = 2) -> Iterator[str]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        inner = _context(command, name, context)
        yield f"{'#' * level} {inner.command_path}\n"
        yield _block(inner)
        if hasattr(command, "list_commands"):
            yield from _sections(command, inner, level + 1)


def _context(command: Any, name: str, parent: Any) -> Any:
    # Resilient, so that arguments that a command needs are not missed.
    return command.make_context(
        name, [], parent=parent, resilient_parsing=True, terminal_width=_WIDTH
    )


def _block(context: Any) -> str:
    return f"```text\n{context.get_help().rstrip()}\n```\n"


if __name__ == "__main__":
    TARGET.write_text(make_reference())
    print(f"wrote {TARGET.name}")
