"""`headgate branch` and `headgate tag`: pointers to transactions of a dataset."""

from typing import Annotated

from typer import Argument, Option, Typer

from headgate import connection
from headgate.cli import output
from headgate.cli.format import branch_trees, show_receipt
from headgate.errors import Invalid
from headgate.model.access import ALL
from headgate.model.names import split_names
from headgate.model.nouns import Branch, PublicationKind
from headgate.store.documents import BRANCH, TAG

branch_app = Typer(
    no_args_is_help=True,
    help="Create, list, delete, restore, reset, reparent and protect branches.",
)

DatasetFilter = Annotated[
    str | None, Argument(metavar="DATASET", help="Dataset name (default: all datasets).")
]
NameArgument = Annotated[str, Argument(metavar="NAME", help="Branch name.")]
NamesArgument = Annotated[
    list[str], Argument(metavar="DATASET|--all-datasets NAME", help="Dataset name and branch name.")
]


@branch_app.command()
def create(
    dataset: output.DatasetArgument,
    name: NameArgument,
    parent: Annotated[
        str | None, Option("--from", help="Parent branch (default: the primary branch).")
    ] = None,
    at: Annotated[
        str | None, Option("--at", metavar="TXN", help="Start at this COMMITTED transaction.")
    ] = None,
    root: Annotated[
        bool, Option("--root", help="Create an empty branch without a parent.")
    ] = False,
    actor: output.ActorOption = None,
    key: output.KeyOption = None,
    json: output.JsonOption = False,
) -> None:
    """Create a branch from another branch, or an empty root branch.

    `--at` takes any COMMITTED transaction of the dataset that cleanup has kept, also one of a
    deleted branch; `--from` names the parent all the same.

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
    names: NamesArgument,
    all_datasets: Annotated[
        bool,
        Option("--all-datasets", help="Delete the branch of every dataset, in one publication."),
    ] = False,
    force: Annotated[
        bool, Option("--force", help="Delete the primary branch too, or one still in use.")
    ] = False,
    actor: output.ActorOption = None,
    key: output.KeyOption = None,
    json: output.JsonOption = False,
) -> None:
    """Delete a branch.

    Only the pointer is deleted: transactions stay, and child branches move to its parent. The
    primary branch, and one with child branches, OPEN transactions or running builds, is deleted
    only with --force.
    `headgate branch restore` undoes it while the history is retained.

    Example: headgate branch delete --all-datasets feature
    """
    _names(names, 1 if all_datasets else 2)
    with connection.open(actor=actor) as hg:
        if all_datasets:
            receipt = hg.delete_everywhere(names[0], force=force, idempotency_key=key)
        else:
            branch = hg.dataset(names[0]).branch(names[1])
            receipt = branch.delete(force=force, idempotency_key=key)
        show_receipt(hg, receipt, kind=PublicationKind.DELETE, json=json)


@branch_app.command()
def restore(
    names: NamesArgument,
    all_datasets: Annotated[
        bool,
        Option("--all-datasets", help="Restore the branch of every dataset, in one publication."),
    ] = False,
    actor: output.ActorOption = None,
    key: output.KeyOption = None,
    json: output.JsonOption = False,
) -> None:
    """Restore a deleted branch: its view, its parent, and children that were not moved since.

    Possible for the time to retain (`[store] retain`) after the deletion. Open transactions of the
    branch were aborted by the deletion and stay aborted.

    Example: headgate branch restore --all-datasets feature
    """
    with connection.open(actor=actor) as hg:
        if all_datasets:
            receipt = hg.restore_everywhere(*_names(names, 1), idempotency_key=key)
        else:
            dataset, name = _names(names, 2)
            receipt = hg.dataset(dataset).branch(name).restore(idempotency_key=key)
        show_receipt(hg, receipt, kind=PublicationKind.RESTORE, json=json)


def _names(given: list[str], count: int) -> list[str]:
    """Return the arguments of a verb on one dataset, or with `--all-datasets`."""
    if len(given) != count:
        raise Invalid("wrong arguments: give DATASET and NAME, or --all-datasets and NAME.")
    return given


@branch_app.command()
def reset(
    dataset: output.DatasetArgument,
    name: NameArgument,
    to: Annotated[str, Option("--to", metavar="TXN|TAG", help="Transaction or tag to move to.")],
    actor: output.ActorOption = None,
    key: output.KeyOption = None,
    json: output.JsonOption = False,
) -> None:
    """Move a branch to a COMMITTED transaction of the dataset, of any branch, that is retained.

    Builds on the branch hold the results that the reset removed: see `headgate plan --explain`.

    Example: headgate branch reset sales.orders master --to t-01m7f8gggmxzttp51zc67s
    """
    with connection.open(actor=actor) as hg:
        receipt = hg.dataset(dataset).branch(name).reset(to=to, idempotency_key=key)
        show_receipt(hg, receipt, kind=PublicationKind.RESET, json=json)


@branch_app.command()
def reparent(
    dataset: output.DatasetArgument,
    name: NameArgument,
    under: Annotated[str, Option("--under", metavar="PARENT", help="New parent branch.")],
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
    off: Annotated[bool, Option("--off", help="Remove the protection.")] = False,
    datasets: Annotated[
        list[str] | None,
        Option("--datasets", metavar="PATTERNS", help="Protect only these: gold.*,ref.*."),
    ] = None,
    actor: output.ActorOption = None,
    json: output.JsonOption = False,
) -> None:
    """Protect a branch name: only builds of clean Git commits and admins change it.

    With --datasets it is protected on the datasets that the patterns match, in place of all.

    Example: headgate branch protect master --datasets 'gold.*'
    """
    if off and datasets:
        raise Invalid("--off removes the whole protection: leave out --datasets.")
    patterns = () if off else split_names(",".join(datasets or ALL))
    with connection.open(actor=actor) as hg:
        hg.protect(name, protected=not off, datasets=patterns or ALL)
    where = "every dataset" if patterns in ((), ALL) else ", ".join(patterns)
    text = f"branch {name} is {'no longer ' if off else ''}protected on {where}."
    document = {"name": name, "protected": not off, "datasets": [*patterns]}
    output.show_result(document, text, json=json)


def _show_branch(branch: Branch, *, json: bool) -> None:
    parent = f"parent {branch.parent}" if branch.parent else "no parent (root branch)"
    view = f"view {branch.view}" if branch.view else "empty"
    text = f"branch {branch.name} of {branch.dataset}: {parent}, {view}."
    output.show_result(BRANCH.json(branch), text, json=json)


tag_app = Typer(no_args_is_help=True, help="Create, list and delete tags of transactions.")

TagArgument = Annotated[str, Argument(metavar="NAME", help="Tag name.")]


@tag_app.command("create")
def create_tag(
    dataset: output.DatasetArgument,
    name: TagArgument,
    at: Annotated[str, Option("--at", metavar="TXN", help="COMMITTED transaction.")],
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
    columns = {"DATASET": "dataset", "TAG": "name", "TRANSACTION": "transaction"}
    empty = "no tags; create one with `headgate tag create`."
    output.show_list(found, columns, empty=empty, json=json)


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
