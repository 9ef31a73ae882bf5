"""`headgate merge`: a branch into another."""

from __future__ import annotations

from typing import Annotated

import typer

from headgate import opening
from headgate.cli.output import ActorOption, JsonOption, KeyOption, note
from headgate.cli.rows_view import TimeoutOption, show_counts, show_outcome
from headgate.model.names import listed

app = typer.Typer()


@app.command()
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
    with opening.open(actor=actor) as hg:
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
