"""`headgate diff`: what differs between two branches or transactions."""

from __future__ import annotations

from typing import Annotated

import typer

from headgate import store
from headgate.cli.differences import difference_json, show_difference, summary_row
from headgate.cli.output import JsonOption, note, show_json, show_table
from headgate.handles.comparing import compare_sides
from headgate.handles.reading import find_dataset_of, list_differing, load_sides
from headgate.model.names import parse_dataset_name
from headgate.store import Store
from headgate.tables.comparing import Comparing

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
    rows: Annotated[int, typer.Option("--rows", min=0, help="How many samples of each.")] = 5,
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
    with store.open() as hg:
        name = parse_dataset_name(dataset) if dataset else find_dataset_of(hg, (before, after))
        if name is None:
            _diff_all(hg, before, after, json=json)
            return
        sides = load_sides(hg, name, before, after)
        how = Comparing(options=hg.settings.environ, key=columns, samples=rows, on_large=_say_large)
        found = compare_sides(hg, sides, how)
    if json:
        show_json(difference_json(sides, found))
    else:
        show_difference(sides, found)


def _diff_all(hg: Store, before: str, after: str, *, json: bool) -> None:
    how = Comparing(options=hg.settings.environ, samples=0, reads_files=False)
    pairs = [(sides, compare_sides(hg, sides, how)) for sides in list_differing(hg, before, after)]
    if json:
        show_json([difference_json(sides, found) for sides, found in pairs])
        return
    show_table(
        ("DATASET", "KIND", "FROM", "TO", "CHANGES"),
        (summary_row(sides, found) for sides, found in pairs),
        empty=f"nothing differs between {before} and {after}.",
    )


def _say_large(rows: int, parts: int) -> None:
    note(
        f"comparing {rows:,} rows on this machine, in {parts} parts on its disk. For a table much "
        "larger than that, compare aggregates on Spark with `headgate sql`."
    )
