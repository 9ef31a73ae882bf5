"""Routes of datasets: list, create, show, and what they hold."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request

from headgate.errors import NotFound
from headgate.iceberg.service import Idempotency
from headgate.model.ids import instant_text
from headgate.model.names import check_branch_name
from headgate.model.nouns import Branch, PublicationKind, Tag
from headgate.server.api.conventions import (
    REPLAYED,
    Caller,
    CallerDependency,
    Cursor,
    JsonReply,
    KeyDependency,
    Limit,
    documented,
    following,
    page,
    published,
    router,
)
from headgate.server.api.models import (
    BranchModel,
    ContentModel,
    DatasetModel,
    DifferenceModel,
    InUnit,
    NewBranch,
    NewDataset,
    NewTag,
    NewTransaction,
    NewUnit,
    ProtectionModel,
    PublicationModel,
    Reparent,
    Reset,
    TableToRegister,
    TagModel,
    TransactionModel,
    UnitModel,
)
from headgate.store.documents import Json, branch_wire, dataset_wire, tag_json, transaction_wire
from headgate.store.embedded import Store, request_hash
from headgate.store.transactions import TransactionHandle, UnitHandle

dataset_routes = router("datasets")


@dataset_routes.get("/datasets", **documented("list_datasets", list[DatasetModel], paged=True))
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


@dataset_routes.post("/datasets", **documented("create_dataset", DatasetModel, status=201))
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


@dataset_routes.get("/datasets/{dataset}", **documented("show_dataset", DatasetModel))
def show_dataset(caller: CallerDependency, dataset: str) -> JsonReply:
    """One dataset."""
    found = caller.looking().dataset(dataset)
    return JsonReply(dataset_wire(found.load(), found.branches()))


@dataset_routes.post(
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


@dataset_routes.get("/datasets/{dataset}/content", **documented("show_content", ContentModel))
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


# Routes of branches: list, create, show, delete, reset, reparent and protect.

branch_routes = router("branches")


@branch_routes.get("/branches", **documented("list_branches", list[BranchModel], paged=True))
def list_branches(
    caller: CallerDependency,
    request: Request,
    dataset: str | None = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> JsonReply:
    """Branches of one dataset, or of all, by name."""
    found = sorted(caller.looking().branches(dataset), key=_branch_key)
    rest = following(found, cursor, key=_branch_key)
    return page(request, rest, limit=limit, cursor=_branch_key, to=branch_wire)


@branch_routes.post("/branches", **documented("create_branch", BranchModel, status=201))
def create_branch(caller: CallerDependency, body: NewBranch, keyed: KeyDependency) -> JsonReply:
    """A child that shows what its parent shows, or showed at a transaction; or an empty root."""
    with caller.acting(body.name) as store:
        branch = store.dataset(body.dataset).branch(body.name)
        operation = keyed.operation(
            actor=store.settings.actor,
            kind="branch-create",
            branch=body.name,
            request={"dataset": str(branch.dataset.name), "parent": body.parent, "at": body.at},
        )
        branch.create(parent=body.parent, at=body.at, operation=operation)
        return JsonReply(branch_wire(branch.load()), status_code=201)


@branch_routes.delete("/branches", **documented("delete_branch_everywhere", PublicationModel))
def delete_branch_everywhere(
    caller: CallerDependency, name: Annotated[str, Query(max_length=200)], keyed: KeyDependency
) -> JsonReply:
    """Deletes a branch of every dataset that has it, at once."""
    with caller.acting(name) as store:
        operation = keyed.operation(
            actor=store.settings.actor, kind="branch-delete", branch=name, request={"dataset": None}
        )
        receipt = store.delete_everywhere(name, operation=operation)
        return published(store, receipt, kind=PublicationKind.DELETE)


@branch_routes.post("/branches/reset", **documented("reset_branch", PublicationModel))
def reset_branch(caller: CallerDependency, body: Reset, keyed: KeyDependency) -> JsonReply:
    """Moves a branch to a transaction of its history, or back to one that a reset took off it."""
    with caller.acting(body.branch) as store:
        branch = store.dataset(body.dataset).branch(body.branch)
        operation = keyed.operation(
            actor=store.settings.actor,
            kind="branch-reset",
            branch=body.branch,
            request={"dataset": str(branch.dataset.name), "to": body.to},
        )
        receipt = branch.reset(to=body.to, operation=operation)
        return published(store, receipt, kind=PublicationKind.RESET)


@branch_routes.post("/branches/reparent", **documented("reparent_branch", BranchModel))
def reparent_branch(caller: CallerDependency, body: Reparent) -> JsonReply:
    """Mends the ancestry that builds check; no transaction moves and no view changes."""
    with caller.acting(body.branch) as store:
        mended = store.dataset(body.dataset).branch(body.branch).reparent(under=body.under)
        return JsonReply(branch_wire(mended))


@branch_routes.get("/branches/{dataset}/{name:path}", **documented("show_branch", BranchModel))
def show_branch(caller: CallerDependency, dataset: str, name: str) -> JsonReply:
    """One branch of one dataset."""
    return JsonReply(branch_wire(caller.looking().dataset(dataset).branch(name).load()))


@branch_routes.delete(
    "/branches/{dataset}/{name:path}", **documented("delete_branch", PublicationModel)
)
def delete_branch(
    caller: CallerDependency, dataset: str, name: str, keyed: KeyDependency
) -> JsonReply:
    """Deletes the pointer only; its children go to its parent, transactions stay."""
    with caller.acting(name) as store:
        branch = store.dataset(dataset).branch(name)
        operation = keyed.operation(
            actor=store.settings.actor,
            kind="branch-delete",
            branch=name,
            request={"dataset": str(branch.dataset.name)},
        )
        return published(store, branch.delete(operation=operation), kind=PublicationKind.DELETE)


@branch_routes.get("/protected", **documented("list_protected", list[str], paged=True))
def list_protected(
    caller: CallerDependency, request: Request, limit: Limit = 100, cursor: Cursor = None
) -> JsonReply:
    """Branch names that accept only builds of clean commits and admins."""
    rest = following(sorted(caller.looking().protected()), cursor, key=str)
    return page(request, rest, limit=limit, cursor=str, to=str)


@branch_routes.put("/protected/{name:path}", **documented("protect_branch", ProtectionModel))
def protect_branch(caller: CallerDependency, name: str) -> JsonReply:
    """Protects a branch name on every dataset."""
    with caller.acting(check_branch_name(name)) as store:
        store.protect(name)
    return JsonReply({"name": name, "protected": True})


@branch_routes.delete("/protected/{name:path}", **documented("unprotect_branch", ProtectionModel))
def unprotect_branch(caller: CallerDependency, name: str) -> JsonReply:
    """Takes the protection away."""
    with caller.acting(check_branch_name(name)) as store:
        store.protect(name, protected=False)
    return JsonReply({"name": name, "protected": False})


def _branch_key(branch: Branch) -> str:
    # A dataset's name has no slash, so names of branches cannot run into it.
    return f"{branch.dataset}/{branch.name}"


# Routes of tags: list, create and delete.

tag_routes = router("tags")


@tag_routes.get("/tags", **documented("list_tags", list[TagModel], paged=True))
def list_tags(
    caller: CallerDependency,
    request: Request,
    dataset: str | None = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> JsonReply:
    """Tags of one dataset, or of all, with the transactions that they pin."""
    found = sorted(caller.looking().tags(dataset), key=_tag_key)
    rest = following(found, cursor, key=_tag_key)
    return page(request, rest, limit=limit, cursor=_tag_key, to=tag_json)


@tag_routes.post("/tags", **documented("create_tag", TagModel, status=201))
def create_tag(caller: CallerDependency, body: NewTag) -> JsonReply:
    """Pins a COMMITTED transaction; whoever may write the branch it was made on may."""
    branch = caller.looking().opened(body.at).branch
    with caller.acting(branch) as store:
        pinned = store.dataset(body.dataset).tag(body.name, at=body.at)
        return JsonReply(tag_json(pinned), status_code=201)


@tag_routes.delete("/tags/{dataset}/{name:path}", **documented("delete_tag", TagModel))
def delete_tag(caller: CallerDependency, dataset: str, name: str) -> JsonReply:
    """Takes a tag away; cleanup may then condemn what only it kept."""
    with caller.acting(_branch_of(caller, dataset, name)) as store:
        found = store.dataset(dataset)
        found.untag(name)
        return JsonReply({"dataset": str(found.name), "name": name, "transaction": None})


def _branch_of(caller: Caller, dataset: str, name: str) -> str:
    store = caller.looking()
    pinned = next((tag for tag in store.tags(dataset) if tag.name == name), None)
    if pinned is None:
        raise NotFound(f"dataset {dataset} has no tag {name!r}.", tag=name)
    return store.opened(pinned.transaction).branch


def _tag_key(tag: Tag) -> str:
    return f"{tag.dataset}/{tag.name}"


# Routes of transactions, and of units of them: open, show, renew, commit and abort.

transaction_routes = router("transactions")


@transaction_routes.post(
    "/transactions", **documented("open_transaction", TransactionModel, status=201)
)
def open_transaction(caller: CallerDependency, body: NewTransaction) -> JsonReply:
    """Opens a transaction on a branch of a dataset."""
    with caller.acting(body.branch) as store:
        branch = store.dataset(body.dataset).branch(body.branch)
        opened = branch.transaction(body.type, lease_seconds=body.lease_seconds)
        return JsonReply(transaction_wire(opened.transaction), status_code=201)


@transaction_routes.post("/units", **documented("open_unit", UnitModel, status=201))
def open_unit(caller: CallerDependency, body: NewUnit) -> JsonReply:
    """A unit: several datasets' transactions that commit or abort together."""
    with caller.acting(body.branch) as store:
        unit = store.transaction(branch=body.branch, lease_seconds=body.lease_seconds)
        return JsonReply(unit.noun(), status_code=201)


@transaction_routes.post(
    "/units/{unit}/transactions", **documented("open_in_unit", TransactionModel)
)
def open_in_unit(caller: CallerDependency, unit: str, body: InUnit) -> JsonReply:
    """The unit's transaction on a dataset, opened at its first use."""
    with caller.acting(UnitHandle.load(caller.looking(), unit).branch) as store:
        opened = UnitHandle.load(store, unit).dataset(body.dataset)
        return JsonReply(transaction_wire(opened.transaction))


@transaction_routes.get(
    "/transactions/{id}", **documented("show_transaction", TransactionModel | UnitModel)
)
def show_transaction(caller: CallerDependency, id: str) -> JsonReply:
    """A transaction, or a unit with all of its transactions."""
    store = caller.looking()
    return JsonReply(_noun(store, store.opened(id)))


@transaction_routes.post(
    "/transactions/{id}/renew", **documented("renew_transaction", TransactionModel | UnitModel)
)
def renew_transaction(caller: CallerDependency, id: str) -> JsonReply:
    """Its lease begins again."""
    with caller.acting(caller.looking().opened(id).branch) as store:
        opened = store.opened(id)
        opened.renew()
        return JsonReply(_noun(store, opened))


@transaction_routes.post(
    "/transactions/{id}/commit", **documented("commit_transaction", TransactionModel | UnitModel)
)
def commit_transaction(caller: CallerDependency, id: str, keyed: KeyDependency) -> JsonReply:
    """Commits it, or all of a unit's in one publication, whose number is in the reply."""
    with caller.acting(caller.looking().opened(id).branch) as store:
        opened = store.opened(id)
        operation = keyed.operation(
            actor=store.settings.actor,
            kind="txn-commit",
            branch=opened.branch,
            request={"transaction": opened.id},
        )
        receipt = opened.commit(operation=operation)
        # Of the operation, not of the transaction: so a client has the whole receipt.
        outcome = {
            "publication": receipt.publication,
            "operation": receipt.operation,
            "receipt": receipt.transactions,
            "at": instant_text(receipt.at),
        }
        headers = {REPLAYED: "true"} if receipt.replayed else None
        return JsonReply(_noun(store, opened) | outcome, headers=headers)


@transaction_routes.post(
    "/transactions/{id}/abort", **documented("abort_transaction", TransactionModel | UnitModel)
)
def abort_transaction(caller: CallerDependency, id: str) -> JsonReply:
    """Aborts it, or all of a unit's: nothing of them is ever visible."""
    with caller.acting(caller.looking().opened(id).branch) as store:
        opened = store.opened(id)
        opened.abort()
        return JsonReply(_noun(store, opened))


def _noun(store: Store, opened: TransactionHandle | UnitHandle) -> Json:
    if isinstance(opened, UnitHandle):
        return opened.noun()
    return transaction_wire(TransactionHandle.load(store, opened.id).transaction)


# The route of differences between two branches, contexts or transactions.

difference_routes = router("differences")


@difference_routes.get("/diff", **documented("diff", DifferenceModel | list[DifferenceModel]))
def diff(
    caller: CallerDependency,
    before: Annotated[str, Query(alias="from", max_length=7000, examples=["master"])],
    after: Annotated[str, Query(alias="to", max_length=7000, examples=["feature"])],
    dataset: str | None = None,
    rows: Annotated[int, Query(ge=0, le=1000, description="How many samples of each.")] = 5,
    key: Annotated[list[str] | None, Query(description="Columns that tell rows apart.")] = None,
) -> JsonReply:
    """Schema, counts and samples of one dataset; without one, of all that differ, as a list."""
    return JsonReply(
        caller.looking().differences(before, after, dataset=dataset, rows=rows, key=key or ())
    )
