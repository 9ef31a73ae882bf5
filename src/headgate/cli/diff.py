"""`headgate diff`: what differs between two branches or transactions."""

from __future__ import annotations

from typing import Annotated

import typer

from headgate import opening
from headgate.cli.differences import show_difference, summary_row
from headgate.cli.output import MOST, JsonOption, note, show_json, show_table

app = typer.Typer()


@app.command()
def diff(
    before: Annotated[
        str, typer.Option("--from", help="A branch, a transaction, a chain or a moment.")
    ],
    after: Annotated[str, typer.Option("--to", help="As --from.")],
    dataset: Annotated[
        str | None,
        typer.Argument(metavar="DATASET", help="As in sales.orders; without it all that differ."),
    ] = None,
    rows: Annotated[
        int, typer.Option("--rows", min=0, max=MOST, help="How many samples of each.")
    ] = 5,
    key: Annotated[
        str | None,
        typer.Option("--key", help="Columns `a,b` that tell rows apart; else the table's own."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Schema, row counts and, by key, rows added, removed and changed, with samples.

    Rows of a table without a key are added or removed, never changed. Columns that only one side
    has are not compared. Without DATASET a branch stands for itself and its fallbacks.

    JSON: {"dataset", "kind", "from", "to", "identical", "schema": {"added", "removed", "renamed",
    "retyped", "required"}, "counts": {"from", "to", "added", "removed", "changed"}, "samples":
    {"added", "removed", "changed"}, "key", "basis"}; "from" and "to" are transactions or null, a
    count is null where metadata alone was looked at. Without DATASET: an array of these.

    Example: headgate diff sales.orders --from master --to feature --key id --rows 3
    """
    columns = tuple(name.strip() for name in (key or "").split(",") if name.strip())
    with opening.open() as hg:
        found = hg.differences(
            before, after, dataset=dataset, rows=rows, key=columns, on_large=_say_large
        )
    if json:
        show_json(found)
    elif isinstance(found, list):
        show_table(
            ("DATASET", "KIND", "FROM", "TO", "CHANGES"),
            (summary_row(one) for one in found),
            empty=f"nothing differs between {before} and {after}.",
        )
    else:
        show_difference(found)


def _say_large(rows: int, parts: int) -> None:
    note(
        f"comparing {rows:,} rows on this machine, in {parts} parts on its disk. For a table much "
        "larger than that, compare aggregates on Spark with `headgate sql`."
    )
