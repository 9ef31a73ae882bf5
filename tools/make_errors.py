"""Writes docs/errors.md from the errors themselves: `python -m tools.make_errors`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

from headgate import errors
from headgate.cli.exit_codes import EXIT_CODES
from headgate.errors import HeadgateError
from headgate.server.api.conventions import STATUSES

TARGET = Path(__file__).resolve().parents[1] / "docs" / "errors.md"
_PREFACE = """\
# Errors

Written by `make docs` from the errors themselves; change it there.

An error is a sentence that says what happened, to what, and what to do next; a stable `code`; and
facts for a program. In Python it is raised as a class of `headgate.errors`; the command line prints
`{"error", "code", …facts}` with `--json` and ends with the exit code of its family; a server
answers the same document with the status of its family.
"""


def make_errors() -> str:
    """The whole document: a section for each family, a row for each error."""
    return "\n".join([_PREFACE, *(_section(family) for family in EXIT_CODES)])


def _section(family: type[HeadgateError]) -> str:
    lines = [
        f"## {family.__name__}",
        "",
        f"{inspect.getdoc(family)} Exit code {EXIT_CODES[family]}, status {_status(family)}.",
        "",
        "| code | class | what it means |",
        "| --- | --- | --- |",
        *sorted(_rows(family)),
        "",
    ]
    return "\n".join(lines)


def _rows(family: type[HeadgateError]) -> Iterator[str]:
    for name in errors.__all__:
        found = getattr(errors, name)
        if not issubclass(found, family):
            continue
        said = " ".join((found.__doc__ or "").split())
        note = "" if _status(found) == _status(family) else f" Status {_status(found)}."
        yield f"| `{found.code}` | `{name}` | {said}{note} |"


def _status(kind: type[HeadgateError]) -> int:
    return next(STATUSES[each] for each in kind.__mro__ if each in STATUSES)


if __name__ == "__main__":
    TARGET.write_text(make_errors())
    print(f"wrote {TARGET.name}")
