"""`headgate txn`: open, commit, abort and show transactions, and units of them."""

from __future__ import annotations

from typing import Annotated

import typer

from headgate import store
from headgate.catalog.units import find_unit, list_unit_transactions, load_unit
from headgate.cli.formatting import count_text, transaction_line
from headgate.cli.idempotency import operation_key
from headgate.cli.nouns import Json, transaction_json, unit_json
from headgate.cli.output import (
    ActorOption,
    JsonOption,
    KeyOption,
    console,
    note,
    show_json,
    show_line,
)
from headgate.cli.published import show_moves
from headgate.errors import Invalid
from headgate.handles import TransactionHandle, UnitHandle
from headgate.model.changes import OperationKey
from headgate.model.nouns import TransactionType
from headgate.store import Store

app = typer.Typer(no_args_is_help=True, help="Open, commit, abort and show transactions.")

IdArgument = Annotated[str, typer.Argument(metavar="TXN", help="A transaction or a unit.")]


@app.command("open")
def open_(
    branch: Annotated[str, typer.Option("--branch", "-b", help="Branch name.")],
    dataset: Annotated[
        str | None, typer.Argument(metavar="DATASET", help="A unit of many unless named.")
    ] = None,
    type: Annotated[
        TransactionType | None, typer.Option("--type", help="What it may do; UPDATE unless named.")
    ] = None,
    lease: Annotated[
        int, typer.Option("--lease", min=1, help="Seconds until others may take over.")
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
    with store.open(actor=actor) as hg:
        opened: TransactionHandle | UnitHandle
        if dataset is None:
            opened = hg.transaction(branch=branch, lease_seconds=lease)
        else:
            opened = (
                hg.dataset(dataset)
                .branch(branch)
                .transaction(type or TransactionType.UPDATE, lease_seconds=lease)
            )
        noun = _noun(hg, opened)
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
    with store.open(actor=actor) as hg:
        opened = load_opened(hg, txn)
        receipt = opened.commit(operation=_operation(hg, key, opened))
        if json:
            show_json(_noun(hg, opened) | {"publication": receipt.publication})
        else:
            show_moves(hg, receipt)


@app.command()
def abort(txn: IdArgument, actor: ActorOption = None, json: JsonOption = False) -> None:
    """Abort a transaction, or all of a unit's: nothing of them is ever visible.

    Example: headgate txn abort t-01m7f8gggmxzttp51zc67s
    """
    with store.open(actor=actor) as hg:
        opened = load_opened(hg, txn)
        opened.abort()
        noun = _noun(hg, opened)
    if json:
        show_json(noun)
    else:
        note(f"{txn} is aborted; nothing of it is visible.")


@app.command()
def show(txn: IdArgument, json: JsonOption = False) -> None:
    """A transaction, or a unit with all of its transactions.

    Example: headgate txn show t-01m7f8gggmxzttp51zc67s
    """
    with store.open() as hg:
        found = load_opened(hg, txn)
        if json:
            show_json(_noun(hg, found))
            return
        if isinstance(found, TransactionHandle):
            console().print(transaction_line(found.transaction))
            return
        unit, members = hg.database.read(
            lambda c: (load_unit(c, found.id), list_unit_transactions(c, found.id))
        )
    held = count_text(len(members), "transaction")
    note(f"unit {unit.id} on branch {unit.branch} by {unit.actor} is {unit.state}, {held}")
    for member in members:
        console().print(transaction_line(member))


def load_opened(hg: Store, id: str) -> TransactionHandle | UnitHandle:
    """What an id stands for, in any state: a unit, or a transaction."""
    if hg.database.read(lambda c: find_unit(c, id)) is not None:
        return UnitHandle.load(hg, id)
    return TransactionHandle.load(hg, id)


def _noun(hg: Store, opened: TransactionHandle | UnitHandle) -> Json:
    """As the catalog has it now."""
    if isinstance(opened, TransactionHandle):
        return transaction_json(TransactionHandle.load(hg, opened.id).transaction)
    return hg.database.read(
        lambda c: unit_json(load_unit(c, opened.id), list_unit_transactions(c, opened.id))
    )


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
