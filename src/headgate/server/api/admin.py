"""Routes of the store itself: description, past, tokens, recovery, cleanup, the doctor."""

from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Path, Query

from headgate import __version__
from headgate.errors import NotFound
from headgate.model.access import is_within, make_grant, require_within
from headgate.model.nouns import PublicationKind, as_json
from headgate.server.api import conventions as api
from headgate.server.api import models
from headgate.store.documents import PUBLICATION, TOKEN, TRANSACTION, Json, recovery_json

# The past: histories, publications, events and operations

past_routes = api.router("past")


@past_routes.get(
    "/history/{dataset:dataset}", **api.documented(list[models.TransactionModel], paged=True)
)
def list_history(
    caller: api.CallerDependency,
    pages: api.Pages,
    dataset: str,
    branch: str | None = None,
    aborted: Annotated[bool, Query(alias="all", description="Also aborted ones.")] = False,
) -> api.JsonReply:
    """List the transactions of a branch, newest first; of the primary branch by default."""
    store, skip = caller.reading(), pages.number
    chosen = store.dataset(dataset).branch(branch or store.settings.builds.branch)
    found = chosen.history(aborted=aborted, limit=skip + pages.limit + 1)[skip:]
    return pages.page_by_offset(found, TRANSACTION.wire)


@past_routes.get("/log", **api.documented(list[models.PublicationModel], paged=True))
def list_publications(
    caller: api.CallerDependency,
    pages: api.Pages,
    actor: str | None = None,
    dataset: str | None = None,
    branch: str | None = None,
    kind: PublicationKind | None = None,
) -> api.JsonReply:
    """List publications, newest first: every change of a view or of the set of branches."""
    found = caller.reading().publications(
        actor=actor,
        dataset=dataset,
        branch=branch,
        kind=kind,
        limit=pages.limit + 1,
        before=pages.number if pages.cursor is not None else None,
    )
    return pages.page(found, cursor=lambda one: one.number, to=PUBLICATION.wire)


@past_routes.get("/log/{number}", **api.documented(models.PublicationModel))
def show_publication(
    caller: api.CallerDependency, number: Annotated[int, Path(ge=1, lt=2**53)]
) -> api.JsonReply:
    """Return one publication with its moves."""
    return api.JsonReply(PUBLICATION.wire(caller.reading().publication(number)))


@past_routes.get("/events", **api.documented(list[models.EventModel], paged=True))
def list_events(
    caller: api.CallerDependency,
    pages: api.Pages,
    actor: str | None = None,
    dataset: str | None = None,
    branch: str | None = None,
    kind: str | None = None,
) -> api.JsonReply:
    """List events other than publications, newest first: recoveries, denials, protections."""
    # The numbers of denials are in memory at first.
    caller.authority.flush()
    found = caller.reading().events(
        actor=actor,
        dataset=dataset,
        branch=branch,
        kind=kind,
        limit=pages.limit + 1,
        skip=pages.number,
    )
    return pages.page_by_offset(found)


@past_routes.get("/recoveries", **api.documented(list[models.RecoveryAuditModel], paged=True))
def list_recoveries(
    caller: api.CallerDependency,
    pages: api.Pages,
    actor: str | None = None,
    kind: str | None = None,
) -> api.JsonReply:
    """List recoveries, newest first: the work that was settled, its actor, and the outcome."""
    found = caller.reading().recoveries(
        actor=actor, kind=kind, limit=pages.limit + 1, skip=pages.number
    )
    return pages.page_by_offset(found)


@past_routes.get("/status/{key:path}", **api.documented(models.OperationModel))
def status(
    caller: api.CallerDependency, key: str, branch: str | None = None, kind: str | None = None
) -> api.JsonReply:
    """Return the outcome of an operation by its idempotency key; 404 if nothing was committed."""
    return api.JsonReply(caller.reading().status(key, branch=branch, kind=kind))


# Tokens, for admins

token_routes = api.router("tokens")


@token_routes.get("/tokens", **api.documented(list[models.TokenModel], paged=True))
def list_tokens(caller: api.CallerDependency, pages: api.Pages) -> api.JsonReply:
    """List tokens, oldest first, with their actors and rights; never the tokens themselves."""
    with caller.writing():
        return pages.page_by_key(_tokens(caller), key=lambda t: f"{t['created_at']} {t['id']}")


@token_routes.post("/tokens", **api.documented(models.NewTokenModel, status=201))
def create_token(caller: api.CallerDependency, body: models.NewToken) -> api.JsonReply:
    """Create a token; only this response contains it."""
    with caller.writing() as store:
        rights = body.model_dump(exclude={"lifetime_seconds"})
        require_within(caller.grant, make_grant(**rights))
        made = store.create_token(**rights, lifetime_seconds=body.lifetime_seconds)
        return api.JsonReply(made, status_code=201)


@token_routes.delete("/tokens/{id}", **api.documented(models.TokenModel))
def revoke_token(caller: api.CallerDependency, id: str) -> api.JsonReply:
    """Revoke a token, with effect at once; to revoke it twice is not an error."""
    with caller.writing() as store:
        if caller.grant.is_limited and all(token["id"] != id for token in _tokens(caller)):
            raise NotFound(f"token {id!r} does not exist, or you may not revoke it.", token=id)
        return api.JsonReply(store.revoke_token(id))


def _tokens(caller: api.Caller) -> list[Json]:
    """Return all tokens; to an admin that patterns limit, those that it could have created."""
    found = caller.served.tokens()
    return [token for token in found if is_within(caller.grant, TOKEN.parse(token).grant)]


# The store

store_routes = api.router("store")
# Defaults for a request without a body.
_RECOVER, _CLEAN_UP = models.Recover(), models.CleanUp.model_validate({})


@store_routes.get("/store", **api.documented(models.StoreModel))
def show_store(caller: api.CallerDependency) -> api.JsonReply:
    """Return the store's primary branch and fallbacks, and the actor and rights of the token."""
    builds, rights = caller.served.settings.builds, as_json(caller.grant)
    return api.JsonReply(
        {
            "version": __version__,
            "branch": builds.branch,
            "fallback": list(builds.fallback) if builds.fallback is not None else None,
            "storage": urlsplit(caller.served.objects.url).scheme,
            **{name: rights[name] for name in ("actor", "role", "branches", "reads", "datasets")},
        }
    )


@store_routes.post("/recover", **api.documented(models.RecoveryModel))
def recover(caller: api.CallerDependency, body: models.Recover = _RECOVER) -> api.JsonReply:
    """Settle unfinished operations, and abort transactions that their owners abandoned."""
    with caller.writing() as store:
        return api.JsonReply(recovery_json(store.recover(**body.model_dump())))


@store_routes.post("/cleanup", **api.documented(models.CleanupModel))
def clean_up(caller: api.CallerDependency, body: models.CleanUp = _CLEAN_UP) -> api.JsonReply:
    """Condemn content that nothing needs, and sweep content that was condemned a day before."""
    with caller.writing() as store:
        return api.JsonReply(store.clean_up(**body.model_dump()))


@store_routes.get("/doctor", **api.documented(models.ExaminedModel))
def examine(caller: api.CallerDependency, deep: bool = False) -> api.JsonReply:
    """Check the whole store and return the problems found, without changing anything."""
    with caller.writing() as store:
        return api.JsonReply(store.examine(deep=deep))
