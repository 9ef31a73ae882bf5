"""`headgate recover`: settle what crashed owners left behind."""

from __future__ import annotations

from typing import Annotated

import typer

from headgate import opening
from headgate.catalog.recovery import OWNER_ALIVE, Recovered
from headgate.cli.formatting import count_text
from headgate.cli.output import JsonOption, note, show_json
from headgate.handles.nouns import recovery_json

app = typer.Typer()


@app.command()
def recover(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be done.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Settle unfinished operations and abort transactions whose owners are long gone.

    Every other command does this first; a second recovery changes nothing. Leaves with 4 where
    an operation is kept that only a person can settle.

    Example: headgate recover --dry-run
    """
    with opening.open(recover_first=False) as hg:
        done = hg.recover(dry_run=dry_run)
    if json:
        show_json(recovery_json(done))
    else:
        _tell(done, dry_run=dry_run)
    if any(kept["why"] != OWNER_ALIVE for kept in done.kept):
        raise typer.Exit(4)


def _tell(done: Recovered, *, dry_run: bool) -> None:
    would = "would be " if dry_run else ""
    for operation in done.rolled_forward:
        note(f"operation {operation} {would}rolled forward")
    for operation in done.rolled_back:
        note(f"operation {operation} {would}rolled back")
    for transaction in done.aborted_transactions:
        note(f"transaction {transaction} {would}aborted")
    for kept in done.kept:
        note(f"operation {kept['operation']} is kept: {kept['why']}")
    settled = len(done.rolled_forward) + len(done.rolled_back) + len(done.aborted_transactions)
    note(f"{would}settled: {count_text(settled, 'thing')}" if settled else "nothing to settle.")
