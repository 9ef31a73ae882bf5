"""The `headgate` command: the table of commands, the entry point, and the exit codes of errors.

A command's module is imported only when that command runs, so that `headgate --help` stays fast.
"""

import difflib
import gc
import io
import itertools
import json
import logging
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextvars import Context
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from headgate import errors
from headgate.errors import HeadgateError

# name → (module:Typer application, one line for --help), in the order of first use.
COMMANDS: dict[str, tuple[str, str]] = {
    "init": ("init:init", "Create a store: headgate.toml and an embedded catalog."),
    "demo": ("demo:demo", "Run a worked example on Spark: branch, build, merge and promotion."),
    "dataset": ("dataset:app", "Create, list, show and register datasets."),
    "branch": ("branch:branch_app", "Create, list, delete, reset, reparent and protect branches."),
    "tag": ("branch:tag_app", "Create, list and delete tags of transactions."),
    "txn": ("txn:app", "Open, commit, abort and show transactions."),
    "files": ("files:app", "Put, get, list and remove files of a files dataset."),
    "history": ("log:history", "List the transactions of a branch, newest first."),
    "log": ("log:log", "List publications: every change of a branch."),
    "status": ("log:status", "Show the result of an operation by its idempotency key."),
    "diff": ("log:diff", "Compare two branches or transactions."),
    "sql": ("prompt:sql", "Run Spark SQL on a branch, by DuckDB or Spark; or open a prompt."),
    "schema": ("rows:schema_app", "Plan and apply table schemas and constraints from a file."),
    "mutate": ("rows:mutate", "Change rows of several tables with SQL, in one publication."),
    "load": ("rows:load", "Load files into tables: append, merge by key, or overwrite."),
    "merge": ("rows:merge", "Merge a branch into another, row by row."),
    "optimize": ("rows:optimize", "Compact a table's small files."),
    "jobspecs": ("jobspecs:app", "Publish transforms from Git; list and show JobSpecs."),
    "plan": ("build:plan", "Show what a build would run, and why."),
    "build": ("build:build", "Run JobSpecs on a branch."),
    "builds": ("build:builds_app", "List, show and cancel builds."),
    "task": ("task:app", "Check, extract, register, run workspace tasks, and start workers."),
    "spark": ("spark:app", "Keep a Spark warm for the commands of this store."),
    "serve": ("serve:serve", "Serve the store to a team: pages, HTTP API, Iceberg."),
    "token": ("serve:token_app", "Create, list and revoke bearer tokens for the server."),
    "recover": ("upkeep:recover", "Settle operations and transactions of crashed processes."),
    "cleanup": ("upkeep:cleanup", "Delete data that no branch needs, in two phases."),
    "doctor": ("upkeep:doctor", "Check the integrity of a store."),
    "backup": ("upkeep:backup", "Copy the catalog and every file that it names."),
    "restore-check": ("upkeep:restore_check", "Try a backup, without touching the store."),
    "restore": ("upkeep:restore", "Write a backup to a new catalog and its warehouse."),
    "migrate": ("upkeep:migrate", "Upgrade the catalog schema to this release."),
}
# These run no user code, and no code of Headgate uses pandas.
_WITHOUT_PANDAS = ("load", "merge", "mutate", "optimize", "schema", "sql")
_SQL_COMMENTS = ("-- ", "--\t", "--\n")


class _LazyGroup(TyperGroup):
    """A command group that imports a command's module only to run it."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.list_commands(ctx):
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        loaded: typer.Typer = getattr(import_module(f"headgate.cli.{module}"), attribute)
        # Plain text: Rich takes longer to load than the rest of `--help`. Completion is an
        # option of the whole command line, not of one command.
        loaded.rich_markup_mode = None
        loaded._add_completion = False
        command = typer.main.get_command(loaded)
        command.name = cmd_name
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        near = difflib.get_close_matches(args[0], COMMANDS, n=1)
        if args[0] not in COMMANDS and near:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])


app = typer.Typer(
    cls=_LazyGroup,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Branches, transactions and fenced publication for Spark data pipelines.",
    epilog="`headgate COMMAND --help` describes a command. Start with `headgate init`.",
)


@app.callback(invoke_without_command=True)
def root(
    ctx: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
) -> None:
    if version:
        from headgate import __version__  # noqa: PLC0415  (kept off the start-up path)

        typer.echo(f"headgate {__version__}")
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())
        raise typer.Exit


def main() -> None:
    """Run the command line; the entry point of the installed command."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A character that the terminal cannot encode is escaped instead of raising an error.
        sys.stdout.reconfigure(errors="backslashreplace")
    # A command keeps most objects that it makes. With Python's default of 700, a plan of
    # thousands of datasets spends a third of its time in garbage collection.
    gc.set_threshold(50_000)
    block_pandas(sys.argv[1:])
    logging.getLogger().addFilter(is_shown)
    raise SystemExit(run(sys.argv[1:]))


def block_pandas(words: Sequence[str]) -> None:
    """Make pandas not importable in the process of a command on rows.

    Arrow imports it with its first array, which takes 0.4 s: a quarter of a small mutation.
    Spark's own client may need it.
    """
    by_spark = any(word in ("spark", "--engine=spark") for word in words)
    if words and words[0] in _WITHOUT_PANDAS and not by_spark and "pandas" not in sys.modules:
        sys.meta_path.insert(0, _PandasBlocker())


class _PandasBlocker:
    """A module finder that rejects pandas, until Spark is used after all."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "pyspark" and self in sys.meta_path:
            sys.meta_path.remove(self)
        if name == "pandas":
            raise ModuleNotFoundError("pandas is not needed here", name=name)


def is_shown(record: logging.LogRecord) -> bool:
    """Return False for Py4J's error record, with a traceback, of a Ctrl-C or a lost connection."""
    return "while sending command" not in record.getMessage()


def run(words: Sequence[str]) -> int:
    """Run a command line; return its exit code, also for every error."""
    # `doubted` counts what this command has published, not its process.
    return Context().run(_run, words)


def _run(words: Sequence[str]) -> int:
    as_json = "--json" in itertools.takewhile(lambda word: word != "--", words)
    # An SQL argument may start with a comment; option names have no blank.
    words = [f" {word}" if word.startswith(_SQL_COMMENTS) else word for word in words]
    try:
        code = _invoke(words)
        sys.stdout.flush()
        return code
    except errors.Unavailable as error:
        from headgate.catalog.database import doubted  # noqa: PLC0415  (slow)

        return report_error(doubted(error), as_json=as_json)
    except HeadgateError as error:
        return report_error(error, as_json=as_json)
    except typer.TyperException as error:
        return report_usage_error(error, as_json=as_json)
    except (KeyboardInterrupt, typer.Abort):
        typer.echo("interrupted", err=True)
        return 130
    except BrokenPipeError:
        # The reader (`| head`) closed the pipe.
        _abandon_output()
        return 0
    except Exception as error:
        code = report_unexpected(error, as_json=as_json)
        try:
            sys.stdout.flush()
        except OSError:
            _abandon_output()
        return code


def _abandon_output() -> None:
    """Drop what stdout does not accept, so that Python's flush at exit does not fail either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _invoke(words: Sequence[str]) -> int:
    command = typer.main.get_command(app)
    try:
        with command.make_context("headgate", list(words)) as context:
            command.invoke(context)
    except typer.Exit as ended:
        return ended.exit_code
    return 0


# --- errors on stderr, or as JSON on stdout ---------------------------------------------------

EXIT_CODES: dict[type[HeadgateError], int] = {
    errors.WorkFailed: 1,
    errors.Invalid: 2,
    errors.NotFound: 3,
    errors.Conflict: 4,
    errors.Exists: 4,
    errors.Denied: 5,
    errors.Unavailable: 6,
}


def exit_code(error: HeadgateError) -> int:
    """Return the exit code of an error's family."""
    return next((code for family, code in EXIT_CODES.items() if isinstance(error, family)), 1)


def report_error(error: HeadgateError, *, as_json: bool) -> int:
    """Write an error to stderr, or as one JSON document to stdout; return the exit code."""
    if as_json:
        _write(error.to_json())
    else:
        sys.stderr.write(f"headgate: {error.message}\n")
    return exit_code(error)


def report_unexpected(error: Exception, *, as_json: bool) -> int:
    """Write an exception that no command handles: a failure of the machine, or a defect."""
    found = errors.find_known_error(error)
    if found is None:
        return report_defect(error, as_json=as_json)
    return report_error(found, as_json=as_json)


def report_usage_error(error: typer.TyperException, *, as_json: bool) -> int:
    """Write a command-line syntax error, with the usage unless as JSON; return the exit code."""
    if as_json:
        _write({"error": error.format_message(), "code": "usage"})
    elif show := getattr(error, "show", None):
        show()
    else:
        sys.stderr.write(f"headgate: {error.format_message()}\n")
    return error.exit_code


def report_defect(error: Exception, *, as_json: bool) -> int:
    """Write an unexpected exception with its traceback, which a bug report needs."""
    traceback.print_exception(error)
    if as_json:
        text = f"this is a defect of Headgate: {type(error).__name__}: {error}"
        _write({"error": text, "code": "defect"})
    else:
        sys.stderr.write("headgate: this is a defect of Headgate; report it with the traceback\n")
    return 1


def _write(document: Mapping[str, Any]) -> None:
    # Not orjson: a name that is not valid Unicode must not make its own error unprintable.
    text = json.dumps(document, default=str) + "\n"
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError:
        # The disk of the output is full, which may be the very error.
        sys.stderr.write(text)
