"""Commands on rows of tables: `load`, `merge`, `mutate`, `optimize` and `schema`."""

import enum
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

from typer import Argument, Option, Typer

from headgate import connection
from headgate.cli import output
from headgate.errors import Invalid
from headgate.model.names import split_names
from headgate.rows.outcome import Outcome


class Engine(enum.StrEnum):
    """Engine of a command: this process, or Spark."""

    ARROW = "arrow"
    SPARK = "spark"


EngineOption = Annotated[
    Engine, Option("--engine", help="Arrow on this machine, or Spark for large data.")
]
TimeoutOption = Annotated[
    float, Option("--timeout", min=0, help="Seconds to retry after concurrent changes.")
]
IfHeadOption = Annotated[
    list[str] | None,
    Option(
        "--if-head",
        metavar="DATASET=TXN",
        help="Fail unless the branch shows this transaction; repeatable.",
    ),
]


ChainOption = Annotated[
    str, Option("--branch", "-b", help="Branch, or chain with fallbacks `f>master`.")
]


def _read_pairs(
    texts: Iterable[str] | None, what: str, form: str, *, is_value: Callable[[str], object] = bool
) -> Iterator[tuple[str, str]]:
    """Yield the dataset and the value of each `DATASET=VALUE`."""
    for text in texts or ():
        dataset, equals, value = text.partition("=")
        if not equals or not dataset or not is_value(value):
            raise Invalid(f"invalid {what} {text!r}: write {form}.", value=text)
        yield dataset, value


def _read_heads(options: list[str] | None) -> dict[str, str | None]:
    """Return the mapping of `DATASET=TXN` options; `DATASET=` is an empty branch."""
    form = "DATASET=TXN, such as graph.person=t-0123"
    pairs = _read_pairs(options, "--if-head", form, is_value=lambda _: True)
    return {dataset: transaction or None for dataset, transaction in pairs}


def _show_outcome(outcome: Outcome, *, json: bool) -> None:
    if json:
        output.show_json(outcome.to_json())
        return
    if outcome.publication is None:
        output.note("nothing changed, so nothing was published.")
        return
    output.note(f"publication {outcome.publication}:")
    _show_counts(outcome)


def _show_counts(outcome: Outcome) -> None:
    for name, columns in outcome.created.items():
        shown = ", ".join(f"{column} {kind}" for column, kind in columns.items())
        output.note(f"  {name}: created ({shown})")
    for name, counts in outcome.counts.items():
        output.note(
            f"  {name}: {counts.inserted:,} inserted, {counts.updated:,} updated, "
            f"{counts.deleted:,} deleted"
        )


class Mode(enum.StrEnum):
    APPEND = "append"
    MERGE = "merge"
    OVERWRITE = "overwrite"


@output.command
def load(
    sources: Annotated[
        list[str],
        Argument(metavar="DATASET=FILE...", help="File, directory or `-` (stdin); repeatable."),
    ],
    branch: ChainOption,
    mode: Annotated[
        Mode, Option("--mode", help="Append, merge by key, or overwrite.")
    ] = Mode.APPEND,
    engine: EngineOption = Engine.ARROW,
    create: Annotated[
        bool, Option("--create", help="Create missing tables with the columns of their files.")
    ] = False,
    primary_key: Annotated[
        list[str] | None,
        Option(
            "--primary-key",
            metavar="DATASET=COLUMNS",
            help="Key of a created table: graph.person=id; repeatable.",
        ),
    ] = None,
    if_head: IfHeadOption = None,
    timeout: TimeoutOption = 60.0,
    cold: output.ColdOption = False,
    actor: output.ActorOption = None,
    key: output.KeyOption = None,
    json: output.JsonOption = False,
) -> None:
    """Load Parquet, CSV, JSON lines or Arrow files into tables, in one publication.

    append: an existing key is an error. merge: rows with an existing key are updated in the columns
    of the file, others are inserted; the last of equal keys wins. overwrite: readers see all old
    rows or all new rows. Invalid rows are reported with file and line, and nothing is loaded.

    --create: a table that the branch lacks is created in the same publication, with the columns of
    its files. The values of CSV decide their type: long, double, boolean, date, timestamp,
    timestamptz or string.

    JSON: {"publication", "counts": {DATASET: {"inserted", "updated", "deleted"}}}, and "created":
    {DATASET: {COLUMN: TYPE}} where tables were created.

    Example: headgate load -b master graph.person=people.csv graph.knows=edges/ --mode merge
    """
    files = _read_sources(sources)
    with connection.open(actor=actor, cold=cold) as hg:
        if engine is Engine.ARROW and (advice := hg.rows.advise(files)):
            output.note(advice)
        outcome = hg.load(
            branch,
            files,
            mode=mode,
            engine=engine,
            create=create,
            primary_key=_read_keys(primary_key),
            idempotency_key=key,
            if_head=_read_heads(if_head),
            timeout_seconds=timeout,
        )
    _show_outcome(outcome, json=json)


def _read_keys(options: list[str] | None) -> dict[str, list[str]]:
    """Return the mapping of `DATASET=COLUMNS` options."""
    form = "DATASET=COLUMNS, such as graph.person=id"
    pairs = _read_pairs(options, "--primary-key", form, is_value=split_names)
    return {dataset: list(split_names(columns)) for dataset, columns in pairs}


def _read_sources(sources: list[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    form = "DATASET=FILE, such as graph.person=people.csv"
    for dataset, place in _read_pairs(sources, "source", form):
        found.setdefault(dataset, []).append(place)
    if sum(places.count("-") for places in found.values()) > 1:
        raise Invalid("`-` is given twice: stdin can be read only once.")
    return found


@output.command
def merge(
    source: Annotated[
        str, Argument(metavar="SOURCE", help="Branch or COMMITTED transaction to merge from.")
    ],
    into: Annotated[str, Option("--into", help="Branch to merge into.")],
    datasets: Annotated[
        list[str] | None, Option("--datasets", help="Only these datasets: a,b; repeatable.")
    ] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Show changes and conflicts only.")] = False,
    timeout: TimeoutOption = 60.0,
    actor: output.ActorOption = None,
    key: output.KeyOption = None,
    json: output.JsonOption = False,
) -> None:
    """Merge a branch into another branch, all datasets in one publication.

    If the target did not change, it gets the source's version. Otherwise tables with a key are
    merged row by row against the merge base. Rows that both sides changed differently, and rows
    that together violate a constraint, are conflicts: all of them are listed (exit code 4) and the
    target does not change. A table without a key is merged only if one side did not change, or
    both only appended rows. Trees of files are merged path by path. A dataset that one branch
    renamed is merged under the new name.

    JSON: {"publication", "counts"}, or {"error", "code", "conflicts": [{"dataset", "kind", "key",
    "base", "source", "target", "reason"}]}.

    Example: headgate merge corrections --into master --dry-run
    """
    with connection.open(actor=actor) as hg:
        outcome = hg.merge(
            source,
            into=into,
            datasets=split_names(",".join(datasets or ())),
            dry_run=dry_run,
            idempotency_key=key,
            timeout_seconds=timeout,
        )
    if dry_run and not json:
        output.note("no conflicts; it would change:" if outcome.counts else "nothing to merge.")
        _show_counts(outcome)
        return
    _show_outcome(outcome, json=json)


@output.command
def mutate(
    branch: ChainOption,
    sql: Annotated[
        str | None, Argument(metavar="SQL", help="Statements, separated by `;`.")
    ] = None,
    file: Annotated[
        Path | None, Option("--file", "-f", help="File of statements; `-` is stdin.")
    ] = None,
    if_head: IfHeadOption = None,
    timeout: TimeoutOption = 60.0,
    actor: output.ActorOption = None,
    key: output.KeyOption = None,
    json: output.JsonOption = False,
) -> None:
    """Run INSERT, UPDATE, DELETE, UPSERT and MERGE statements on tables, in one publication.

    Each statement sees the changes of earlier ones; readers see all changes or none. Keys,
    references, unique values, cardinality and enums are checked on the result. Updates and deletes
    of rows that changed concurrently are a conflict; other concurrent changes cause a retry.

    JSON: {"publication", "counts": {DATASET: {"inserted", "updated", "deleted"}}}; publication is
    null if nothing changed.

    Example: headgate mutate -b master "update graph.person set age = 31 where id = 'ana'"
    """
    text = _read_script(sql, file)
    with connection.open(actor=actor) as hg:
        outcome = hg.mutate(
            branch, text, idempotency_key=key, if_head=_read_heads(if_head), timeout_seconds=timeout
        )
    _show_outcome(outcome, json=json)


def _read_script(sql: str | None, file: Path | None) -> str:
    if (sql is None) == (file is None):
        raise Invalid("give the statements as an argument or with --file; `--file -` is stdin.")
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


_OPTIMIZE_NOTES = {
    "optimized": "publication {publication}: {files} became {after}, {snapshots} expired",
    "unchanged": "nothing to do: {files}",
    "skipped": "skipped: the branch has an OPEN transaction",
    "lost": "lost to a concurrent publication: nothing was changed; retry later",
}


@output.command
def optimize(
    dataset: output.DatasetArgument,
    branch: Annotated[str, Option("--branch", "-b", help="Branch name.")],
    keep: Annotated[
        int,
        Option("--keep-snapshots", min=1, max=output.MAX_COUNT, help="Iceberg snapshots to keep."),
    ] = 100,
    engine: EngineOption = Engine.ARROW,
    cold: output.ColdOption = False,
    actor: output.ActorOption = None,
    key: output.KeyOption = None,
    json: output.JsonOption = False,
) -> None:
    """Compact a table's small files, sorted by key; its rows and content id do not change.

    It never blocks a writer. If another publication changes the table first, the state is `lost`;
    a branch with an OPEN transaction is `skipped`; both exit with 0. A keyed table that has grown
    gets more buckets. Downstream datasets do not become stale.

    JSON: {"dataset", "branch", "state": optimized|unchanged|skipped|lost, "publication",
    "files": {"before", "after"}, "snapshots_dropped"}.

    Example: headgate optimize graph.person -b master
    """
    with connection.open(actor=actor, cold=cold) as hg:
        if engine is Engine.ARROW and (advice := hg.rows.advise_optimize(dataset, branch=branch)):
            output.note(advice)
        done = hg.rows.optimize(
            dataset, branch=branch, keep_snapshots=keep, engine=engine, idempotency_key=key
        )
    text = _OPTIMIZE_NOTES[done.state].format(
        publication=done.publication,
        files=output.count_text(done.files_before, "file"),
        after=done.files_after,
        snapshots=output.count_text(done.snapshots_dropped, "old Iceberg snapshot"),
    )
    output.show_result(done.to_json(), text, json=json)


schema_app = Typer(
    no_args_is_help=True, help="Plan and apply table schemas and constraints from a file."
)

FileArgument = Annotated[Path, Argument(metavar="FILE", help="Schema file in TOML.")]


@schema_app.command()
def plan(file: FileArgument, branch: ChainOption, json: output.JsonOption = False) -> None:
    """Show the changes that `schema apply` would make, without making them.

    JSON: {"branch", "datasets": [{"dataset", "steps"}]}; a dataset without steps does not change.

    Example: headgate schema plan graph.toml -b master
    """
    with connection.open() as hg:
        planned = hg.rows.plan_schema(file, branch=branch)
    if json:
        output.show_json(planned.to_json())
    else:
        _show_steps(planned.steps)


@schema_app.command()
def apply(
    file: FileArgument,
    branch: ChainOption,
    actor: output.ActorOption = None,
    key: output.KeyOption = None,
    json: output.JsonOption = False,
) -> None:
    """Apply a schema file to the tables of a branch, in one publication.

    Existing rows must satisfy the new schema. Other branches do not change. Columns that the file
    no longer has are dropped; `renamed_from` renames a column or a dataset.

    JSON: {"branch", "publication", "datasets": [{"dataset", "steps"}]}.

    Example: headgate schema apply graph.toml -b master
    """
    with connection.open(actor=actor) as hg:
        applied = hg.rows.apply_schema(file, branch=branch, idempotency_key=key)
    if json:
        output.show_json(applied.to_json())
        return
    _show_steps(applied.steps)
    if applied.publication is not None:
        output.note(f"publication {applied.publication}")


def _show_steps(steps: Mapping[str, Sequence[str]]) -> None:
    if not any(steps.values()):
        output.note("the tables match the file.")
    for dataset, changes in steps.items():
        for step in changes:
            output.note(f"{dataset}: {step}")
