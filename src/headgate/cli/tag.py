"""`headgate tag`: pin a transaction under a name."""

from __future__ import annotations

from typing import Annotated

import typer

from headgate import opening
from headgate.cli.output import ActorOption, JsonOption, note, show_json, show_table
from headgate.handles.nouns import tag_json

app = typer.Typer(no_args_is_help=True, help="Pin a transaction under a name; cleanup keeps it.")

DatasetArgument = Annotated[str, typer.Argument(metavar="DATASET", help="As in sales.orders.")]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The tag.")]


@app.command()
def create(
    dataset: DatasetArgument,
    name: NameArgument,
    at: Annotated[str, typer.Option("--at", metavar="TXN", help="A COMMITTED transaction.")],
    actor: ActorOption = None,
    json: JsonOption = False,
) -> None:
    """Pin a COMMITTED transaction of a dataset; cleanup keeps what it shows.

    Example: headgate tag create sales.orders 2026-q3 --at t-01m7f8gggmxzttp51zc67s
    """
    with opening.open(actor=actor) as hg:
        pinned = hg.dataset(dataset).tag(name, at=at)
    if json:
        show_json(tag_json(pinned))
    else:
        note(f"tag {name} of {pinned.dataset} pins {pinned.transaction}.")


@app.command("list")
def list_(
    dataset: Annotated[
        str | None, typer.Argument(metavar="DATASET", help="All datasets unless named.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Tags, with the transactions that they pin.

    Example: headgate tag list sales.orders
    """
    with opening.open() as hg:
        found = [tag_json(tag) for tag in hg.tags(dataset)]
    if json:
        show_json(found)
        return
    show_table(
        ("DATASET", "TAG", "TRANSACTION"),
        ((tag["dataset"], tag["name"], tag["transaction"]) for tag in found),
        empty="no tag yet; `headgate tag create` makes one.",
    )


@app.command()
def delete(dataset: DatasetArgument, name: NameArgument, json: JsonOption = False) -> None:
    """Take a tag away; cleanup may then condemn what only it kept.

    Example: headgate tag delete sales.orders 2026-q3
    """
    with opening.open() as hg:
        found = hg.dataset(dataset)
        found.untag(name)
    if json:
        show_json({"dataset": str(found.name), "name": name, "transaction": None})
    else:
        note(f"tag {name} of {found.name} is gone.")
