"""The command `headgate`: which commands there are, and where each one lives.

A command's module is imported only when that command is asked for, so that `headgate --help`
loads nothing that it does not show.
"""

from __future__ import annotations

import difflib
import gc
import io
import itertools
import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import typer
from typer.core import TyperGroup

from headgate.cli.failing import tell, tell_bug, tell_usage
from headgate.cli.sparing import spare_pandas
from headgate.errors import HeadgateError

# name → (module, one line for --help). The order is the one people meet them in.
COMMANDS: dict[str, tuple[str, str]] = {
    "init": ("init", "Make a store: headgate.toml and an embedded catalog."),
    "demo": ("demo", "Watch a branch, a build, a merge and a promotion on real Spark."),
    "dataset": ("dataset", "Create, list, show and register datasets."),
    "branch": ("branch", "Create, list, delete, reset, reparent and protect branches."),
    "tag": ("tag", "Pin a transaction under a name."),
    "txn": ("txn", "Open, commit, abort and show transactions."),
    "files": ("files", "Put, get, list and remove files of a files dataset."),
    "history": ("history", "The transactions of a branch, newest first."),
    "log": ("log", "Publications: everything that changed what a branch shows."),
    "status": ("status", "What became of an operation, by its idempotency key."),
    "diff": ("diff", "What differs between two branches or transactions."),
    "sql": ("sql", "Spark SQL on a branch context."),
    "schema": ("schema", "What tables are and what must hold of their rows, from a file."),
    "mutate": ("mutate", "Change rows of many tables by SQL, in one publication."),
    "load": ("load", "Load files into tables: append, merge by key, or overwrite."),
    "merge": ("merge", "Merge a branch into another, row by row."),
    "optimize": ("optimize", "Write a table's small files together; its rows stay the same."),
    "jobspecs": ("jobspecs", "Publish transforms from Git, and list what is published."),
    "plan": ("plan", "What a build would do, and why."),
    "build": ("build", "Run JobSpecs on a branch."),
    "builds": ("builds", "List, show and cancel builds."),
    "task": ("task", "Check, extract, register, run and serve workspace tasks."),
    "serve": ("serve", "Serve the store to a team: pages, HTTP API, Iceberg."),
    "token": ("token", "Create, list and revoke bearer tokens for the server."),
    "recover": ("recover", "Settle what crashed owners left behind."),
    "cleanup": ("cleanup", "Condemn and sweep what no branch needs."),
    "doctor": ("doctor", "Check a store from end to end."),
    "migrate": ("migrate", "Bring the catalog's schema to this release."),
}


_COMMENTS = ("-- ", "--\t", "--\n")


class _LazyGroup(TyperGroup):
    """Knows its commands by name and loads one only to use it."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for name, (module, _) in COMMANDS.items() if find_spec(_path(module))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.list_commands(ctx):
            return None
        loaded = import_module(_path(COMMANDS[cmd_name][0]))
        # One look for all: plain, since Rich's takes longer to load than the rest of `--help`,
        # and without options that install completion for a part of the command line.
        loaded.app.rich_markup_mode = None
        loaded.app._add_completion = False
        command = typer.main.get_command(loaded.app)
        command.name = cmd_name
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if near := _nearest(args[0], self.list_commands(ctx)):
            ctx.fail(f"No such command {args[0]!r}. Did you mean {near!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])


def _path(module: str) -> str:
    return f"headgate.cli.{module}"


def _nearest(word: str, known: Sequence[str]) -> str | None:
    """What somebody may have meant by a word that is no command."""
    if word in known:
        return None
    return next(iter(difflib.get_close_matches(word, known, n=1)), None)


app = typer.Typer(
    cls=_LazyGroup,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Branches, transactions and fenced publication for Spark data pipelines.",
    epilog="`headgate COMMAND --help` explains a command with an example; `headgate init` begins.",
)


@app.callback(invoke_without_command=True)
def root(
    ctx: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version and leave."),
) -> None:
    if version:
        from headgate import __version__  # noqa: PLC0415  (kept off the start-up path)

        typer.echo(f"headgate {__version__}")
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())
        raise typer.Exit


def main() -> None:
    """The entry point of the installed command."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that cannot show a character gets its number rather than an error.
        sys.stdout.reconfigure(errors="backslashreplace")
    # Rarely: a command makes what it keeps. At Python's 700, a plan of thousands of datasets
    # spends a third of its time looking for garbage that is not there.
    gc.set_threshold(50_000)
    spare_pandas(sys.argv[1:])
    logging.getLogger().addFilter(is_worth_showing)
    raise SystemExit(run(sys.argv[1:]))


def is_worth_showing(record: logging.LogRecord) -> bool:
    """Whether a log record is to be shown: Py4J logs Ctrl-C too, with a traceback, as an error."""
    return not record.getMessage().startswith("KeyboardInterrupt while sending command")


def run(words: Sequence[str]) -> int:
    """Does what the words ask for; every error a person can meet becomes an exit code here."""
    as_json = "--json" in itertools.takewhile(lambda word: word != "--", words)
    # SQL may begin with a comment; no option has a blank in its name.
    words = [f" {word}" if word.startswith(_COMMENTS) else word for word in words]
    try:
        code = _invoke(words)
        sys.stdout.flush()
        return code
    except HeadgateError as error:
        return tell(error, as_json=as_json)
    except typer.TyperException as error:
        return tell_usage(error, as_json=as_json)
    except (KeyboardInterrupt, typer.Abort):
        typer.echo("interrupted", err=True)
        return 130
    except BrokenPipeError:
        # The reader (`| head`) went away; there is nobody to tell, not even when Python flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        return tell_bug(error, as_json=as_json)


def _invoke(words: Sequence[str]) -> int:
    command = typer.main.get_command(app)
    try:
        with command.make_context("headgate", list(words)) as context:
            command.invoke(context)
    except typer.Exit as left:
        return left.exit_code
    return 0
