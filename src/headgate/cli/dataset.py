"""`headgate dataset`: create, list, show and register datasets."""

from __future__ import annotations

from typing import Annotated

import typer

from headgate import connection
from headgate.cli.format import branch_trees, show_content, transaction_line
from headgate.cli.output import (
    MOST,
    ActorOption,
    BranchOption,
    JsonOption,
    KeyOption,
    console,
    note,
    show_json,
    show_table,
)
from headgate.iceberg.service import Idempotency
from headgate.model.nouns import DatasetKind
from headgate.store.documents import dataset_json
from headgate.store.embedded import operation_key, request_hash

app = typer.Typer(no_args_is_help=True, help="Create, list, show and register datasets.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="As in sales.orders.")]


@app.command()
def create(
    name: Name,
    kind: Annotated[
        DatasetKind,
        typer.Option("--kind", case_sensitive=False, help="A table, or a tree of files."),
    ] = DatasetKind.TABLE,
    branch: BranchOption = None,
    actor: ActorOption = None,
    key: KeyOption = None,
    json: JsonOption = False,
) -> None:
    """Create a dataset with an empty root branch, the primary one unless named.

    Example: headgate dataset create raw.scans --kind files
    """
    with connection.open(actor=actor) as hg:
        dataset, root = hg.dataset(name), branch or hg.settings.builds.branch
        operation = operation_key(
            key,
            actor=hg.settings.actor,
            kind="dataset-create",
            branch=root,
            request={"dataset": str(dataset.name), "kind": kind},
        )
        dataset.create(kind=kind, branch=root, operation=operation)
        made, branches = dataset.load(), dataset.branches()
    if json:
        show_json(dataset_json(made, branches))
    else:
        note(f"dataset {made.name} ({made.kind}) has the empty branch {root}.")


@app.command("list")
def list_(json: JsonOption = False) -> None:
    """All datasets, with the names of their branches.

    Example: headgate dataset list
    """
    with connection.open() as hg:
        found, branches = hg.datasets(), hg.branches()
    nouns = [dataset_json(dataset, branches) for dataset in found]
    if json:
        show_json(nouns)
        return
    show_table(
        ("DATASET", "KIND", "BRANCHES"),
        ((noun["dataset"], noun["kind"], ", ".join(noun["branches"])) for noun in nouns),
        empty="no dataset yet; `headgate dataset create` makes one.",
    )


@app.command()
def show(
    name: Name,
    context: Annotated[
        str | None,
        typer.Option("--branch", "-b", help="A branch, a chain `a>b`, a moment `a@12`, `txn:ID`."),
    ] = None,
    rows: Annotated[
        int,
        typer.Option(
            "--rows", min=0, max=MOST, help="Also rows of a table, without Spark, or file paths."
        ),
    ] = 0,
    json: JsonOption = False,
) -> None:
    """A dataset's branches, and what it holds on one of them (the primary unless named).

    JSON: {"dataset", "kind", "branches", "context", "transaction", "shown"}, of a table also
    {"schema": [{"name", "type", "required"}], "partitioning", "properties", "row_count", "rows"},
    of files {"files", "bytes", "paths"}; "shown" is the transaction as `txn show` has it.

    Example: headgate dataset show sales.orders -b "feature>master" --rows 5
    """
    with connection.open() as hg:
        document = hg.dataset(name).show(context, rows=rows)
        branches = hg.dataset(name).branches()
    if json:
        show_json(document)
        return
    for tree in branch_trees(branches):
        console().print(tree)
    if document["shown"] is None:
        note(f"nothing is committed on {document['context']} yet.")
        return
    console().print(transaction_line(document["shown"]))
    show_content(document, rows=rows)


@app.command()
def register(
    name: Name,
    location: Annotated[
        str,
        typer.Option(
            "--metadata-location",
            help="A metadata file, or the table's directory in a Hadoop catalog; local or s3://.",
        ),
    ],
    branch: BranchOption = None,
    actor: ActorOption = None,
    key: KeyOption = None,
    json: JsonOption = False,
) -> None:
    """Show an existing Iceberg table as a dataset, without copying it.

    Its files stay where they are and are never deleted by Headgate; what is added is written below
    the warehouse. Whoever owns it must not expire its snapshots while branches here show them.

    Example: headgate dataset register sales.orders --metadata-location s3://lake/sales/orders
    """
    with connection.open(actor=actor) as hg:
        dataset, target = hg.dataset(name), branch or hg.settings.builds.branch
        request = {"dataset": str(dataset.name), "metadata-location": location}
        hashed = request_hash("dataset-register", request)
        dataset.register(
            location,
            branch=target,
            idempotency=Idempotency(key=key, request_hash=hashed) if key else None,
        )
        made, branches = dataset.load(), dataset.branches()
        view = dataset.branch(target).load().view
    if json:
        show_json(dataset_json(made, branches) | {"transaction": view})
    else:
        note(f"dataset {made.name} is the table at {location}, on branch {target}.")
