"""`headgate load`: files into tables."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from headgate import opening
from headgate.cli.output import ActorOption, JsonOption, KeyOption, note
from headgate.cli.rows_view import Engine, IfHeadOption, TimeoutOption, read_heads, show_outcome
from headgate.errors import Invalid

app = typer.Typer()


class Mode(enum.StrEnum):
    APPEND = "append"
    MERGE = "merge"
    OVERWRITE = "overwrite"


@app.command()
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
    given = _read(sources)
    with opening.open(actor=actor) as hg:
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


def _read(sources: list[str]) -> dict[str, list[str]]:
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
