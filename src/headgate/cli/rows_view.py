"""What the verbs on rows print: the publication and the counts, for people and programs."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Annotated

import typer

from headgate.cli.output import note, show_json
from headgate.errors import Invalid

if TYPE_CHECKING:
    from headgate.mutations.parts import Outcome


class Engine(enum.StrEnum):
    """What does the work: this process, or Spark."""

    ARROW = "arrow"
    SPARK = "spark"


TimeoutOption = Annotated[
    float,
    typer.Option("--timeout", min=0, help="Seconds to go on when others change the branch."),
]
IfHeadOption = Annotated[
    list[str] | None,
    typer.Option(
        "--if-head",
        metavar="DATASET=TXN",
        help="Only while the branch shows this transaction; repeatable.",
    ),
]


def read_heads(given: list[str] | None) -> dict[str, str | None]:
    """`DATASET=TXN` as a mapping; `DATASET=` says that the branch shows nothing yet."""
    heads: dict[str, str | None] = {}
    for text in given or []:
        dataset, equals, transaction = text.partition("=")
        if not equals or not dataset:
            raise Invalid(
                f"--if-head {text!r} cannot be read: write DATASET=TXN, as in graph.person=t-0123.",
                value=text,
            )
        heads[dataset] = transaction or None
    return heads


def show_outcome(outcome: Outcome, *, json: bool) -> None:
    """One document, or a line for each dataset."""
    if json:
        show_json(outcome.to_json())
        return
    if outcome.publication is None:
        note("nothing changed, so nothing was published.")
        return
    note(f"publication {outcome.publication}:")
    show_counts(outcome)


def show_counts(outcome: Outcome) -> None:
    for name, counts in outcome.counts.items():
        note(
            f"  {name}: {counts.inserted:,} inserted, {counts.updated:,} updated, "
            f"{counts.deleted:,} deleted"
        )
