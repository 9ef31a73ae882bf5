"""Routes of branches: list, create, show, delete, reset, reparent and protect."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request

from headgate.handles.wire import branch_wire
from headgate.model.names import check_branch_name
from headgate.model.nouns import Branch, PublicationKind
from headgate.server.api.asking import Cursor, KeyDependency, Limit
from headgate.server.api.caller import CallerDependency
from headgate.server.api.models import BranchModel, ProtectionModel, PublicationModel
from headgate.server.api.replies import JsonReply, following, page, published
from headgate.server.api.requests import NewBranch, Reparent, Reset
from headgate.server.api.routing import documented, router

routes = router("branches")


@routes.get("/branches", **documented("list_branches", list[BranchModel], paged=True))
def list_branches(
    caller: CallerDependency,
    request: Request,
    dataset: str | None = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> JsonReply:
    """Branches of one dataset, or of all, by name."""
    found = sorted(caller.looking().branches(dataset), key=_key)
    rest = following(found, cursor, key=_key)
    return page(request, rest, limit=limit, cursor=_key, to=branch_wire)


@routes.post("/branches", **documented("create_branch", BranchModel, status=201))
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


@routes.delete("/branches", **documented("delete_branch_everywhere", PublicationModel))
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


@routes.post("/branches/reset", **documented("reset_branch", PublicationModel))
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


@routes.post("/branches/reparent", **documented("reparent_branch", BranchModel))
def reparent_branch(caller: CallerDependency, body: Reparent) -> JsonReply:
    """Mends the ancestry that builds check; no transaction moves and no view changes."""
    with caller.acting(body.branch) as store:
        mended = store.dataset(body.dataset).branch(body.branch).reparent(under=body.under)
        return JsonReply(branch_wire(mended))


@routes.get("/branches/{dataset}/{name:path}", **documented("show_branch", BranchModel))
def show_branch(caller: CallerDependency, dataset: str, name: str) -> JsonReply:
    """One branch of one dataset."""
    return JsonReply(branch_wire(caller.looking().dataset(dataset).branch(name).load()))


@routes.delete("/branches/{dataset}/{name:path}", **documented("delete_branch", PublicationModel))
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


@routes.get("/protected", **documented("list_protected", list[str], paged=True))
def list_protected(
    caller: CallerDependency, request: Request, limit: Limit = 100, cursor: Cursor = None
) -> JsonReply:
    """Branch names that accept only builds of clean commits and admins."""
    rest = following(sorted(caller.looking().protected()), cursor, key=str)
    return page(request, rest, limit=limit, cursor=str, to=str)


@routes.put("/protected/{name:path}", **documented("protect_branch", ProtectionModel))
def protect_branch(caller: CallerDependency, name: str) -> JsonReply:
    """Protects a branch name on every dataset."""
    with caller.acting(check_branch_name(name)) as store:
        store.protect(name)
    return JsonReply({"name": name, "protected": True})


@routes.delete("/protected/{name:path}", **documented("unprotect_branch", ProtectionModel))
def unprotect_branch(caller: CallerDependency, name: str) -> JsonReply:
    """Takes the protection away."""
    with caller.acting(check_branch_name(name)) as store:
        store.protect(name, protected=False)
    return JsonReply({"name": name, "protected": False})


def _key(branch: Branch) -> str:
    # A dataset's name has no slash, so names of branches cannot run into it.
    return f"{branch.dataset}/{branch.name}"
