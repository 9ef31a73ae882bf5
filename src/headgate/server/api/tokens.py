"""Routes of tokens: list, create and revoke; for admins."""

from __future__ import annotations

from fastapi import Request

from headgate.handles.nouns import Json
from headgate.model.access import allow_handing_out
from headgate.server.api.asking import Cursor, Limit
from headgate.server.api.caller import CallerDependency
from headgate.server.api.models import NewTokenModel, TokenModel
from headgate.server.api.replies import JsonReply, following, page
from headgate.server.api.requests import NewToken
from headgate.server.api.routing import documented, router

routes = router("tokens")


@routes.get("/tokens", **documented("list_tokens", list[TokenModel], paged=True))
def list_tokens(
    caller: CallerDependency, request: Request, limit: Limit = 100, cursor: Cursor = None
) -> JsonReply:
    """Tokens, oldest first, and what they stand for; never the tokens themselves."""

    def key(token: Json) -> str:
        return f"{token['created_at']} {token['id']}"

    with caller.acting() as store:
        rest = following(sorted(store.tokens(), key=key), cursor, key=key)
        return page(request, rest, limit=limit, cursor=key, to=lambda token: token)


@routes.post("/tokens", **documented("create_token", NewTokenModel, status=201))
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


@routes.delete("/tokens/{id}", **documented("revoke_token", TokenModel))
def revoke_token(caller: CallerDependency, id: str) -> JsonReply:
    """Refused from now on; revoking twice is no error."""
    with caller.acting() as store:
        return JsonReply(store.revoke_token(id))
