"""`headgate status`: what became of an operation."""

from __future__ import annotations

from typing import Annotated

import typer

from headgate import opening
from headgate.cli.output import BranchOption, JsonOption, note, show_json

app = typer.Typer()


@app.command()
def status(
    key: Annotated[str, typer.Argument(metavar="KEY", help="The idempotency key it was given.")],
    branch: BranchOption = None,
    kind: Annotated[
        str | None, typer.Option("--kind", help="The command, as in files-put or txn-commit.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """What became of an operation, by its idempotency key; kept for 30 days.

    Example: headgate status nightly-2026-11-15 --branch master
    """
    with opening.open() as hg:
        operation = hg.status(key, branch=branch, kind=kind)
    if json:
        show_json(operation)
        return
    number = operation["publication"]
    came = f"publication {number}" if number is not None else "nothing was published"
    note(f"{operation['kind']} on {operation['branch']} is {operation['state']}: {came}.")
