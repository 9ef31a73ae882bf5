"""`headgate dataset`: create, list, show and register datasets."""

from collections import defaultdict
from typing import Annotated

import typer

from headgate import connection
from headgate.cli import output
from headgate.cli.format import branch_trees, show_content, transaction_line
from headgate.model.nouns import Branch, DatasetKind
from headgate.store.documents import dataset_json

app = typer.Typer(no_args_is_help=True, help="Create, list, show and register datasets.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Dataset name, such as sales.orders.")]


@app.command()
def create(
    name: Name,
    kind: Annotated[
        DatasetKind,
        typer.Option("--kind", case_sensitive=False, help="Table, tree of files or view."),
    ] = DatasetKind.TABLE,
    branch: output.BranchOption = None,
    create_branch: output.CreateOption = False,
    actor: output.ActorOption = None,
    key: output.KeyOption = None,
    json: output.JsonOption = False,
) -> None:
    """Create a dataset with an empty root branch (default: the primary branch).

    Example: headgate dataset create raw.scans --kind files
    """
    with connection.open(actor=actor) as hg:
        dataset, root = hg.dataset(name), branch or hg.settings.builds.branch
        dataset.create(kind=kind, branch=root, create=create_branch, idempotency_key=key)
        made, branches = dataset.load(), dataset.branches()
    text = f"created dataset {made.name} ({made.kind}) with the empty branch {root}."
    output.show_result(dataset_json(made, branches), text, json=json)


@app.command("list")
def list_(json: output.JsonOption = False) -> None:
    """List datasets and the names of their branches.

    Example: headgate dataset list
    """
    with connection.open() as hg:
        found, branches = hg.datasets(), defaultdict[str, list[Branch]](list)
        for branch in hg.branches():
            branches[branch.dataset_id].append(branch)
    nouns = [dataset_json(dataset, branches[dataset.id]) for dataset in found]
    columns = {"DATASET": "dataset", "KIND": "kind", "BRANCHES": "branches"}
    empty = "no datasets; create one with `headgate dataset create`."
    output.show_list(nouns, columns, empty=empty, json=json)


@app.command()
def show(
    name: Name,
    context: output.ContextOption = None,
    rows: Annotated[
        int,
        typer.Option(
            "--rows",
            min=0,
            max=output.MAX_COUNT,
            help="Also print rows of a table (without Spark), or file paths.",
        ),
    ] = 0,
    json: output.JsonOption = False,
) -> None:
    """Show a dataset's branches, and its content on one of them.

    JSON: {"dataset", "kind", "branches", "context", "transaction", "shown"}; for a table also
    {"schema": [{"name", "type", "required"}], "partitioning", "properties", "row_count", "rows"},
    for a view {"schema", "properties", "queries"}, for files {"files", "bytes", "paths"}. "shown"
    is the transaction as in `txn show`.

    Example: headgate dataset show sales.orders -b "feature>master" --rows 5
    """
    with connection.open() as hg:
        document = hg.dataset(name).show(context, rows=rows)
        branches = hg.dataset(name).branches()
    if json:
        output.show_json(document)
        return
    for tree in branch_trees(branches):
        output.console().print(tree)
    if document["shown"] is None:
        output.note(f"no transaction is committed on {document['context']}.")
        return
    output.console().print(transaction_line(document["shown"]))
    show_content(document, rows=rows)


@app.command()
def register(
    name: Name,
    location: Annotated[
        str,
        typer.Option(
            "--metadata-location",
            help="Metadata file, or table directory of a Hadoop catalog; local or s3://.",
        ),
    ],
    branch: output.BranchOption = None,
    create_branch: output.CreateOption = False,
    actor: output.ActorOption = None,
    key: output.KeyOption = None,
    json: output.JsonOption = False,
) -> None:
    """Register an existing Iceberg table as a dataset, without a copy.

    Headgate never moves or deletes the table's files; new files are written to the warehouse. The
    table's owner must not expire snapshots that branches still show.

    Example: headgate dataset register sales.orders --metadata-location s3://lake/sales/orders
    """
    with connection.open(actor=actor) as hg:
        dataset, target = hg.dataset(name), branch or hg.settings.builds.branch
        dataset.register(location, branch=target, create=create_branch, idempotency_key=key)
        made, branches = dataset.load(), dataset.branches()
        view = dataset.branch(target).load().view
    text = f"dataset {made.name} is registered on branch {target} from {location}."
    output.show_result(dataset_json(made, branches) | {"transaction": view}, text, json=json)
