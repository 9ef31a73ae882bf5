"""Routes of datasets, branches, tags, transactions, units and differences."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import Query

from headgate.catalog.records import branches_of, shown_branches
from headgate.errors import Invalid, TagNotFound
from headgate.model.access import ALL
from headgate.model.ids import instant_text
from headgate.model.names import check_branch_name
from headgate.model.nouns import PublicationKind
from headgate.server.api import conventions as api
from headgate.server.api import models
from headgate.store.documents import BRANCH, TAG, TRANSACTION, Json, dataset_wire
from headgate.store.embedded import Store
from headgate.store.transactions import TransactionHandle, UnitHandle

dataset_routes = api.router("datasets")


@dataset_routes.get("/datasets", **api.documented(list[models.DatasetModel], paged=True))
def list_datasets(caller: api.CallerDependency, pages: api.Pages) -> api.JsonReply:
    """List all datasets by name, with the names of their branches."""
    store = caller.reading()
    found = store.datasets(limit=pages.limit + 1, after=pages.cursor)
    branches = store.database.read(lambda c: branches_of(c, [dataset.id for dataset in found]))
    branches.sort(key=lambda branch: branch.name)
    return pages.page(
        found,
        cursor=lambda dataset: dataset.name,
        to=lambda dataset: dataset_wire(dataset, branches),
    )


@dataset_routes.post("/datasets", **api.documented(models.DatasetModel, status=201))
def create_dataset(
    caller: api.CallerDependency, body: models.NewDataset, key: api.IdempotencyKey
) -> api.JsonReply:
    """Create a dataset with an empty root branch."""
    branch = body.branch or caller.served.settings.builds.branch
    with caller.writing(branch) as store:
        dataset = store.dataset(body.dataset)
        dataset.create(kind=body.kind, branch=branch, create=body.create, idempotency_key=key)
        return api.JsonReply(dataset_wire(dataset.load(), dataset.branches()), status_code=201)


@dataset_routes.get("/datasets/{dataset:dataset}", **api.documented(models.DatasetModel))
def show_dataset(caller: api.CallerDependency, dataset: str) -> api.JsonReply:
    """Return one dataset."""
    found = caller.reading().dataset(dataset)
    return api.JsonReply(dataset_wire(found.load(), found.branches()))


@dataset_routes.post(
    "/datasets/{dataset:dataset}/register", **api.documented(models.DatasetModel, status=201)
)
def register_dataset(
    caller: api.CallerDependency,
    dataset: str,
    body: models.TableToRegister,
    key: api.IdempotencyKey,
) -> api.JsonReply:
    """Register an Iceberg table that the server can reach as a dataset, without copying it."""
    branch = body.branch or caller.served.settings.builds.branch
    with caller.writing(branch) as store:
        named = store.dataset(dataset)
        where = body.metadata_location
        named.register(where, branch=branch, create=body.create, idempotency_key=key)
        return api.JsonReply(dataset_wire(named.load(), named.branches()), status_code=201)


@dataset_routes.get("/datasets/{dataset:dataset}/content", **api.documented(models.ContentModel))
def show_content(
    caller: api.CallerDependency,
    dataset: str,
    context: Annotated[
        str | None,
        Query(max_length=7000, description="A branch, a chain `a>b`, a moment `a@12`, `txn:ID`."),
    ] = None,
    rows: Annotated[int, Query(ge=0, le=10_000, description="Number of rows or file paths.")] = 0,
    *,
    interrupt: api.Interruption,
) -> api.JsonReply:
    """Return the content of a dataset in a context: columns, counts and rows, or files."""
    store = caller.reading()
    store.interrupt = interrupt
    return api.JsonReply(store.dataset(dataset).show(context, rows=rows))


# Branches

branch_routes = api.router("branches")

ForceQuery = Annotated[
    bool,
    Query(description="Also the primary branch, and one that others still use.", examples=[True]),
]


@branch_routes.get("/branches", **api.documented(list[models.BranchModel], paged=True))
def list_branches(
    caller: api.CallerDependency, pages: api.Pages, dataset: str | None = None
) -> api.JsonReply:
    """List the branches of one dataset, or of all, by name."""
    found = caller.reading().branches(dataset, limit=pages.limit + 1, after=pages.cursor)
    return pages.page(found, cursor=lambda b: f"{b.dataset}@{b.name}", to=BRANCH.wire)


@branch_routes.post("/branches", **api.documented(models.BranchModel, status=201))
def create_branch(
    caller: api.CallerDependency, body: models.NewBranch, key: api.IdempotencyKey
) -> api.JsonReply:
    """Create a child at its parent's view or at a COMMITTED transaction, or an empty root."""
    with caller.writing(body.name) as store:
        branch = store.dataset(body.dataset).branch(body.name)
        branch.create(parent=body.parent, at=body.at, idempotency_key=key)
        return api.JsonReply(BRANCH.wire(branch.load()), status_code=201)


@branch_routes.delete("/branches", **api.documented(models.PublicationModel))
def delete_branch_everywhere(
    caller: api.CallerDependency,
    name: Annotated[str, Query(max_length=200)],
    key: api.IdempotencyKey,
    force: ForceQuery = False,
) -> api.JsonReply:
    """Delete a branch of every dataset that has it, in one publication."""
    with caller.writing(name) as store:
        receipt = store.delete_everywhere(name, force=force, idempotency_key=key)
        return api.published(store, receipt, kind=PublicationKind.DELETE)


@branch_routes.post("/branches/restore", **api.documented(models.PublicationModel))
def restore_branch(
    caller: api.CallerDependency, body: models.Restore, key: api.IdempotencyKey
) -> api.JsonReply:
    """Restore a deleted branch of one dataset, or of all: id, view, parent and children."""
    with caller.writing(body.branch) as store:
        receipt = (
            store.restore_everywhere(body.branch, idempotency_key=key)
            if body.dataset is None
            else store.dataset(body.dataset).branch(body.branch).restore(idempotency_key=key)
        )
        return api.published(store, receipt, kind=PublicationKind.RESTORE)


@branch_routes.post("/branches/reset", **api.documented(models.PublicationModel))
def reset_branch(
    caller: api.CallerDependency, body: models.Reset, key: api.IdempotencyKey
) -> api.JsonReply:
    """Move a branch to a COMMITTED transaction of its dataset, of any branch, that is retained."""
    with caller.writing(body.branch) as store:
        branch = store.dataset(body.dataset).branch(body.branch)
        receipt = branch.reset(to=body.to, idempotency_key=key)
        return api.published(store, receipt, kind=PublicationKind.RESET)


@branch_routes.post("/branches/reparent", **api.documented(models.BranchModel))
def reparent_branch(caller: api.CallerDependency, body: models.Reparent) -> api.JsonReply:
    """Correct the ancestry that builds check; no transaction moves and no view changes."""
    with caller.writing(body.branch) as store:
        changed = store.dataset(body.dataset).branch(body.branch).reparent(under=body.under)
        return api.JsonReply(BRANCH.wire(changed))


@branch_routes.get("/branches/{dataset:dataset}/{name:path}", **api.documented(models.BranchModel))
def show_branch(caller: api.CallerDependency, dataset: str, name: str) -> api.JsonReply:
    """Return one branch of one dataset."""
    return api.JsonReply(BRANCH.wire(caller.reading().dataset(dataset).branch(name).load()))


@branch_routes.delete(
    "/branches/{dataset:dataset}/{name:path}", **api.documented(models.PublicationModel)
)
def delete_branch(
    caller: api.CallerDependency,
    dataset: str,
    name: str,
    key: api.IdempotencyKey,
    force: ForceQuery = False,
) -> api.JsonReply:
    """Delete only the pointer of a branch; its children go to its parent, transactions stay."""
    with caller.writing(name) as store:
        receipt = store.dataset(dataset).branch(name).delete(force=force, idempotency_key=key)
        return api.published(store, receipt, kind=PublicationKind.DELETE)


@branch_routes.get("/protected", **api.documented(list[models.ProtectionModel], paged=True))
def list_protected(caller: api.CallerDependency, pages: api.Pages) -> api.JsonReply:
    """List the branch names that accept only builds of clean commits and admins."""
    found = [_protection(name, patterns) for name, patterns in caller.reading().protected().items()]
    return pages.page_by_key(found, key=lambda one: str(one["name"]))


@branch_routes.put("/protected/{name:path}", **api.documented(models.ProtectionModel))
def protect_branch(
    caller: api.CallerDependency,
    name: str,
    datasets: Annotated[
        list[str] | None,
        Query(description="Patterns of the datasets; left out: all.", examples=[["gold.*"]]),
    ] = None,
) -> api.JsonReply:
    """Protect a branch name on the datasets that patterns match; replaces its protection."""
    return _protect(caller, name, datasets or ALL)


@branch_routes.delete("/protected/{name:path}", **api.documented(models.ProtectionModel))
def unprotect_branch(caller: api.CallerDependency, name: str) -> api.JsonReply:
    """Remove the protection of a branch name."""
    return _protect(caller, name, ())


def _protect(caller: api.Caller, name: str, datasets: Sequence[str]) -> api.JsonReply:
    with caller.writing(check_branch_name(name)) as store:
        store.protect(name, protected=bool(datasets), datasets=datasets or ALL)
    return api.JsonReply(_protection(name, datasets))


def _protection(name: str, datasets: Sequence[str]) -> Json:
    return {"name": name, "protected": bool(datasets), "datasets": [*datasets]}


# Tags

tag_routes = api.router("tags")


@tag_routes.get("/tags", **api.documented(list[models.TagModel], paged=True))
def list_tags(
    caller: api.CallerDependency, pages: api.Pages, dataset: str | None = None
) -> api.JsonReply:
    """List the tags of one dataset, or of all, with the transactions that they pin."""
    found = caller.reading().tags(dataset)
    return pages.page_by_key(found, key=lambda tag: f"{tag.dataset}/{tag.name}", to=TAG.json)


@tag_routes.post("/tags", **api.documented(models.TagModel, status=201))
def create_tag(caller: api.CallerDependency, body: models.NewTag) -> api.JsonReply:
    """Pin a COMMITTED transaction; the caller must have the right to write its branch."""
    branch = caller.reading().opened(body.at).branch
    with caller.writing(branch) as store:
        pinned = store.dataset(body.dataset).tag(body.name, at=body.at)
        return api.JsonReply(TAG.json(pinned), status_code=201)


@tag_routes.delete("/tags/{dataset:dataset}/{name:path}", **api.documented(models.TagModel))
def delete_tag(caller: api.CallerDependency, dataset: str, name: str) -> api.JsonReply:
    """Delete a tag; cleanup may then condemn content that only the tag kept."""
    with caller.writing(_branch_of(caller, dataset, name)) as store:
        found = store.dataset(dataset)
        found.untag(name)
        return api.JsonReply({"dataset": str(found.name), "name": name, "transaction": None})


def _branch_of(caller: api.Caller, dataset: str, name: str) -> str:
    store = caller.reading()
    pinned = next((tag for tag in store.tags(dataset) if tag.name == name), None)
    if pinned is None:
        raise TagNotFound(tag=name, dataset=dataset)
    return store.opened(pinned.transaction).branch


# Transactions and units

transaction_routes = api.router("transactions")

_OPENED = api.documented(models.TransactionModel | models.UnitModel)


@transaction_routes.post("/transactions", **api.documented(models.TransactionModel, status=201))
def open_transaction(caller: api.CallerDependency, body: models.NewTransaction) -> api.JsonReply:
    """Open a transaction on a branch of a dataset."""
    with caller.writing(body.branch) as store:
        branch = store.dataset(body.dataset).branch(body.branch)
        opened = branch.transaction(body.type, lease_seconds=body.lease_seconds)
        return api.JsonReply(TRANSACTION.wire(opened.transaction), status_code=201)


@transaction_routes.post("/units", **api.documented(models.UnitModel, status=201))
def open_unit(caller: api.CallerDependency, body: models.NewUnit) -> api.JsonReply:
    """Open a unit: transactions of several datasets that commit or abort together."""
    with caller.writing(body.branch) as store:
        return api.JsonReply(store.transaction(**body.model_dump()).noun(), status_code=201)


@transaction_routes.post("/units/{unit}/transactions", **api.documented(models.TransactionModel))
def open_in_unit(caller: api.CallerDependency, unit: str, body: models.InUnit) -> api.JsonReply:
    """Return the unit's transaction on a dataset; the first request opens it."""
    with caller.writing(UnitHandle.load(caller.reading(), unit).branch) as store:
        opened = UnitHandle.load(store, unit).dataset(body.dataset)
        return api.JsonReply(TRANSACTION.wire(opened.transaction))


@transaction_routes.get("/transactions/{id}", **_OPENED)
def show_transaction(caller: api.CallerDependency, id: str) -> api.JsonReply:
    """Return a transaction, or a unit with all of its transactions."""
    store = caller.reading()
    return api.JsonReply(_noun(store, store.opened(id)))


@transaction_routes.post("/transactions/{id}/renew", **_OPENED)
def renew_transaction(caller: api.CallerDependency, id: str) -> api.JsonReply:
    """Renew the lease of a transaction or unit."""
    with caller.writing(caller.reading().opened(id).branch) as store:
        opened = store.opened(id)
        opened.renew()
        return api.JsonReply(_noun(store, opened))


@transaction_routes.post("/transactions/{id}/commit", **_OPENED)
def commit_transaction(
    caller: api.CallerDependency, id: str, key: api.IdempotencyKey
) -> api.JsonReply:
    """Commit a transaction or a whole unit in one publication, and return its number."""
    with caller.writing(caller.reading().opened(id).branch) as store:
        opened = store.opened(id)
        receipt = opened.commit(idempotency_key=key)
        shown = store.database.read(lambda c: shown_branches(c, receipt.transactions))
        # Fields of the operation, not of the transaction: the client needs the whole receipt.
        outcome = {
            "publication": receipt.publication,
            "operation": receipt.operation,
            "receipt": {id: to for id, to in receipt.transactions.items() if id in shown},
            "at": instant_text(receipt.at),
        }
        return api.JsonReply(_noun(store, opened) | outcome, replayed=receipt.replayed)


@transaction_routes.post("/transactions/{id}/abort", **_OPENED)
def abort_transaction(caller: api.CallerDependency, id: str) -> api.JsonReply:
    """Abort a transaction or a whole unit; its changes never become visible."""
    with caller.writing(caller.reading().opened(id).branch) as store:
        opened = store.opened(id)
        opened.abort()
        return api.JsonReply(_noun(store, opened))


def _noun(store: Store, opened: TransactionHandle | UnitHandle) -> Json:
    if isinstance(opened, UnitHandle):
        return opened.noun()
    return TRANSACTION.wire(TransactionHandle.load(store, opened.id).transaction)


# Differences between two branches, contexts or transactions

difference_routes = api.router("differences")


@difference_routes.get(
    "/diff", **api.documented(models.DifferenceModel | list[models.DifferenceModel])
)
def diff(
    caller: api.CallerDependency,
    before: Annotated[str | None, Query(alias="from", max_length=7000, examples=["master"])] = None,
    after: Annotated[str | None, Query(alias="to", max_length=7000, examples=["feature"])] = None,
    branch: Annotated[
        str | None,
        Query(
            max_length=7000,
            description="Branch to merge, in place of from and to.",
            examples=["feature"],
        ),
    ] = None,
    into: Annotated[
        str | None,
        Query(
            max_length=7000,
            description="Target of the merge: the branch's parent.",
            examples=["master"],
        ),
    ] = None,
    dataset: str | None = None,
    rows: Annotated[int, Query(ge=0, le=1000, description="Number of samples of each kind.")] = 5,
    key: Annotated[list[str] | None, Query(description="Columns that identify a row.")] = None,
    *,
    interrupt: api.Interruption,
) -> api.JsonReply:
    """Compare a dataset, or list all that differ; with `branch`, return what a merge changes."""
    store = caller.reading()
    store.interrupt = interrupt
    if branch is not None:
        return api.JsonReply(store.review(branch, into=into, dataset=dataset, rows=rows))
    if before is None or after is None:
        raise Invalid("name two versions with `from` and `to`, or a branch to merge.")
    return api.JsonReply(
        store.differences(before, after, dataset=dataset, rows=rows, key=key or ())
    )
