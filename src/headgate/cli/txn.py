"""`headgate txn`: open, commit, abort and show transactions, and units of them."""

from __future__ import annotations

from typing import Annotated

import typer

from headgate import connection
from headgate.cli.format import count_text, show_moves, transaction_line
from headgate.cli.output import (
    ActorOption,
    JsonOption,
    KeyOption,
    bare_id,
    console,
    note,
    show_json,
    show_line,
)
from headgate.errors import Invalid
from headgate.model.changes import OperationKey
from headgate.model.names import LONGEST_LEASE_SECONDS
from headgate.model.nouns import TransactionType
from headgate.store.embedded import Store, operation_key
from headgate.store.transactions import TransactionHandle, UnitHandle

app = typer.Typer(no_args_is_help=True, help="Open, commit, abort and show transactions.")

IdArgument = Annotated[
    str, typer.Argument(metavar="TXN", callback=bare_id, help="A transaction or a unit.")
]


@app.command("open")
def open_(
    branch: Annotated[str, typer.Option("--branch", "-b", help="Branch name.")],
    dataset: Annotated[
        str | None, typer.Argument(metavar="DATASET", help="A unit of many unless named.")
    ] = None,
    type: Annotated[
        TransactionType | None,
        typer.Option(
            "--type",
            case_sensitive=False,
            metavar="SNAPSHOT|APPEND|UPDATE|DELETE",
            help="What it may do; UPDATE unless named.",
        ),
    ] = None,
    lease: Annotated[
        int,
        typer.Option(
            "--lease", min=1, max=LONGEST_LEASE_SECONDS, help="Seconds until others may take over."
        ),
    ] = 900,
    actor: ActorOption = None,
    json: JsonOption = False,
) -> None:
    """Open a transaction on a branch; without a dataset, a unit of several datasets'.

    Example: headgate txn open raw.scans --branch master --type APPEND
    """
    if dataset is None and type is not None:
        raise Invalid(
            "in a unit each transaction has the type of what it does: leave out --type, "
            "or name a dataset."
        )
    with connection.open(actor=actor) as hg:
        opened: TransactionHandle | UnitHandle
        if dataset is None:
            opened = hg.transaction(branch=branch, lease_seconds=lease)
        else:
            opened = (
                hg.dataset(dataset)
                .branch(branch)
                .transaction(type or TransactionType.UPDATE, lease_seconds=lease)
            )
        noun = opened.noun()
    if json:
        show_json(noun)
        return
    show_line(opened.id)
    what = f"{noun['type']} on {dataset}" if dataset else "unit of any datasets'"
    note(f"OPEN: {what}, branch {branch}. `headgate txn commit {opened.id}` makes it visible.")


@app.command()
def commit(
    txn: IdArgument, actor: ActorOption = None, key: KeyOption = None, json: JsonOption = False
) -> None:
    """Commit a transaction, or all of a unit's in one publication.

    Example: headgate txn commit t-01m7f8gggmxzttp51zc67s
    """
    with connection.open(actor=actor) as hg:
        opened = hg.opened(txn)
        receipt = opened.commit(operation=_operation(hg, key, opened))
        if json:
            show_json(opened.noun() | {"publication": receipt.publication})
        else:
            show_moves(hg, receipt)


@app.command()
def abort(txn: IdArgument, actor: ActorOption = None, json: JsonOption = False) -> None:
    """Abort a transaction, or all of a unit's: nothing of them is ever visible.

    Example: headgate txn abort t-01m7f8gggmxzttp51zc67s
    """
    with connection.open(actor=actor) as hg:
        opened = hg.opened(txn)
        opened.abort()
        noun = opened.noun()
    if json:
        show_json(noun)
    else:
        note(f"{txn} is aborted; nothing of it is visible.")


@app.command()
def show(txn: IdArgument, json: JsonOption = False) -> None:
    """A transaction, or a unit with all of its transactions.

    Example: headgate txn show t-01m7f8gggmxzttp51zc67s
    """
    with connection.open() as hg:
        found = hg.opened(txn)
        if json:
            show_json(found.noun())
            return
        noun = found.noun()
    if "unit" not in noun:
        console().print(transaction_line(noun))
        return
    held = count_text(len(noun["transactions"]), "transaction")
    note(
        f"unit {noun['unit']} on branch {noun['branch']} by {noun['actor']} is {noun['state']}, "
        f"{held}"
    )
    for member in noun["transactions"]:
        console().print(transaction_line(member))


def _operation(
    hg: Store, key: str | None, opened: TransactionHandle | UnitHandle
) -> OperationKey | None:
    return operation_key(
        key,
        actor=hg.settings.actor,
        kind="txn-commit",
        branch=opened.branch,
        request={"transaction": opened.id},
    )
