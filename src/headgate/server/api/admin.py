"""Routes of the store itself: what it is, recovery, cleanup, the doctor."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Path, Query, Request

from headgate import __version__
from headgate.errors import Invalid
from headgate.model.access import allow_handing_out
from headgate.model.nouns import PublicationKind
from headgate.server.api.conventions import (
    CallerDependency,
    Cursor,
    JsonReply,
    Limit,
    documented,
    following,
    page,
    router,
)
from headgate.server.api.models import (
    CleanUp,
    CleanupModel,
    EventModel,
    ExaminedModel,
    NewToken,
    NewTokenModel,
    OperationModel,
    PublicationModel,
    Recover,
    RecoveryModel,
    StoreModel,
    TokenModel,
    TransactionModel,
)
from headgate.store.documents import Json, publication_wire, recovery_json, transaction_wire

# Routes of the past: histories, publications, events, and what became of an operation.

past_routes = router("past")

_NUMBER_DIGITS = 15


@past_routes.get(
    "/history/{dataset}", **documented("list_history", list[TransactionModel], paged=True)
)
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


@past_routes.get("/log", **documented("list_publications", list[PublicationModel], paged=True))
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


@past_routes.get("/log/{number}", **documented("show_publication", PublicationModel))
def show_publication(
    caller: CallerDependency, number: Annotated[int, Path(ge=1, lt=2**53)]
) -> JsonReply:
    """One publication with its moves."""
    return JsonReply(publication_wire(caller.looking().publication(number)))


@past_routes.get("/events", **documented("list_events", list[EventModel], paged=True))
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


@past_routes.get("/status/{key:path}", **documented("status", OperationModel))
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


# Routes of tokens: list, create and revoke; for admins.

token_routes = router("tokens")


@token_routes.get("/tokens", **documented("list_tokens", list[TokenModel], paged=True))
def list_tokens(
    caller: CallerDependency, request: Request, limit: Limit = 100, cursor: Cursor = None
) -> JsonReply:
    """Tokens, oldest first, and what they stand for; never the tokens themselves."""

    def key(token: Json) -> str:
        return f"{token['created_at']} {token['id']}"

    with caller.acting() as store:
        rest = following(sorted(store.tokens(), key=key), cursor, key=key)
        return page(request, rest, limit=limit, cursor=key, to=lambda token: token)


@token_routes.post("/tokens", **documented("create_token", NewTokenModel, status=201))
def create_token(caller: CallerDependency, body: NewToken) -> JsonReply:
    """A new token, shown only in this reply."""
    with caller.acting() as store:
        allow_handing_out(caller.grant, body.branches)
        made = store.create_token(
            actor=body.actor,
            role=body.role,
            branches=body.branches,
            lifetime_seconds=body.lifetime_seconds,
        )
        return JsonReply(made, status_code=201)


@token_routes.delete("/tokens/{id}", **documented("revoke_token", TokenModel))
def revoke_token(caller: CallerDependency, id: str) -> JsonReply:
    """Refused from now on; revoking twice is no error."""
    with caller.acting() as store:
        return JsonReply(store.revoke_token(id))


store_routes = router("store")
# What is asked for by a request without a body.
_RECOVER, _CLEAN_UP = Recover(), CleanUp.model_validate({})


@store_routes.get("/store", **documented("show_store", StoreModel))
def show_store(caller: CallerDependency) -> JsonReply:
    """The store's primary branch and fallback, and what the caller's token stands for."""
    builds = caller.served.settings.builds
    return JsonReply(
        {
            "version": __version__,
            "branch": builds.branch,
            "fallback": list(builds.fallback) if builds.fallback is not None else None,
            "storage": urlsplit(caller.served.objects.url).scheme,
            "actor": caller.grant.actor,
            "role": caller.grant.role.value,
            "branches": list(caller.grant.branches),
        }
    )


@store_routes.post("/recover", **documented("recover", RecoveryModel))
def recover(caller: CallerDependency, body: Recover = _RECOVER) -> JsonReply:
    """Settles unfinished operations, forward only: others are being served."""
    with caller.acting() as store:
        return JsonReply(recovery_json(store.recover(dry_run=body.dry_run)))


@store_routes.post("/cleanup", **documented("clean_up", CleanupModel))
def clean_up(caller: CallerDependency, body: CleanUp = _CLEAN_UP) -> JsonReply:
    """Condemns what nothing needs, and sweeps what was condemned a day before."""
    with caller.acting() as store:
        cleaned = store.clean_up(
            older_than_seconds=body.older_than_seconds, dry_run=body.dry_run, engine=body.engine
        )
    return JsonReply(cleaned)


@store_routes.get("/doctor", **documented("examine", ExaminedModel))
def examine(caller: CallerDependency, deep: bool = False) -> JsonReply:
    """What is wrong with the store, from end to end; nothing is changed."""
    with caller.acting() as store:
        return JsonReply(store.examine(deep=deep))
