"""`headgate history`: the transactions of a branch."""

from __future__ import annotations

from typing import Annotated

import typer

from headgate import opening
from headgate.cli.built import built_text
from headgate.cli.formatting import history_rows
from headgate.cli.output import MOST, BranchOption, JsonOption, show_json, show_table
from headgate.handles.documents import history_json

app = typer.Typer()


@app.command()
def history(
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="As in sales.orders.")],
    branch: BranchOption = None,
    aborted: Annotated[bool, typer.Option("--all", help="Also those that were aborted.")] = False,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, max=MOST, help="How many at most.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """The transactions of a branch, newest first; of the primary branch unless named.

    Of what a build made: how much of its inputs it read, and what its checks found.

    Example: headgate history sales.orders --branch feature
    """
    with opening.open() as hg:
        chosen = hg.dataset(dataset).branch(branch or hg.settings.builds.branch)
        found = chosen.history(aborted=aborted, limit=limit)
    if json:
        show_json([history_json(transaction) for transaction in found])
        return
    show_table(
        ("#", "TRANSACTION", "TYPE", "STATE", "ACTOR", "TIME", "MADE ON", "BUILT"),
        [
            (str(transaction.depth + 1), *row, built_text(transaction.provenance))
            for transaction, row in zip(found, history_rows(found), strict=True)
        ],
        empty=f"branch {chosen.name} of {chosen.dataset.name} is empty.",
    )
