"""`headgate optimize`: a table's small files written together."""

from __future__ import annotations

from typing import Annotated

import typer

from headgate import opening
from headgate.cli.output import MOST, ActorOption, JsonOption, KeyOption, note, show_json
from headgate.cli.rows_view import Engine

app = typer.Typer()

_SAID = {
    "optimized": "publication {publication}: {before} files became {after}, "
    "{dropped} old Iceberg snapshots dropped",
    "unchanged": "nothing to do: {before} files",
    "skipped": "skipped: the branch has an OPEN transaction",
    "lost": "somebody else published meanwhile, so nothing was changed; try again later",
}


@app.command()
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
    with opening.open(actor=actor) as hg:
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
