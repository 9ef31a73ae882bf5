"""Write docs/errors.md from the source of the errors: `python -m tools.make_errors`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

from headgate.cli.main import EXIT_CODES
from headgate.errors import HeadgateError, kinds
from headgate.server.api.conventions import STATUSES

TARGET = Path(__file__).resolve().parents[1] / "docs" / "errors.md"
_PREFACE = """\
# Errors

Written by `make docs` from the source of the errors; do not edit it by hand.

An error has a sentence that states what happened, why, and the next step; a stable `code`; and
facts for a program. In Python it is raised as a class of `headgate.errors`. The command line prints
`{"error", "code", …facts}` with `--json` and ends with the exit code of its family. A server
returns the same document with the status of its family.

The tables show the sentences, with `{names}` for what is filled in. An error whose sentence is
computed is described instead.
"""
# A field of a template; `{reason:.}` ends with a full stop.
_FIELD = re.compile(r"\{(\w+)[^}.]*(\.?)\}")


def make_errors() -> str:
    """Return the whole document: a section for each family, a row for each error."""
    return "\n".join([_PREFACE, *(_section(family) for family in EXIT_CODES)])


def _section(family: type[HeadgateError]) -> str:
    lines = [
        f"## {family.__name__}",
        "",
        f"{inspect.getdoc(family)} Exit code {EXIT_CODES[family]}, status {_status(family)}.",
        "",
        "| code | class | sentence |",
        "| --- | --- | --- |",
        *sorted(_rows(family)),
        "",
    ]
    return "\n".join(lines)


def _rows(family: type[HeadgateError]) -> Iterator[str]:
    for kind in kinds():
        if issubclass(kind, family):
            text = vars(kind).get("__doc__") or _FIELD.sub(r"{\1}\2", kind.template)
            note = "" if _status(kind) == _status(family) else f" Status {_status(kind)}."
            yield f"| `{kind.code}` | `{kind.__name__}` | {' '.join(text.split())}{note} |"


def _status(kind: type[HeadgateError]) -> int:
    return next(STATUSES[each] for each in kind.__mro__ if each in STATUSES)


if __name__ == "__main__":
    TARGET.write_text(make_errors())
    print(f"wrote {TARGET.name}")
