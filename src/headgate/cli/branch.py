"""`headgate branch` and `headgate tag`: pointers to transactions of a dataset."""

from __future__ import annotations

from typing import Annotated

import typer

from headgate import connection
from headgate.cli import output
from headgate.cli.format import branch_trees, show_receipt
from headgate.errors import Invalid
from headgate.model.nouns import Branch, PublicationKind
from headgate.store.documents import BRANCH, TAG

branch_app = typer.Typer(
    no_args_is_help=True, help="Create, list, delete, reset, reparent and protect branches."
)

DatasetFilter = Annotated[
    str | None, typer.Argument(metavar="DATASET", help="Dataset name (default: all datasets).")
]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Branch name.")]


@branch_app.command()
def create(
    dataset: output.DatasetArgument,
    name: NameArgument,
    parent: Annotated[
        str | None, typer.Option("--from", help="Parent branch (default: the primary branch).")
    ] = None,
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="TXN", help="Start at this transaction of the parent."),
    ] = None,
    root: Annotated[
        bool, typer.Option("--root", help="Create an empty branch without a parent.")
    ] = False,
    actor: output.ActorOption = None,
    key: output.KeyOption = None,
    json: output.JsonOption = False,
) -> None:
    """Create a branch from another branch, or an empty root branch.

    Example: headgate branch create sales.orders feature --from master
    """
    if root and (parent or at):
        raise Invalid(
            "--root cannot be combined with --from or --at: a root branch has no parent. "
            "Leave out one of them."
        )
    with connection.open(actor=actor) as hg:
        parent = None if root else parent or hg.settings.builds.branch
        branch = hg.dataset(dataset).branch(name)
        branch.create(parent=parent, at=at, idempotency_key=key)
        created = branch.load()
    _show_branch(created, json=json)


@branch_app.command("list")
def list_(dataset: DatasetFilter = None, json: output.JsonOption = False) -> None:
    """List branches as a tree, with the view and any OPEN head of each.

    Example: headgate branch list sales.orders
    """
    with connection.open() as hg:
        found, protected = hg.branches(dataset), hg.protected()
    if json:
        output.show_json([BRANCH.json(branch) for branch in found])
        return
    for tree in branch_trees(found, protected):
        output.console().print(tree)
    if not found:
        output.note("no branches; create one with `headgate branch create`.")


@branch_app.command()
def delete(
    names: Annotated[
        list[str],
        typer.Argument(metavar="DATASET|--all-datasets NAME", help="Dataset name and branch name."),
    ],
    all_datasets: Annotated[
        bool,
        typer.Option(
            "--all-datasets", help="Delete the branch of every dataset, in one publication."
        ),
    ] = False,
    actor: output.ActorOption = None,
    key: output.KeyOption = None,
    json: output.JsonOption = False,
) -> None:
    """Delete a branch.

    Only the pointer is deleted: transactions stay, and child branches move to its parent.

    Example: headgate branch delete --all-datasets feature
    """
    if len(names) != (1 if all_datasets else 2):
        raise Invalid("wrong arguments: give DATASET and NAME, or --all-datasets and NAME.")
    with connection.open(actor=actor) as hg:
        if all_datasets:
            receipt = hg.delete_everywhere(names[0], idempotency_key=key)
        else:
            receipt = hg.dataset(names[0]).branch(names[1]).delete(idempotency_key=key)
        show_receipt(hg, receipt, kind=PublicationKind.DELETE, json=json)


@branch_app.command()
def reset(
    dataset: output.DatasetArgument,
    name: NameArgument,
    to: Annotated[str, typer.Option("--to", metavar="TXN", help="Transaction to move to.")],
    actor: output.ActorOption = None,
    key: output.KeyOption = None,
    json: output.JsonOption = False,
) -> None:
    """Move a branch to a transaction of its history, or to one that a reset removed.

    Example: headgate branch reset sales.orders master --to t-01m7f8gggmxzttp51zc67s
    """
    with connection.open(actor=actor) as hg:
        receipt = hg.dataset(dataset).branch(name).reset(to=to, idempotency_key=key)
        show_receipt(hg, receipt, kind=PublicationKind.RESET, json=json)


@branch_app.command()
def reparent(
    dataset: output.DatasetArgument,
    name: NameArgument,
    under: Annotated[str, typer.Option("--under", metavar="PARENT", help="New parent branch.")],
    actor: output.ActorOption = None,
    json: output.JsonOption = False,
) -> None:
    """Change the parent of a branch; a build requires one that is on its chain. No view changes.

    Example: headgate branch reparent sales.orders feature --under master
    """
    with connection.open(actor=actor) as hg:
        changed = hg.dataset(dataset).branch(name).reparent(under=under)
    _show_branch(changed, json=json)


@branch_app.command()
def protect(
    name: NameArgument,
    off: Annotated[bool, typer.Option("--off", help="Remove the protection.")] = False,
    actor: output.ActorOption = None,
    json: output.JsonOption = False,
) -> None:
    """Protect a branch name on all datasets: only builds of clean Git commits and admins change it.

    Example: headgate branch protect master
    """
    with connection.open(actor=actor) as hg:
        hg.protect(name, protected=not off)
    text = f"branch {name} is {'no longer ' if off else ''}protected on every dataset."
    output.show_result({"name": name, "protected": not off}, text, json=json)


def _show_branch(branch: Branch, *, json: bool) -> None:
    parent = f"parent {branch.parent}" if branch.parent else "no parent (root branch)"
    view = f"view {branch.view}" if branch.view else "empty"
    text = f"branch {branch.name} of {branch.dataset}: {parent}, {view}."
    output.show_result(BRANCH.json(branch), text, json=json)


tag_app = typer.Typer(no_args_is_help=True, help="Create, list and delete tags of transactions.")

TagArgument = Annotated[str, typer.Argument(metavar="NAME", help="Tag name.")]


@tag_app.command("create")
def create_tag(
    dataset: output.DatasetArgument,
    name: TagArgument,
    at: Annotated[str, typer.Option("--at", metavar="TXN", help="COMMITTED transaction.")],
    actor: output.ActorOption = None,
    json: output.JsonOption = False,
) -> None:
    """Create a tag of a COMMITTED transaction; cleanup keeps its data.

    Example: headgate tag create sales.orders 2026-q3 --at t-01m7f8gggmxzttp51zc67s
    """
    with connection.open(actor=actor) as hg:
        pinned = hg.dataset(dataset).tag(name, at=at)
    text = f"tag {name} of {pinned.dataset} is at {pinned.transaction}."
    output.show_result(TAG.json(pinned), text, json=json)


@tag_app.command("list")
def list_tags(dataset: DatasetFilter = None, json: output.JsonOption = False) -> None:
    """List tags and their transactions.

    Example: headgate tag list sales.orders
    """
    with connection.open() as hg:
        found = [TAG.json(tag) for tag in hg.tags(dataset)]
    if json:
        output.show_json(found)
        return
    output.show_table(
        ("DATASET", "TAG", "TRANSACTION"),
        ((tag["dataset"], tag["name"], tag["transaction"]) for tag in found),
        empty="no tags; create one with `headgate tag create`.",
    )


@tag_app.command("delete")
def delete_tag(
    dataset: output.DatasetArgument, name: TagArgument, json: output.JsonOption = False
) -> None:
    """Delete a tag; cleanup may then delete data that only the tag kept.

    Example: headgate tag delete sales.orders 2026-q3
    """
    with connection.open() as hg:
        found = hg.dataset(dataset)
        found.untag(name)
    document = {"dataset": str(found.name), "name": name, "transaction": None}
    output.show_result(document, f"tag {name} of {found.name} is deleted.", json=json)
