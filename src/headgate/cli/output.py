"""What a command prints: one JSON document, or text for a person."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table
from rich.text import Text

from headgate.files.transfer import Progress as Report
from headgate.model.names import check_label

# More than anybody counts to, and less than what databases and loops take.
MOST = 2**31 - 1
# Wide enough that nothing is folded where no person reads it.
_UNFOLDED = 10_000


def _check_label(value: str | None) -> str | None:
    return check_label(value) if value is not None else None


def bare_id(value: str | None) -> str | None:
    """A transaction or unit, also where it is written as the context that it is: `txn:ID`."""
    return value.removeprefix("txn:") if value is not None else None


# The options that many commands share.
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
BranchOption = Annotated[str | None, typer.Option("--branch", "-b", help="Branch name.")]
ActorOption = Annotated[
    str | None, typer.Option("--actor", callback=_check_label, help="Who does this.")
]
KeyOption = Annotated[
    str | None,
    typer.Option(
        "--idempotency-key",
        callback=_check_label,
        help="A repeated request with this key is done once.",
    ),
]


class _Results(Console):
    def on_broken_pipe(self) -> None:
        # Rich would end the process with code 1; a reader that has enough is no failure.
        raise BrokenPipeError


def console() -> Console:
    """For results on stdout: lines are folded for a terminal, and left whole for a pipe."""
    shown = _Results(highlight=False)
    return shown if shown.is_terminal else _Results(highlight=False, width=_UNFOLDED)


def show_json(value: Any) -> None:
    sys.stdout.write(orjson.dumps(value, default=str).decode() + "\n")


def say(text: str) -> None:
    """A line for a person, with Rich's markup; on stderr, so that stdout stays for results."""
    Console(stderr=True, highlight=False).print(text, soft_wrap=True)


def note(text: str) -> None:
    """As `say`, for text with names and paths in it, whose brackets are no markup."""
    sys.stderr.write(f"{text}\n")


def show_line(text: str) -> None:
    """A result that is one word or line, for `$(…)` in a shell."""
    sys.stdout.write(f"{text}\n")


def show_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str) -> None:
    """A plain table; a sentence where there is nothing to show."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(Text(column), overflow="fold")
    for row in rows:
        table.add_row(*(Text("" if cell is None else str(cell)) for cell in row))
    if table.row_count:
        console().print(table)
    else:
        note(empty)


# A bar for long copies, where a person is watching.

# Less than this is copied before a bar could be read.
_LONG_BYTES = 16 * 1024 * 1024
_LONG_FILES = 200


@contextmanager
def copying(what: str, *, files: int, total_bytes: int) -> Iterator[Report | None]:
    """Gives what reports progress; None off a terminal, and for what is copied at once."""
    console = Console(stderr=True)
    if not console.is_terminal or (total_bytes < _LONG_BYTES and files < _LONG_FILES):
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, TransferSpeedColumn(), console=console, transient=True) as bar:
        task = bar.add_task(what, total=total_bytes)
        yield lambda done, size: bar.update(
            task, completed=size, description=f"{what} {done}/{files} files"
        )
