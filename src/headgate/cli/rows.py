"""`headgate sql`: Spark SQL on a branch context."""

from __future__ import annotations

import enum
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headgate import connection
from headgate.cli.output import (
    MOST,
    ActorOption,
    JsonOption,
    KeyOption,
    note,
    say,
    show_json,
    show_table,
)
from headgate.errors import Invalid
from headgate.model.names import listed
from headgate.spark.sql import run_sql

if TYPE_CHECKING:
    from headgate.rows.outcome import Outcome


# What the verbs on rows print: the publication and the counts, for people and programs.


class Engine(enum.StrEnum):
    """What does the work: this process, or Spark."""

    ARROW = "arrow"
    SPARK = "spark"


TimeoutOption = Annotated[
    float,
    typer.Option("--timeout", min=0, help="Seconds to go on when others change the branch."),
]
IfHeadOption = Annotated[
    list[str] | None,
    typer.Option(
        "--if-head",
        metavar="DATASET=TXN",
        help="Only while the branch shows this transaction; repeatable.",
    ),
]


def read_heads(given: list[str] | None) -> dict[str, str | None]:
    """`DATASET=TXN` as a mapping; `DATASET=` says that the branch shows nothing yet."""
    heads: dict[str, str | None] = {}
    for text in given or []:
        dataset, equals, transaction = text.partition("=")
        if not equals or not dataset:
            raise Invalid(
                f"--if-head {text!r} cannot be read: write DATASET=TXN, as in graph.person=t-0123.",
                value=text,
            )
        heads[dataset] = transaction or None
    return heads


def show_outcome(outcome: Outcome, *, json: bool) -> None:
    """One document, or a line for each dataset."""
    if json:
        show_json(outcome.to_json())
        return
    if outcome.publication is None:
        note("nothing changed, so nothing was published.")
        return
    note(f"publication {outcome.publication}:")
    show_counts(outcome)


def show_counts(outcome: Outcome) -> None:
    for name, counts in outcome.counts.items():
        note(
            f"  {name}: {counts.inserted:,} inserted, {counts.updated:,} updated, "
            f"{counts.deleted:,} deleted"
        )


# `headgate load`: files into tables.

load_app = typer.Typer()


class Mode(enum.StrEnum):
    APPEND = "append"
    MERGE = "merge"
    OVERWRITE = "overwrite"


@load_app.command()
def load(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="DATASET=FILE...", help="A file, a directory or `-`; a dataset may repeat."
        ),
    ],
    branch: Annotated[
        str, typer.Option("--branch", "-b", help="A branch, or one with fallbacks: `f>master`.")
    ],
    mode: Annotated[
        Mode, typer.Option("--mode", help="Add rows, merge by key, or put in place of all.")
    ] = Mode.APPEND,
    engine: Annotated[
        Engine, typer.Option("--engine", help="On this machine, or by Spark for much data.")
    ] = Engine.ARROW,
    if_head: IfHeadOption = None,
    timeout: TimeoutOption = 60.0,
    actor: ActorOption = None,
    key: KeyOption = None,
    json: JsonOption = False,
) -> None:
    """Load Parquet, CSV, JSON lines or Arrow files into tables: one publication for all of them.

    append: a key that is there already is an error. merge: rows with a known key are updated in
    the columns that the file has, others are added; of equal keys the last counts. overwrite:
    readers see all of the old rows or all of the new. Rows that do not fit are reported with file
    and line, and nothing is loaded.

    JSON: {"publication", "counts": {DATASET: {"inserted", "updated", "deleted"}}}.

    Example: headgate load -b master graph.person=people.csv graph.knows=edges/ --mode merge
    """
    given = _read_sources(sources)
    with connection.open(actor=actor) as hg:
        if engine is Engine.ARROW and (advice := hg.rows.advise(given)):
            note(advice)
        outcome = hg.load(
            branch,
            given,
            mode=mode,
            engine=engine,
            idempotency_key=key,
            if_head=read_heads(if_head),
            timeout_seconds=timeout,
        )
    show_outcome(outcome, json=json)


def _read_sources(sources: list[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for text in sources:
        dataset, equals, place = text.partition("=")
        if not equals or not dataset or not place:
            raise Invalid(
                f"{text!r} cannot be read: write DATASET=FILE, as in graph.person=people.csv.",
                value=text,
            )
        found.setdefault(dataset, []).append(place)
    if sum(places.count("-") for places in found.values()) > 1:
        raise Invalid("stdin can be read once: `-` is given twice.")
    return found


# `headgate merge`: a branch into another.

merge_app = typer.Typer()


@merge_app.command()
def merge(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The branch to merge from.")],
    into: Annotated[str, typer.Option("--into", help="The branch to merge into.")],
    datasets: Annotated[
        list[str] | None,
        typer.Option("--datasets", help="Only these: a,b; repeatable. Else all with SOURCE."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would come, and conflicts.")
    ] = False,
    timeout: TimeoutOption = 60.0,
    actor: ActorOption = None,
    key: KeyOption = None,
    json: JsonOption = False,
) -> None:
    """Merge a branch into another branch, all datasets in one publication.

    Where the target did not change, it takes the source's version as it is. Else tables with a
    key are merged row by row against the state that both sides began from. Rows that both sides
    changed differently, and rows that together break a constraint, are conflicts: all of them
    are listed (exit code 4) and the target stays as it was. A table without a key is merged only
    where one side did not change, or both only added rows. Trees of files are merged path by path.

    JSON: {"publication", "counts"}, or {"error", "code", "conflicts": [{"dataset", "kind", "key",
    "base", "source", "target", "reason"}]}.

    Example: headgate merge corrections --into master --dry-run
    """
    with connection.open(actor=actor) as hg:
        outcome = hg.merge(
            source,
            into=into,
            datasets=listed(",".join(datasets or ())),
            dry_run=dry_run,
            idempotency_key=key,
            timeout_seconds=timeout,
        )
    if dry_run and not json:
        note("no conflicts; merging would bring:" if outcome.counts else "there is nothing to do.")
        show_counts(outcome)
        return
    show_outcome(outcome, json=json)


# `headgate mutate`: change rows of many tables by SQL.

mutate_app = typer.Typer()


@mutate_app.command()
def mutate(
    branch: Annotated[
        str, typer.Option("--branch", "-b", help="A branch, or one with fallbacks: `f>master`.")
    ],
    sql: Annotated[
        str | None, typer.Argument(metavar="SQL", help="Statements, with `;` between them.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="A file of statements; `-` is stdin.")
    ] = None,
    if_head: IfHeadOption = None,
    timeout: TimeoutOption = 60.0,
    actor: ActorOption = None,
    key: KeyOption = None,
    json: JsonOption = False,
) -> None:
    """Run INSERT, UPDATE, DELETE, UPSERT and MERGE statements over many tables, as one publication.

    Each statement sees those before it; readers see all of them at once, or none. Keys,
    references, unique values, cardinality and enums are checked over the outcome. Updates and
    deletes whose rows somebody else changed meanwhile are a conflict; all else is tried again.

    JSON: {"publication", "counts": {DATASET: {"inserted", "updated", "deleted"}}}; publication is
    null where nothing changed.

    Example: headgate mutate -b master "update graph.person set age = 31 where id = 'ana'"
    """
    text = _read_script(sql, file)
    with connection.open(actor=actor) as hg:
        outcome = hg.mutate(
            branch,
            text,
            idempotency_key=key,
            if_head=read_heads(if_head),
            timeout_seconds=timeout,
        )
    show_outcome(outcome, json=json)


def _read_script(sql: str | None, file: Path | None) -> str:
    if (sql is None) == (file is None):
        raise Invalid("give the statements as an argument, or with --file; `--file -` is stdin.")
    if sql is not None:
        return sql
    assert file is not None
    try:
        raw = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        return raw.decode("utf-8-sig")
    except OSError as error:
        raise Invalid(f"{file} cannot be read: {error.strerror}.", file=str(file)) from error
    except UnicodeDecodeError as error:
        raise Invalid(
            f"{file} is not UTF-8 at byte {error.start}: save it as UTF-8.", file=str(file)
        ) from error


# `headgate optimize`: a table's small files written together.

optimize_app = typer.Typer()

_SAID = {
    "optimized": "publication {publication}: {before} files became {after}, "
    "{dropped} old Iceberg snapshots dropped",
    "unchanged": "nothing to do: {before} files",
    "skipped": "skipped: the branch has an OPEN transaction",
    "lost": "somebody else published meanwhile, so nothing was changed; try again later",
}


@optimize_app.command()
def optimize(
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="As in graph.person.")],
    branch: Annotated[str, typer.Option("--branch", "-b", help="Branch name.")],
    keep: Annotated[
        int,
        typer.Option(
            "--keep-snapshots", min=1, max=MOST, help="How many Iceberg snapshots to keep."
        ),
    ] = 100,
    engine: Annotated[
        Engine, typer.Option("--engine", help="On this machine, or by Spark for large tables.")
    ] = Engine.ARROW,
    actor: ActorOption = None,
    key: KeyOption = None,
    json: JsonOption = False,
) -> None:
    """Write a table's small files together, sorted by key; its rows and content id stay.

    It blocks nobody and loses every race itself; a branch with an OPEN transaction is skipped. A
    keyed table that has grown gets more buckets. Nothing downstream becomes stale.

    JSON: {"dataset", "branch", "state": optimized|unchanged|skipped|lost, "publication",
    "files": {"before", "after"}, "snapshots_dropped"}.

    Example: headgate optimize graph.person -b master
    """
    with connection.open(actor=actor) as hg:
        if engine is Engine.ARROW and (advice := hg.rows.advise_optimize(dataset, branch=branch)):
            note(advice)
        done = hg.rows.optimize(
            dataset, branch=branch, keep_snapshots=keep, engine=engine, idempotency_key=key
        )
    if json:
        show_json(done.to_json())
        return
    note(
        _SAID[done.state].format(
            publication=done.publication,
            before=done.files_before,
            after=done.files_after,
            dropped=done.snapshots_dropped,
        )
    )


# `headgate schema`: what tables are, from a file that is reviewed like code.

schema_app = typer.Typer(
    no_args_is_help=True, help="What tables are and what must hold of their rows, from a file."
)

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="A schema file in TOML.")]
OnBranch = Annotated[
    str, typer.Option("--branch", "-b", help="A branch, or one with fallbacks: `f>master`.")
]


@schema_app.command()
def plan(file: FileArgument, branch: OnBranch, json: JsonOption = False) -> None:
    """Show what applying a schema file to a branch would do; nothing is changed.

    JSON: {"branch", "datasets": [{"dataset", "steps"}]}; a dataset without steps stays as it is.

    Example: headgate schema plan graph.toml -b master
    """
    with connection.open() as hg:
        planned = hg.rows.plan_schema(file, branch=branch)
    if json:
        show_json(planned.to_json())
        return
    _show(planned.steps)


@schema_app.command()
def apply(
    file: FileArgument,
    branch: OnBranch,
    actor: ActorOption = None,
    key: KeyOption = None,
    json: JsonOption = False,
) -> None:
    """Make a branch's tables what a schema file says, all at once; rows that are there must fit.

    Other branches keep their tables as they are. Columns that the file no longer has are dropped;
    `renamed_from` keeps a column or a dataset under a new name.

    JSON: {"branch", "publication", "datasets": [{"dataset", "steps"}]}.

    Example: headgate schema apply graph.toml -b master
    """
    with connection.open(actor=actor) as hg:
        applied = hg.rows.apply_schema(file, branch=branch, idempotency_key=key)
    if json:
        show_json(applied.to_json())
        return
    _show(applied.steps)
    if applied.publication is not None:
        note(f"publication {applied.publication}")


def _show(steps: Mapping[str, Sequence[str]]) -> None:
    if not any(steps.values()):
        note("the tables are as the file says.")
    for dataset, taken in steps.items():
        for step in taken:
            note(f"{dataset}: {step}")


sql_app = typer.Typer()


@sql_app.command()
def sql(
    text: Annotated[str, typer.Argument(help="One SQL statement.")],
    context: Annotated[
        str | None,
        typer.Option("--branch", "-b", help="A branch, a chain `a>b`, or a moment `a@12`."),
    ] = None,
    actor: ActorOption = None,
    json: JsonOption = False,
) -> None:
    """Run one SQL statement; a write on a branch is a transaction and a publication.

    Example: headgate sql -b "feature>master" "select * from sales.daily limit 5"
    """
    with connection.open(actor=actor) as hg:
        result = run_sql(hg.spark(context or hg.settings.builds.branch), text)
    if json:
        show_json(result.rows)
    elif result.columns:
        rows = ([row[name] for name in result.columns] for row in result.rows)
        show_table(result.columns, rows, empty="no rows")
    else:
        say("done")
