"""`headgate history`: the transactions of a branch."""

from __future__ import annotations

from typing import Annotated

import typer

from headgate import store
from headgate.cli.formatting import history_rows
from headgate.cli.nouns import transaction_json
from headgate.cli.output import BranchOption, JsonOption, show_json, show_table

app = typer.Typer()


@app.command()
def history(
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="As in sales.orders.")],
    branch: BranchOption = None,
    aborted: Annotated[bool, typer.Option("--all", help="Also those that were aborted.")] = False,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="How many at most.")] = None,
    json: JsonOption = False,
) -> None:
    """The transactions of a branch, newest first; of the primary branch unless named.

    Example: headgate history sales.orders --branch feature
    """
    with store.open() as hg:
        chosen = hg.dataset(dataset).branch(branch or hg.settings.builds.branch)
        found = chosen.history(aborted=aborted, limit=limit)
    if json:
        show_json([transaction_json(transaction) for transaction in found])
        return
    show_table(
        ("TRANSACTION", "TYPE", "STATE", "ACTOR", "TIME", "MADE ON"),
        history_rows(found),
        empty=f"branch {chosen.name} of {chosen.dataset.name} is empty.",
    )
