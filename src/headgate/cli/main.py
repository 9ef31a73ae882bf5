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
from typing import Any

import typer
from typer.core import TyperGroup

from headgate.cli.exit_codes import tell, tell_bug, tell_usage
from headgate.errors import HeadgateError

# Commands on rows without pandas, which Arrow loads with the first array that it makes.

# They run no code but ours, and none of ours makes a pandas object.
_WITHOUT_PANDAS = ("load", "merge", "mutate", "optimize", "schema")


def spare_pandas(words: Sequence[str]) -> None:
    """Makes it that pandas is not installed, for the process of a command on rows.

    Loading it takes 0.4 s, a quarter of a small mutation. Spark's own client may need it.
    """
    by_spark = any(word in ("spark", "--engine=spark") for word in words)
    if words and words[0] in _WITHOUT_PANDAS and not by_spark and "pandas" not in sys.modules:
        sys.meta_path.insert(0, _WithoutPandas())


class _WithoutPandas:
    """A finder of modules that denies pandas."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("pandas is not needed here", name=name)


# name → (module:Typer application, one line for --help), in the order in which people meet them.
COMMANDS: dict[str, tuple[str, str]] = {
    "init": ("init:app", "Make a store: headgate.toml and an embedded catalog."),
    "demo": ("demo:app", "Watch a branch, a build, a merge and a promotion on real Spark."),
    "dataset": ("dataset:app", "Create, list, show and register datasets."),
    "branch": ("branch:branch_app", "Create, list, delete, reset, reparent and protect branches."),
    "tag": ("branch:tag_app", "Pin a transaction under a name."),
    "txn": ("txn:app", "Open, commit, abort and show transactions."),
    "files": ("files:app", "Put, get, list and remove files of a files dataset."),
    "history": ("log:history_app", "The transactions of a branch, newest first."),
    "log": ("log:log_app", "Publications: everything that changed what a branch shows."),
    "status": ("log:status_app", "What became of an operation, by its idempotency key."),
    "diff": ("log:diff_app", "What differs between two branches or transactions."),
    "sql": ("rows:sql_app", "Spark SQL on a branch context."),
    "schema": ("rows:schema_app", "What tables are and what must hold of their rows, from a file."),
    "mutate": ("rows:mutate_app", "Change rows of many tables by SQL, in one publication."),
    "load": ("rows:load_app", "Load files into tables: append, merge by key, or overwrite."),
    "merge": ("rows:merge_app", "Merge a branch into another, row by row."),
    "optimize": (
        "rows:optimize_app",
        "Write a table's small files together; its rows stay the same.",
    ),
    "jobspecs": ("jobspecs:app", "Publish transforms from Git, and list what is published."),
    "plan": ("build:plan_app", "What a build would do, and why."),
    "build": ("build:build_app", "Run JobSpecs on a branch."),
    "builds": ("build:builds_app", "List, show and cancel builds."),
    "task": ("task:app", "Check, extract, register, run and serve workspace tasks."),
    "serve": ("serve:serve_app", "Serve the store to a team: pages, HTTP API, Iceberg."),
    "token": ("serve:token_app", "Create, list and revoke bearer tokens for the server."),
    "recover": ("upkeep:recover_app", "Settle what crashed owners left behind."),
    "cleanup": ("upkeep:cleanup_app", "Condemn and sweep what no branch needs."),
    "doctor": ("upkeep:doctor_app", "Check a store from end to end."),
    "migrate": ("upkeep:migrate_app", "Bring the catalog's schema to this release."),
}


_COMMENTS = ("-- ", "--\t", "--\n")


class _LazyGroup(TyperGroup):
    """Knows its commands by name and loads one only to use it."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.list_commands(ctx):
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        loaded: typer.Typer = getattr(import_module(f"headgate.cli.{module}"), attribute)
        # One look for all: plain, since Rich's takes longer to load than the rest of `--help`,
        # and without options that install completion for a part of the command line.
        loaded.rich_markup_mode = None
        loaded._add_completion = False
        command = typer.main.get_command(loaded)
        command.name = cmd_name
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if near := _nearest(args[0], self.list_commands(ctx)):
            ctx.fail(f"No such command {args[0]!r}. Did you mean {near!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])


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
