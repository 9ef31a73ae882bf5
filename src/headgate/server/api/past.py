"""Routes of the past: histories, publications, events, and what became of an operation."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query, Request

from headgate.errors import Invalid
from headgate.handles.wire import publication_wire, transaction_wire
from headgate.model.nouns import PublicationKind
from headgate.server.api.asking import Cursor, Limit
from headgate.server.api.caller import CallerDependency
from headgate.server.api.models import (
    EventModel,
    OperationModel,
    PublicationModel,
    TransactionModel,
)
from headgate.server.api.replies import JsonReply, page
from headgate.server.api.routing import documented, router

routes = router("past")

_NUMBER_DIGITS = 15


@routes.get("/history/{dataset}", **documented("list_history", list[TransactionModel], paged=True))
def list_history(
    caller: CallerDependency,
    request: Request,
    dataset: str,
    branch: str | None = None,
    aborted: Annotated[bool, Query(alias="all", description="Also aborted ones.")] = False,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> JsonReply:
    """The transactions of a branch, newest first; of the primary one unless named."""
    store, skip = caller.looking(), _number(cursor)
    chosen = store.dataset(dataset).branch(branch or store.settings.builds.branch)
    found = chosen.history(aborted=aborted, limit=skip + limit + 1)[skip:]
    return page(
        request,
        found,
        limit=limit,
        cursor=lambda _: str(skip + limit),
        to=transaction_wire,
    )


@routes.get("/log", **documented("list_publications", list[PublicationModel], paged=True))
def list_publications(
    caller: CallerDependency,
    request: Request,
    actor: str | None = None,
    dataset: str | None = None,
    branch: str | None = None,
    kind: PublicationKind | None = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> JsonReply:
    """Publications, newest first: everything that changed what a branch shows."""
    found = caller.looking().publications(
        actor=actor,
        dataset=dataset,
        branch=branch,
        kind=kind,
        limit=limit + 1,
        before=_number(cursor) if cursor is not None else None,
    )
    return page(
        request, found, limit=limit, cursor=lambda one: str(one.number), to=publication_wire
    )


@routes.get("/log/{number}", **documented("show_publication", PublicationModel))
def show_publication(
    caller: CallerDependency, number: Annotated[int, Path(ge=1, lt=2**53)]
) -> JsonReply:
    """One publication with its moves."""
    return JsonReply(publication_wire(caller.looking().publication(number)))


@routes.get("/events", **documented("list_events", list[EventModel], paged=True))
def list_events(
    caller: CallerDependency,
    request: Request,
    actor: str | None = None,
    dataset: str | None = None,
    branch: str | None = None,
    kind: str | None = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> JsonReply:
    """What was recorded and is no publication, newest first: recoveries, refusals, protections."""
    skip = _number(cursor)
    found = caller.looking().events(
        actor=actor, dataset=dataset, branch=branch, kind=kind, limit=limit + 1, skip=skip
    )
    return page(
        request, found, limit=limit, cursor=lambda _: str(skip + limit), to=lambda event: event
    )


@routes.get("/status/{key:path}", **documented("status", OperationModel))
def status(
    caller: CallerDependency, key: str, branch: str | None = None, kind: str | None = None
) -> JsonReply:
    """What became of an operation, by its idempotency key; 404 says that nothing was committed."""
    return JsonReply(caller.looking().status(key, branch=branch, kind=kind))


def _number(cursor: str | None) -> int:
    if cursor is None:
        return 0
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) <= _NUMBER_DIGITS):
        raise Invalid(f"{cursor[:80]!r} is no cursor of this list.", cursor=cursor[:80])
    return int(cursor)
