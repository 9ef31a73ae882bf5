"""`headgate log`: publications."""

from __future__ import annotations

from typing import Annotated

import typer

from headgate import opening
from headgate.cli.formatting import log_rows
from headgate.cli.output import MOST, BranchOption, JsonOption, show_json, show_table
from headgate.handles.nouns import publication_json
from headgate.model.nouns import PublicationKind
from headgate.model.options import member
from headgate.model.recovery import RECOVERY_ACTOR

app = typer.Typer()

# What recovery records without a publication.
_RECOVERY_KINDS = ("abandoned", "roll_forward", "roll_back")


@app.command()
def log(
    actor: Annotated[str | None, typer.Option("--actor", help="Who did it.")] = None,
    dataset: Annotated[str | None, typer.Option("--dataset", help="As in sales.orders.")] = None,
    branch: BranchOption = None,
    kind: Annotated[
        str | None, typer.Option("--kind", help=f"One of {', '.join(PublicationKind)}.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=MOST, help="How many at most.")] = 50,
    json: JsonOption = False,
) -> None:
    """Publications, newest first: everything that changed what a branch shows.

    With --actor headgate:recovery also what recovery settled without publishing.

    Example: headgate log --dataset sales.orders --branch master --limit 10
    """
    of_recovery = actor == RECOVERY_ACTOR
    published = _check_kind(kind, of_recovery=of_recovery)
    with opening.open() as hg:
        found = (
            hg.publications(
                actor=actor, dataset=dataset, branch=branch, kind=published, limit=limit
            )
            if kind is None or published is not None
            else []
        )
        settled = (
            hg.events(actor=actor, dataset=dataset, branch=branch, kind=kind, limit=limit)
            if of_recovery
            else []
        )
    if json:
        nouns = [*map(publication_json, found), *settled]
        show_json(sorted(nouns, key=lambda noun: noun["at"], reverse=True)[:limit])
        return
    show_table(
        ("NUMBER", "TIME", "KIND", "ACTOR", "WHAT"),
        log_rows(found, settled)[:limit],
        empty="nothing was published.",
    )


def _check_kind(kind: str | None, *, of_recovery: bool) -> PublicationKind | None:
    """The kind of publication that is meant; None for all, or for one that only recovery has."""
    if kind is None or (of_recovery and kind in _RECOVERY_KINDS):
        return None
    return member(PublicationKind, kind, what="kind of publication")
