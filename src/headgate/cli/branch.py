"""`headgate branch`: create, list, delete, reset, reparent and protect branches."""

from __future__ import annotations

from typing import Annotated

import typer

from headgate import connection
from headgate.cli.format import branch_trees, show_receipt
from headgate.cli.output import (
    ActorOption,
    JsonOption,
    KeyOption,
    console,
    note,
    show_json,
    show_table,
)
from headgate.errors import Invalid
from headgate.model.changes import OperationKey, Receipt
from headgate.model.names import check_branch_name
from headgate.model.nouns import Branch, PublicationKind
from headgate.store.datasets import BranchHandle
from headgate.store.documents import branch_json, tag_json
from headgate.store.embedded import Store, operation_key

branch_app = typer.Typer(
    no_args_is_help=True, help="Create, list, delete, reset, reparent and protect branches."
)

DatasetArgument = Annotated[str, typer.Argument(metavar="DATASET", help="As in sales.orders.")]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The branch.")]


@branch_app.command()
def create(
    dataset: DatasetArgument,
    name: NameArgument,
    parent: Annotated[
        str | None, typer.Option("--from", help="Its parent; the primary branch unless named.")
    ] = None,
    at: Annotated[
        str | None, typer.Option("--at", metavar="TXN", help="Where its parent was at.")
    ] = None,
    root: Annotated[bool, typer.Option("--root", help="Empty, and without a parent.")] = False,
    actor: ActorOption = None,
    key: KeyOption = None,
    json: JsonOption = False,
) -> None:
    """Create a branch of a dataset: a child that shows what its parent shows, or a root.

    Example: headgate branch create sales.orders feature --from master
    """
    if root and (parent or at):
        raise Invalid("a root has no parent: give either --root, or --from with or without --at.")
    with connection.open(actor=actor) as hg:
        above = None if root else parent or hg.settings.builds.branch
        branch = hg.dataset(dataset).branch(name)
        branch.create(
            parent=above,
            at=at,
            operation=_operation(hg, key, "branch-create", branch, parent=above, at=at),
        )
        made = branch.load()
    _show_branch(made, json=json)


@branch_app.command("list")
def list_(
    dataset: Annotated[
        str | None, typer.Argument(metavar="DATASET", help="All datasets unless named.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Branches as a tree, children below their parent, each with its view and an OPEN head.

    Example: headgate branch list sales.orders
    """
    with connection.open() as hg:
        found, guarded = hg.branches(dataset), hg.protected()
    if json:
        show_json([branch_json(branch) for branch in found])
        return
    for tree in branch_trees(found, guarded):
        console().print(tree)
    if not found:
        note("no branch yet; `headgate branch create` makes one.")


@branch_app.command()
def delete(
    names: Annotated[
        list[str],
        typer.Argument(metavar="DATASET|--all-datasets NAME", help="The dataset and the branch."),
    ],
    all_datasets: Annotated[
        bool, typer.Option("--all-datasets", help="Of every dataset that has it, at once.")
    ] = False,
    actor: ActorOption = None,
    key: KeyOption = None,
    json: JsonOption = False,
) -> None:
    """Delete a branch: the pointer only; its children go to its parent, transactions stay.

    Example: headgate branch delete --all-datasets feature
    """
    if len(names) != (1 if all_datasets else 2):
        raise Invalid("name DATASET and NAME, or NAME alone with --all-datasets.")
    with connection.open(actor=actor) as hg:
        if all_datasets:
            receipt = _delete_everywhere(hg, check_branch_name(names[0]), key)
        else:
            branch = hg.dataset(names[0]).branch(names[1])
            receipt = branch.delete(operation=_operation(hg, key, "branch-delete", branch))
        show_receipt(hg, receipt, kind=PublicationKind.DELETE, json=json)


@branch_app.command()
def reset(
    dataset: DatasetArgument,
    name: NameArgument,
    to: Annotated[str, typer.Option("--to", metavar="TXN", help="A transaction of its history.")],
    actor: ActorOption = None,
    key: KeyOption = None,
    json: JsonOption = False,
) -> None:
    """Move a branch to a transaction of its history, or back to one that a reset took off it.

    Example: headgate branch reset sales.orders master --to t-01m7f8gggmxzttp51zc67s
    """
    with connection.open(actor=actor) as hg:
        branch = hg.dataset(dataset).branch(name)
        receipt = branch.reset(to=to, operation=_operation(hg, key, "branch-reset", branch, to=to))
        show_receipt(hg, receipt, kind=PublicationKind.RESET, json=json)


@branch_app.command()
def reparent(
    dataset: DatasetArgument,
    name: NameArgument,
    under: Annotated[str, typer.Option("--under", metavar="PARENT", help="Its parent from now.")],
    actor: ActorOption = None,
    json: JsonOption = False,
) -> None:
    """Mend the ancestry that builds check; no transaction moves and no view changes.

    Example: headgate branch reparent sales.orders feature --under master
    """
    with connection.open(actor=actor) as hg:
        mended = hg.dataset(dataset).branch(name).reparent(under=under)
    _show_branch(mended, json=json)


@branch_app.command()
def protect(
    name: NameArgument,
    off: Annotated[bool, typer.Option("--off", help="Take the protection away.")] = False,
    actor: ActorOption = None,
    json: JsonOption = False,
) -> None:
    """Protect a branch name on all datasets: only builds of clean commits may change it.

    Example: headgate branch protect master
    """
    with connection.open(actor=actor) as hg:
        hg.protect(name, protected=not off)
    if json:
        show_json({"name": name, "protected": not off})
    else:
        note(f"branch {name} is {'no longer ' if off else ''}protected on every dataset.")


def _operation(
    hg: Store, key: str | None, kind: str, branch: BranchHandle, **request: str | None
) -> OperationKey | None:
    return operation_key(
        key,
        actor=hg.settings.actor,
        kind=kind,
        branch=branch.name,
        request={"dataset": str(branch.dataset.name), **request},
    )


def _delete_everywhere(hg: Store, name: str, key: str | None) -> Receipt:
    operation = operation_key(
        key, actor=hg.settings.actor, kind="branch-delete", branch=name, request={"dataset": None}
    )
    return hg.delete_everywhere(name, operation=operation)


def _show_branch(branch: Branch, *, json: bool) -> None:
    if json:
        show_json(branch_json(branch))
        return
    above = f"a child of {branch.parent}" if branch.parent else "a root"
    note(
        f"branch {branch.name} of {branch.dataset} is {above} and shows {branch.view or 'nothing'}."
    )


# `headgate tag`: pin a transaction under a name.

tag_app = typer.Typer(
    no_args_is_help=True, help="Pin a transaction under a name; cleanup keeps it."
)

TagArgument = Annotated[str, typer.Argument(metavar="NAME", help="The tag.")]


@tag_app.command("create")
def create_tag(
    dataset: DatasetArgument,
    name: TagArgument,
    at: Annotated[str, typer.Option("--at", metavar="TXN", help="A COMMITTED transaction.")],
    actor: ActorOption = None,
    json: JsonOption = False,
) -> None:
    """Pin a COMMITTED transaction of a dataset; cleanup keeps what it shows.

    Example: headgate tag create sales.orders 2026-q3 --at t-01m7f8gggmxzttp51zc67s
    """
    with connection.open(actor=actor) as hg:
        pinned = hg.dataset(dataset).tag(name, at=at)
    if json:
        show_json(tag_json(pinned))
    else:
        note(f"tag {name} of {pinned.dataset} pins {pinned.transaction}.")


@tag_app.command("list")
def list_tags(
    dataset: Annotated[
        str | None, typer.Argument(metavar="DATASET", help="All datasets unless named.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Tags, with the transactions that they pin.

    Example: headgate tag list sales.orders
    """
    with connection.open() as hg:
        found = [tag_json(tag) for tag in hg.tags(dataset)]
    if json:
        show_json(found)
        return
    show_table(
        ("DATASET", "TAG", "TRANSACTION"),
        ((tag["dataset"], tag["name"], tag["transaction"]) for tag in found),
        empty="no tag yet; `headgate tag create` makes one.",
    )


@tag_app.command("delete")
def delete_tag(dataset: DatasetArgument, name: TagArgument, json: JsonOption = False) -> None:
    """Take a tag away; cleanup may then condemn what only it kept.

    Example: headgate tag delete sales.orders 2026-q3
    """
    with connection.open() as hg:
        found = hg.dataset(dataset)
        found.untag(name)
    if json:
        show_json({"dataset": str(found.name), "name": name, "transaction": None})
    else:
        note(f"tag {name} of {found.name} is gone.")
