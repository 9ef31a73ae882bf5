"""Routes of builds whose jobs are done by the client that started them."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import Path
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from headgate.builds.publishing import bundle_key
from headgate.errors import BuildOfAnother
from headgate.server.api.caller import Caller, CallerDependency
from headgate.server.api.files import OCTETS
from headgate.server.api.handing_models import Working, WorkModel
from headgate.server.api.replies import JsonReply
from headgate.server.api.routing import documented, router
from headgate.server.handing import KeptBuild

routes = router("builds")

Sha256 = Annotated[str, Path(pattern="^[0-9a-f]{64}$", description="SHA-256 of the archive.")]


@routes.post("/builds/{build}/work", **documented("work_build", WorkModel))
async def work_build(caller: CallerDependency, build: str, body: Working) -> JsonReply:
    """Says how a client's jobs are doing, and hears which to begin and to end; asked repeatedly.

    Who does not ask for a minute is taken for gone, and the build is canceled.
    """
    kept = await run_in_threadpool(_kept, caller, build)
    await run_in_threadpool(_hear, kept, body)
    return JsonReply(await _answer(kept, body))


@routes.get(
    "/bundles/{digest}",
    **documented("get_bundle", None, what="The archive.") | {"response_class": Response},
)
def get_bundle(caller: CallerDependency, digest: Sha256) -> Response:
    """The code of a JobSpec, for those who may build."""
    with caller.acting() as store:
        return Response(store.objects.get(bundle_key(digest)), media_type=OCTETS)


def _kept(caller: Caller, build: str) -> KeptBuild:
    """The build, if it is this caller's to work for."""
    kept = caller.builds.load_handed(build)
    with caller.acting(kept.branch):
        if kept.actor != caller.grant.actor:
            raise BuildOfAnother(build=build, actor=kept.actor)
    return kept


def _hear(kept: KeptBuild, body: Working) -> None:
    assert kept.handed is not None
    kept.handed.hear(body.heard(), ready=body.ready)


async def _answer(kept: KeptBuild, body: Working) -> object:
    """What is new, as soon as something is; else, after a while, that nothing is."""
    assert kept.handed is not None
    loop, woken = asyncio.get_running_loop(), asyncio.Event()
    # Never so long that the wait itself would be taken for silence.
    deadline = loop.time() + min(body.wait_seconds, kept.handed.silent_seconds / 3)

    def wake() -> None:
        loop.call_soon_threadsafe(woken.set)

    with kept.handed.listening(wake):
        while True:
            woken.clear()
            rest = deadline - loop.time()
            found = kept.find_answer(
                body.running, body.seen, expected=body.expected, anyway=rest <= 0
            )
            if found is not None:
                return found
            try:
                await asyncio.wait_for(woken.wait(), rest)
            except TimeoutError:
                continue
