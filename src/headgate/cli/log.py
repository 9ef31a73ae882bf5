"""`headgate history`, `log`, `status` and `diff`: transactions, publications, comparisons."""

from typing import Annotated, Any

import typer

from headgate import connection
from headgate.cli import format, output
from headgate.errors import Invalid
from headgate.model.names import parse_member
from headgate.model.nouns import PublicationKind
from headgate.model.recovery import RECOVERY_ACTOR, Landing
from headgate.store.documents import PUBLICATION, history_json


@output.command
def history(
    dataset: output.DatasetArgument,
    branch: output.BranchOption = None,
    aborted: Annotated[bool, typer.Option("--all", help="Include aborted transactions.")] = False,
    limit: Annotated[
        int | None,
        typer.Option("--limit", min=1, max=output.MAX_COUNT, help="Maximum number of rows."),
    ] = None,
    json: output.JsonOption = False,
) -> None:
    """List the transactions of a branch (default: the primary branch), newest first.

    For a transaction of a build, the list shows the inputs that it read and its checks. After a
    rename, the list continues with the transactions of the earlier name.

    Example: headgate history sales.orders --branch feature
    """
    with connection.open() as hg:
        chosen = hg.dataset(dataset).branch(branch or hg.settings.builds.branch)
        found = chosen.history(aborted=aborted, limit=limit)
    if json:
        output.show_json([history_json(transaction) for transaction in found])
        return
    output.show_table(
        ("#", "TRANSACTION", "TYPE", "STATE", "ACTOR", "TIME", "MADE ON", "BUILT"),
        [
            (str(transaction.depth + 1), *row, format.built_text(transaction.provenance))
            for transaction, row in zip(found, format.history_rows(found), strict=True)
        ],
        empty=f"branch {chosen.name} of {chosen.dataset.name} is empty.",
    )


# Kinds of events that recovery records.
_RECOVERY_KINDS = ("abandoned", *(f"workspace {landing}" for landing in Landing))


@output.command
def log(
    actor: Annotated[str | None, typer.Option("--actor", help="Only of this actor.")] = None,
    dataset: Annotated[str | None, typer.Option("--dataset", help="Dataset name.")] = None,
    branch: output.BranchOption = None,
    kind: Annotated[
        str | None, typer.Option("--kind", help=f"One of {', '.join(PublicationKind)}.")
    ] = None,
    limit: output.LimitOption = 50,
    recoveries: Annotated[
        bool, typer.Option("--recoveries", help="List the audit log of recovery instead.")
    ] = False,
    events: Annotated[
        bool, typer.Option("--events", help="List what was not published instead: denials, aborts.")
    ] = False,
    json: output.JsonOption = False,
) -> None:
    """List publications, newest first: every change of a branch.

    --actor headgate:recovery also lists what recovery settled without a publication. --recoveries
    lists what recovery settled, the original actor and the outcome, filtered by --actor and --kind.
    --events lists denied requests, one line an hour for each token and rule with their number,
    and other events, filtered by all options; the kind of a denial is `refused`.

    Example: headgate log --dataset sales.orders --branch master --limit 10
    """
    if events:
        if recoveries:
            raise Invalid("--events and --recoveries are two lists: give one of them.")
        with connection.open() as hg:
            noted = hg.events(actor=actor, dataset=dataset, branch=branch, kind=kind, limit=limit)
        if json:
            output.show_json(noted)
            return
        rows = [row[1:] for row in format.log_rows((), noted)]
        output.show_table(("TIME", "KIND", "ACTOR", "WHAT"), rows, empty="no events.")
        return
    if recoveries:
        if dataset is not None or branch is not None:
            raise Invalid("--recoveries takes neither --dataset nor --branch: leave them out.")
        with connection.open() as hg:
            audit = hg.recoveries(actor=actor, kind=kind, limit=limit)
        if json:
            output.show_json(audit)
            return
        output.show_table(
            ("TIME", "KIND", "OF", "OPERATION", "WHAT"),
            format.recovery_rows(audit),
            empty="no recoveries.",
        )
        return
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
        nouns = [*map(PUBLICATION.json, found), *settled]
        output.show_json(sorted(nouns, key=lambda noun: noun["at"], reverse=True)[:limit])
        return
    output.show_table(
        ("NUMBER", "TIME", "KIND", "ACTOR", "WHAT"),
        format.log_rows(found, settled)[:limit],
        empty="no publications.",
    )


def _check_kind(kind: str | None, *, of_recovery: bool) -> PublicationKind | None:
    """Return the kind of publication; None for all, or for a kind that only recovery records."""
    if kind is None or (of_recovery and kind in _RECOVERY_KINDS):
        return None
    return parse_member(PublicationKind, kind, what="kind of publication")


@output.command
def status(
    key: Annotated[str, typer.Argument(metavar="KEY", help="Idempotency key of the operation.")],
    branch: output.BranchOption = None,
    kind: Annotated[
        str | None, typer.Option("--kind", help="Command, such as files-put or txn-commit.")
    ] = None,
    json: output.JsonOption = False,
) -> None:
    """Show the result of an operation by its idempotency key, which is kept for 30 days.

    Example: headgate status nightly-2026-11-15 --branch master
    """
    with connection.open() as hg:
        operation = hg.status(key, branch=branch, kind=kind)
    number = operation["publication"]
    result = f"publication {number}" if number is not None else "nothing was published"
    text = f"{operation['kind']} on {operation['branch']} is {operation['state']}: {result}."
    output.show_result(operation, text, json=json)


@output.command
def diff(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="BRANCH|DATASET", help="Branch to merge; with --from and --to, a dataset."
        ),
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Argument(metavar="DATASET", help="Dataset of BRANCH (default: all that differ)."),
    ] = None,
    into: Annotated[
        str | None, typer.Option("--into", help="Target of the merge (default: BRANCH's parent).")
    ] = None,
    before: Annotated[
        str | None, typer.Option("--from", help="Branch, transaction, chain or moment.")
    ] = None,
    after: Annotated[str | None, typer.Option("--to", help="Like --from.")] = None,
    rows: Annotated[
        int,
        typer.Option("--rows", min=0, max=output.MAX_COUNT, help="Number of samples of each kind."),
    ] = 5,
    key: Annotated[
        str | None, typer.Option("--key", help="Key columns `a,b` (default: the table's key).")
    ] = None,
    json: output.JsonOption = False,
) -> None:
    """Show what a merge of BRANCH would change, or compare two versions.

    With BRANCH: its changes since the merge base, and all conflicts, from the dry run of
    `headgate merge`. With --from and --to: schema, row counts and rows (added, removed and changed
    by key) of the two versions as they are. Rows of a table without a key are added or removed,
    never changed. Of a view, the rows are its queries by dialect. Columns that only one side has
    are not compared. Without DATASET a branch in --from or --to includes its fallbacks. A dataset
    that was renamed between the two versions is compared under both names.

    JSON: {"dataset", "renamed_from", "kind", "from", "to", "identical", "schema": {"added",
    "removed", "renamed", "retyped", "required"}, "counts": {"from", "to", "added", "removed",
    "changed"}, "samples": {"added", "removed", "changed"}, "key", "basis"}; "from" and "to" are
    transactions or null, a count is null if only metadata was compared. Without DATASET, or with
    BRANCH: an array of these. With BRANCH, "from" is the merge base, "to" the branch and "into" the
    target; "counts" are those of the target before and after the merge, and "conflicts" is as in
    `headgate merge`.

    Example: headgate diff feature
    Example: headgate diff sales.orders --from master --to feature --key id --rows 3
    """
    columns = tuple(name.strip() for name in (key or "").split(",") if name.strip())
    if before is None and after is None and what is not None:
        if columns:
            raise typer.BadParameter("a merge uses the table's own key.", param_hint="--key")
        with connection.open() as hg:
            found: Any = hg.review(what, into=into, dataset=dataset, rows=rows)
        if json:
            output.show_json(found)
            return
        if not found:
            output.note(f"a merge of {what} would change nothing.")
        for one in found:
            format.show_difference(one)
        return
    if before is None or after is None or dataset is not None or into is not None:
        raise typer.BadParameter("give a branch, or two versions with --from and --to.")
    with connection.open() as hg:
        found = hg.differences(
            before, after, dataset=what, rows=rows, key=columns, on_large=_note_large
        )
    if json:
        output.show_json(found)
    elif isinstance(found, list):
        output.show_table(
            ("DATASET", "KIND", "FROM", "TO", "CHANGES"),
            (format.summary_row(one) for one in found),
            empty=f"no differences between {before} and {after}.",
        )
    else:
        format.show_difference(found)


def _note_large(rows: int, parts: int) -> None:
    output.note(
        f"comparing {rows:,} rows on this machine, in {parts} parts on disk. For a much larger "
        "table, compare aggregates on Spark with `headgate sql`."
    )
