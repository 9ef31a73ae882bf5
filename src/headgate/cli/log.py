"""`headgate log`: publications."""

from __future__ import annotations

from typing import Annotated

import typer

from headgate import connection
from headgate.cli.format import built_text, history_rows, log_rows, show_difference, summary_row
from headgate.cli.output import MOST, BranchOption, JsonOption, note, show_json, show_table
from headgate.model.names import member
from headgate.model.nouns import PublicationKind
from headgate.model.recovery import RECOVERY_ACTOR
from headgate.store.documents import history_json, publication_json

# `headgate history`: the transactions of a branch.

history_app = typer.Typer()


@history_app.command()
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
    with connection.open() as hg:
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


log_app = typer.Typer()

# What recovery records without a publication.
_RECOVERY_KINDS = ("abandoned", "roll_forward", "roll_back")


@log_app.command()
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
    with connection.open() as hg:
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


# `headgate status`: what became of an operation.

status_app = typer.Typer()


@status_app.command()
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
    with connection.open() as hg:
        operation = hg.status(key, branch=branch, kind=kind)
    if json:
        show_json(operation)
        return
    number = operation["publication"]
    came = f"publication {number}" if number is not None else "nothing was published"
    note(f"{operation['kind']} on {operation['branch']} is {operation['state']}: {came}.")


# `headgate diff`: what differs between two branches or transactions.

diff_app = typer.Typer()


@diff_app.command()
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
    with connection.open() as hg:
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
