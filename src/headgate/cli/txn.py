"""`headgate txn`: open, commit, abort and show transactions and units."""

from typing import Annotated

import typer

from headgate import connection
from headgate.cli import output
from headgate.cli.format import show_moves, transaction_line
from headgate.errors import Invalid
from headgate.model.names import LONGEST_LEASE_SECONDS
from headgate.model.nouns import TransactionType
from headgate.store.transactions import TransactionHandle, UnitHandle

app = typer.Typer(no_args_is_help=True, help="Open, commit, abort and show transactions.")

IdArgument = Annotated[
    str, typer.Argument(metavar="TXN", callback=output.bare_id, help="Transaction or unit.")
]


@app.command("open")
def open_(
    branch: Annotated[str, typer.Option("--branch", "-b", help="Branch name.")],
    dataset: Annotated[
        str | None, typer.Argument(metavar="DATASET", help="Dataset name (default: open a unit).")
    ] = None,
    type: Annotated[
        TransactionType | None,
        typer.Option(
            "--type",
            case_sensitive=False,
            metavar="SNAPSHOT|APPEND|UPDATE|DELETE",
            help="Type of transaction (default: UPDATE).",
        ),
    ] = None,
    lease: Annotated[
        int,
        typer.Option(
            "--lease", min=1, max=LONGEST_LEASE_SECONDS, help="Seconds until the lease expires."
        ),
    ] = 900,
    create: Annotated[
        bool, typer.Option("--create", help="Accept a new branch name (for a unit).")
    ] = False,
    actor: output.ActorOption = None,
    json: output.JsonOption = False,
) -> None:
    """Open a transaction on a branch; without a dataset, a unit of several transactions.

    Example: headgate txn open raw.scans --branch master --type APPEND
    """
    if dataset is None and type is not None:
        raise Invalid(
            "--type needs a dataset: in a unit, each transaction gets the type of its changes. "
            "Leave out --type, or name a dataset."
        )
    with connection.open(actor=actor) as hg:
        opened: TransactionHandle | UnitHandle
        if dataset is None:
            opened = hg.transaction(branch=branch, lease_seconds=lease, create=create)
        else:
            opened = (
                hg.dataset(dataset)
                .branch(branch)
                .transaction(type or TransactionType.UPDATE, lease_seconds=lease)
            )
        noun = opened.noun()
    if json:
        output.show_json(noun)
        return
    output.show_line(opened.id)
    what = f"{noun['type']} on {dataset}" if dataset else "unit"
    output.note(
        f"OPEN: {what}, branch {branch}. Publish it with `headgate txn commit {opened.id}`."
    )


@app.command()
def commit(
    txn: IdArgument,
    actor: output.ActorOption = None,
    key: output.KeyOption = None,
    json: output.JsonOption = False,
) -> None:
    """Commit a transaction, or all transactions of a unit, in one publication.

    Example: headgate txn commit t-01m7f8gggmxzttp51zc67s
    """
    with connection.open(actor=actor) as hg:
        opened = hg.opened(txn)
        receipt = opened.commit(idempotency_key=key)
        if json:
            output.show_json(opened.noun() | {"publication": receipt.publication})
        else:
            show_moves(hg, receipt)


@app.command()
def abort(
    txn: IdArgument, actor: output.ActorOption = None, json: output.JsonOption = False
) -> None:
    """Abort a transaction, or all transactions of a unit; their changes are discarded.

    Example: headgate txn abort t-01m7f8gggmxzttp51zc67s
    """
    with connection.open(actor=actor) as hg:
        opened = hg.opened(txn)
        opened.abort()
        noun = opened.noun()
    output.show_result(noun, f"{txn} is aborted; its changes are discarded.", json=json)


@app.command()
def show(txn: IdArgument, json: output.JsonOption = False) -> None:
    """Show a transaction, or a unit with its transactions.

    Example: headgate txn show t-01m7f8gggmxzttp51zc67s
    """
    with connection.open() as hg:
        noun = hg.opened(txn).noun()
    if json:
        output.show_json(noun)
        return
    if "unit" not in noun:
        output.console().print(transaction_line(noun))
        return
    output.note(
        f"unit {noun['unit']} on branch {noun['branch']} by {noun['actor']} is {noun['state']}, "
        f"{output.count_text(len(noun['transactions']), 'transaction')}"
    )
    for member in noun["transactions"]:
        output.console().print(transaction_line(member))
