"""Output of commands, as one JSON document or as text, and the options that commands share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import orjson
from typer import Argument, Option, Typer

from headgate.errors import storage_error
from headgate.files.transfer import Progress as Report
from headgate.model.names import check_label

if TYPE_CHECKING:
    from rich.console import Console

# Upper bound of counts on the command line: databases take integers of 32 bits.
MAX_COUNT = 2**31 - 1
# Less than this is copied before a progress bar could be read.
_LONG_BYTES = 16 * 1024 * 1024
_LONG_FILES = 200


def _check_label(value: str | None) -> str | None:
    return check_label(value) if value is not None else None


def bare_id(value: str | None) -> str | None:
    """Return the id of a transaction or unit without the prefix of a context, `txn:`."""
    return value.removeprefix("txn:") if value is not None else None


DatasetArgument = Annotated[
    str, Argument(metavar="DATASET", help="Dataset name, such as sales.orders.")
]
JsonOption = Annotated[bool, Option("--json", help="Print one JSON document on stdout.")]
LimitOption = Annotated[
    int, Option("--limit", min=1, max=MAX_COUNT, help="Maximum number of rows.")
]
BranchOption = Annotated[str | None, Option("--branch", "-b", help="Branch name.")]
CreateOption = Annotated[bool, Option("--create", help="Accept a branch that does not exist yet.")]
ContextOption = Annotated[
    str | None, Option("--branch", "-b", help="Branch, chain `a>b`, moment `a@12`, or `txn:ID`.")
]
FallbackOption = Annotated[
    list[str] | None,
    Option("--fallback", metavar="A,B", help="Branches to read missing datasets from, in order."),
]
ActorOption = Annotated[
    str | None, Option("--actor", callback=_check_label, help="Record this actor.")
]
ColdOption = Annotated[
    bool, Option("--cold", help="Start another Spark than that of `headgate spark up`.")
]
AllowDirty = Annotated[
    bool, Option("--allow-dirty", help="Publish uncommitted changes, marked as not clean.")
]
KeyOption = Annotated[
    str | None,
    Option(
        "--idempotency-key",
        callback=_check_label,
        help="Run a repeated command with this key once.",
    ),
]


def command(function: Callable[..., None]) -> Typer:
    """Return the application of a command that has no subcommands."""
    app = Typer()
    app.command()(function)
    return app


def console() -> Console:
    """Return a console on stdout; it wraps lines on a terminal only."""
    from rich import console  # noqa: PLC0415  (slow)

    class Results(console.Console):
        def on_broken_pipe(self) -> None:
            # Rich would exit with code 1; a reader that closes the pipe is not a failure.
            raise BrokenPipeError

    shown = Results(highlight=False)
    return shown if shown.is_terminal else Results(highlight=False, width=10_000)


def show_json(value: Any) -> None:
    sys.stdout.write(orjson.dumps(value, default=str).decode() + "\n")


def note(text: str) -> None:
    """Write a line to stderr; stdout is for results."""
    sys.stderr.write(f"{text}\n")


def show_result(document: Any, text: str, *, json: bool) -> None:
    """Print a result as a JSON document to stdout, or as a line of text to stderr."""
    if json:
        show_json(document)
    else:
        note(text)


def show_line(text: str) -> None:
    """Write a result of one line to stdout, for `$(…)` in a shell."""
    sys.stdout.write(f"{text}\n")


def show_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str) -> None:
    """Print a plain table to stdout, or the sentence `empty` to stderr if it has no rows."""
    from rich.table import Table  # noqa: PLC0415  (slow)
    from rich.text import Text  # noqa: PLC0415  (slow)

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(Text(column), overflow="fold")
    for row in rows:
        table.add_row(*(Text("" if cell is None else str(cell)) for cell in row))
    if table.row_count:
        console().print(table)
    else:
        note(empty)


# By heading: the key of a value in a document, or a function that computes it.
Columns: TypeAlias = Mapping[str, str | Callable[[Any], Any]]


def show_list(
    documents: Sequence[Any], columns: Columns, *, empty: str, json: bool, document: Any = None
) -> None:
    """Print documents, or in their place `document`, as JSON; else a table of their values."""
    if json:
        show_json(documents if document is None else document)
        return
    rows = [[of(one) if callable(of) else one[of] for of in columns.values()] for one in documents]
    cells = ([", ".join(cell) if isinstance(cell, list) else cell for cell in row] for row in rows)
    show_table(list(columns), cells, empty=empty)


@contextmanager
def copy_progress(what: str, *, files: int, total_bytes: int) -> Iterator[Report | None]:
    """Show a progress bar and yield its callback; None off a terminal and for small copies."""
    from rich import progress  # noqa: PLC0415  (slow)
    from rich.console import Console  # noqa: PLC0415  (slow)

    console = Console(stderr=True)
    if not console.is_terminal or (total_bytes < _LONG_BYTES and files < _LONG_FILES):
        yield None
        return
    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
    )
    with progress.Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=total_bytes)
        yield lambda done, size: bar.update(
            task, completed=size, description=f"{what} {done}/{files} files"
        )


def count_text(count: int, one: str) -> str:
    """Return `1 file` or `2 files`."""
    return f"{count} {one}" if count == 1 else f"{count:,} {one}s"


@contextmanager
def translate_os_errors(local: Path) -> Iterator[None]:
    """Raise StorageUnavailable with the local path for an OSError in the block."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise storage_error(error, local) from error
