"""Routes of datasets: list, create, show, and what they hold."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request

from headgate.endpoint.ports import Idempotency
from headgate.handles.idempotency import request_hash
from headgate.handles.wire import dataset_wire
from headgate.server.api.asking import Cursor, KeyDependency, Limit
from headgate.server.api.caller import CallerDependency
from headgate.server.api.models import ContentModel, DatasetModel
from headgate.server.api.replies import JsonReply, following, page
from headgate.server.api.requests import NewDataset, TableToRegister
from headgate.server.api.routing import documented, router

routes = router("datasets")


@routes.get("/datasets", **documented("list_datasets", list[DatasetModel], paged=True))
def list_datasets(
    caller: CallerDependency, request: Request, limit: Limit = 100, cursor: Cursor = None
) -> JsonReply:
    """All datasets by name, with the names of their branches."""
    store = caller.looking()
    found = sorted(store.datasets(), key=lambda dataset: str(dataset.name))
    rest = following(found, cursor, key=lambda dataset: str(dataset.name))
    branches = store.branches()
    return page(
        request,
        rest,
        limit=limit,
        cursor=lambda dataset: str(dataset.name),
        to=lambda dataset: dataset_wire(dataset, branches),
    )


@routes.post("/datasets", **documented("create_dataset", DatasetModel, status=201))
def create_dataset(caller: CallerDependency, body: NewDataset, keyed: KeyDependency) -> JsonReply:
    """A dataset with an empty root branch."""
    branch = body.branch or caller.served.settings.builds.branch
    with caller.acting(branch) as store:
        dataset = store.dataset(body.dataset)
        operation = keyed.operation(
            actor=store.settings.actor,
            kind="dataset-create",
            branch=branch,
            request={"dataset": str(dataset.name), "kind": body.kind},
        )
        dataset.create(kind=body.kind, branch=branch, operation=operation)
        return JsonReply(dataset_wire(dataset.load(), dataset.branches()), status_code=201)


@routes.get("/datasets/{dataset}", **documented("show_dataset", DatasetModel))
def show_dataset(caller: CallerDependency, dataset: str) -> JsonReply:
    """One dataset."""
    found = caller.looking().dataset(dataset)
    return JsonReply(dataset_wire(found.load(), found.branches()))


@routes.post(
    "/datasets/{dataset}/register", **documented("register_dataset", DatasetModel, status=201)
)
def register_dataset(
    caller: CallerDependency, dataset: str, body: TableToRegister, keyed: KeyDependency
) -> JsonReply:
    """Shows an Iceberg table that the server can reach as a dataset, without copying it."""
    branch = body.branch or caller.served.settings.builds.branch
    with caller.acting(branch) as store:
        named = store.dataset(dataset)
        request = {"dataset": str(named.name), "metadata-location": body.metadata_location}
        hashed = request_hash("dataset-register", request)
        idempotency = Idempotency(key=keyed.key, request_hash=hashed) if keyed.key else None
        named.register(body.metadata_location, branch=branch, idempotency=idempotency)
        return JsonReply(dataset_wire(named.load(), named.branches()), status_code=201)


@routes.get("/datasets/{dataset}/content", **documented("show_content", ContentModel))
def show_content(
    caller: CallerDependency,
    dataset: str,
    context: Annotated[
        str | None,
        Query(max_length=7000, description="A branch, a chain `a>b`, a moment `a@12`, `txn:ID`."),
    ] = None,
    rows: Annotated[int, Query(ge=0, le=10_000, description="So many rows, or file paths.")] = 0,
) -> JsonReply:
    """What it holds in a context: columns, counts and rows of a table, or files."""
    return JsonReply(caller.looking().dataset(dataset).show(context, rows=rows))
