"""The command `sql`: one statement, statements of stdin, or a prompt."""

import atexit
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from headgate import connection
from headgate.cli import output
from headgate.errors import GitUnusable, HeadgateError
from headgate.model.nouns import DatasetKind
from headgate.rows.answer import SqlEngine
from headgate.store.embedded import Store


@output.command
def sql(
    text: Annotated[
        str | None, typer.Argument(help="SQL statement; without one, a prompt, or stdin.")
    ] = None,
    context: output.ContextOption = None,
    engine: Annotated[
        SqlEngine,
        typer.Option("--engine", help="auto: DuckDB where its answers are known to equal Spark's."),
    ] = SqlEngine.AUTO,
    file: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write .parquet, .csv, .arrow or .jsonl.")
    ] = None,
    cold: output.ColdOption = False,
    actor: output.ActorOption = None,
    json: output.JsonOption = False,
) -> None:
    """Run a Spark SQL statement on a branch; a write is one publication.

    SELECTs that DuckDB is known to answer as Spark does start no JVM; stderr names the engine. The
    prompt completes names of datasets and columns; `\\d` lists tables, `\\d NAME` the columns of
    one, and `\\q` ends it. Statements end with `;`.

    Example: headgate sql -b "feature>master" "select * from sales.daily limit 5"
    """
    with connection.open(actor=actor, cold=cold) as hg:
        context = context or _primary_branch(hg)

        def run(statement: str) -> None:
            _run(hg, statement, context, engine, file, json=json)

        if text is not None:
            run(text)
        elif sys.stdin.isatty():
            _prompt(hg, context, run)
        else:
            for statement in _statements(sys.stdin):
                run(statement)


def _primary_branch(hg: Store) -> str:
    """Return the default context; note it if a build would take another branch, that of Git."""
    from headgate.builds.project import find_repository  # noqa: PLC0415  (only without -b)

    primary = checked_out = hg.settings.builds.branch
    # Outside of Git, and with a detached HEAD.
    with suppress(GitUnusable):
        checked_out = find_repository(Path.cwd()).branch()
    if checked_out != primary:
        here = f"{checked_out}>{primary}"
        output.note(f"branch: {primary}; -b '{here}' reads the branch that Git has checked out")
    return primary


def _run(
    hg: Store, text: str, context: str, engine: SqlEngine, file: Path | None, *, json: bool
) -> None:
    if text.startswith("\\d"):
        _describe(hg, context, text.removeprefix("\\d").strip(" ;"))
        return
    answer = hg.sql(text, branch=context, engine=engine, file=file)
    columns, rows = answer.result.columns, answer.result.rows
    why = f" ({answer.reason})" if answer.reason else ""
    output.note(f"engine: {answer.engine}{why}")
    if answer.written is not None:
        output.note(f"{output.count_text(answer.written, 'row')} in {file}")
    elif json:
        output.show_json(rows)
    elif columns:
        cells = ([row[name] for name in columns] for row in rows)
        output.show_table(columns, cells, empty="no rows")
    else:
        output.note("done")


def _prompt(hg: Store, context: str, run: Callable[[str], None]) -> None:
    """Read statements from a terminal until its end; an error ends only its statement."""
    _edit_lines(hg, context)
    for statement in _statements(_lines(context)):
        try:
            run(statement)
        except HeadgateError as error:
            output.note(f"error: {error.message}")
        except KeyboardInterrupt:
            output.note("interrupted")


def _lines(context: str) -> Iterator[str]:
    with suppress(EOFError):
        while True:
            try:
                yield input(f"{context}> ") + "\n"
            except KeyboardInterrupt:
                output.note("")


# Everything that can hide a `;`, or the `;` itself.
_PARTS = re.compile(
    r"'(?:[^'\\]|\\.)*(?:'|\Z)|\"[^\"]*(?:\"|\Z)|`[^`]*(?:`|\Z)|--[^\n]*|/\*.*?(?:\*/|\Z)|(;)",
    re.DOTALL,
)


def _statements(lines: Iterator[str]) -> Iterator[str]:
    """Yield statements as they are complete: at their `;`, and a command at the end of its line."""
    text = ""
    for line in lines:
        text += line
        while text.strip():
            is_command = text.lstrip().startswith("\\")
            ends = (found.end() for found in _PARTS.finditer(text) if found[1])
            end = len(text) if is_command else next(ends, None)
            if end is None:
                break
            statement, text = text[:end].strip().rstrip(";").rstrip(), text[end:]
            if statement in ("\\q", "\\quit"):
                return
            if statement:
                yield statement
    if text.strip():
        yield text.strip()


def _describe(hg: Store, context: str, name: str) -> None:
    if name:
        columns = hg.table(name, branch=context).columns
        shown = [(one.name, one.type, one.required) for one in columns]
        output.show_table(("column", "type", "required"), shown, empty="no columns")
    else:
        output.show_table(("table",), ([name] for name in _tables(hg)), empty="no tables")


def _tables(hg: Store) -> list[str]:
    return [str(one.name) for one in hg.datasets() if one.kind is not DatasetKind.FILES]


def _edit_lines(hg: Store, context: str) -> None:
    """Give the prompt a history and completion, where Python has readline."""
    try:
        import readline  # noqa: PLC0415  (not on every platform)
    except ImportError:
        return
    history = hg.settings.cache / "sql_history"
    with suppress(OSError):
        history.parent.mkdir(parents=True, exist_ok=True)
        history.touch(mode=0o600)
        readline.read_history_file(history)
        atexit.register(readline.write_history_file, history)
    readline.set_history_length(1000)
    tables = _tables(hg)

    def complete(word: str, state: int) -> str | None:
        line, near = readline.get_line_buffer(), list(tables)
        for name in tables if state == 0 else ():
            with suppress(HeadgateError):
                if name in line:
                    near += [one.name for one in hg.table(name, branch=context).columns]
        if state == 0:
            found[:] = sorted({name for name in near if name.startswith(word)})
        return found[state] if state < len(found) else None

    found: list[str] = []
    readline.set_completer(complete)
    readline.set_completer_delims(" \t\n,()=<>;")
    is_libedit = "libedit" in (readline.__doc__ or "")
    readline.parse_and_bind("bind ^I rl_complete" if is_libedit else "tab: complete")
