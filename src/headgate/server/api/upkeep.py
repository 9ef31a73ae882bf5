"""Routes of the store itself: what it is, recovery, cleanup, the doctor."""

from __future__ import annotations

from urllib.parse import urlsplit

from headgate import __version__
from headgate.handles.nouns import recovery_json
from headgate.server.api.caller import CallerDependency
from headgate.server.api.models import CleanupModel, ExaminedModel, RecoveryModel, StoreModel
from headgate.server.api.replies import JsonReply
from headgate.server.api.requests import CleanUp, Recover
from headgate.server.api.routing import documented, router

routes = router("store")
# What is asked for by a request without a body.
_RECOVER, _CLEAN_UP = Recover(), CleanUp.model_validate({})


@routes.get("/store", **documented("show_store", StoreModel))
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


@routes.post("/recover", **documented("recover", RecoveryModel))
def recover(caller: CallerDependency, body: Recover = _RECOVER) -> JsonReply:
    """Settles unfinished operations, forward only: others are being served."""
    with caller.acting() as store:
        return JsonReply(recovery_json(store.recover(dry_run=body.dry_run)))


@routes.post("/cleanup", **documented("clean_up", CleanupModel))
def clean_up(caller: CallerDependency, body: CleanUp = _CLEAN_UP) -> JsonReply:
    """Condemns what nothing needs, and sweeps what was condemned a day before."""
    with caller.acting() as store:
        cleaned = store.clean_up(
            older_than_seconds=body.older_than_seconds, dry_run=body.dry_run, engine=body.engine
        )
    return JsonReply(cleaned)


@routes.get("/doctor", **documented("examine", ExaminedModel))
def examine(caller: CallerDependency, deep: bool = False) -> JsonReply:
    """What is wrong with the store, from end to end; nothing is changed."""
    with caller.acting() as store:
        return JsonReply(store.examine(deep=deep))
