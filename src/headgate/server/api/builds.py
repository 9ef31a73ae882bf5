"""Routes of builds: list, start on this server, show, watch and cancel."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from typing import Any

import orjson
from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from headgate.builds.handed import HandedJobs
from headgate.builds.ledger import Watch
from headgate.builds.outcome import BuildOutcome
from headgate.builds.report import BuildState
from headgate.handles.nouns import Json
from headgate.model.ids import BuildId
from headgate.server.api.asking import Cursor, Limit
from headgate.server.api.caller import Caller, CallerDependency
from headgate.server.api.models import BuildModel, BuildWithJobsModel
from headgate.server.api.replies import JsonReply, page
from headgate.server.api.requests import Building, Where
from headgate.server.api.routing import documented, router
from headgate.server.handing import AskedOnce

routes = router("builds")

EVENTS = "text/event-stream"
_POLL_SECONDS = 0.5
# A line now and then, so that nobody on the way takes the silence for the end.
_SILENCE_SECONDS = 15.0


@routes.get("/builds", **documented("list_builds", list[BuildModel], paged=True))
def list_builds(
    caller: CallerDependency, request: Request, limit: Limit = 50, cursor: Cursor = None
) -> JsonReply:
    """Builds, newest first."""
    found = caller.looking().builds(limit=limit + 1, after=cursor)
    return page(
        request, found, limit=limit, cursor=lambda one: str(one["build"]), to=lambda one: one
    )


@routes.post("/builds", **documented("start_build", BuildWithJobsModel, status=202))
def start_build(caller: CallerDependency, body: Building) -> JsonReply:
    """Starts a build; answers once it is open, while it runs.

    The server's workers do its jobs or, with `where` as `caller`, the caller does: see `work`.
    """
    with caller.acting(body.branch) as store:

        def build(id: BuildId, watch: Watch, jobs: HandedJobs | None = None) -> BuildOutcome:
            return store.build(
                body.targets,
                branch=body.branch,
                fallback=body.fallback,
                upstream=body.upstream,
                force=body.force,
                full=body.full,
                parameters=body.parameters,
                atomic=body.atomic,
                retries=body.retries,
                abort_on_failure=body.abort_on_failure,
                wait_seconds=body.wait_seconds,
                task_key=body.task_key,
                watch=watch,
                id=id,
                handed=jobs,
            )

        actor = caller.grant.actor
        asked = _asked(actor, body)
        if body.where is Where.SERVER:
            id = caller.builds.start(build, asked=asked)
        else:
            word = None if caller.grant.may_write_protected else actor
            id = caller.builds.hand_out(
                build, actor=actor, branch=body.branch, on_word_of=word, asked=asked
            )
        return JsonReply(store.build_record(id), status_code=202)


def _asked(actor: str, body: Building) -> AskedOnce | None:
    if body.request_key is None:
        return None
    text = body.model_dump_json(exclude={"request_key"}).encode()
    request_hash = hashlib.sha256(text).hexdigest()
    return AskedOnce(actor=actor, key=body.request_key, request_hash=request_hash)


@routes.get("/builds/{build}", **documented("show_build", BuildWithJobsModel))
def show_build(caller: CallerDependency, build: str) -> JsonReply:
    """One build with its jobs."""
    return JsonReply(caller.looking().build_record(build))


@routes.post("/builds/{build}/cancel", **documented("cancel_build", BuildModel))
def cancel_build(caller: CallerDependency, build: str) -> JsonReply:
    """Ends a build that runs, wherever it runs: what it has not committed is aborted."""
    with caller.acting(str(caller.looking().build_record(build)["branch"])) as store:
        return JsonReply(store.cancel_build(build))


@routes.get(
    "/builds/{build}/progress",
    **documented("watch_build", None, what="Events `progress`, then one `end`.")
    | {"response_class": StreamingResponse},
)
def watch_build(caller: CallerDependency, build: str) -> Response:
    """Server-sent events: the build each time that it changed, until it has ended."""
    # One that does not exist is told so before anything is streamed.
    first = _picture(caller, build)
    return StreamingResponse(_watch(caller, build, first), media_type=EVENTS)


async def _watch(caller: Caller, build: str, first: Json) -> AsyncIterator[bytes]:
    picture, sent, silent = first, None, 0.0
    while True:
        ended = picture["state"] != BuildState.RUNNING
        if ended:
            yield _event("end", picture)
            return
        text = orjson.dumps(picture, default=str)
        if text != sent:
            yield _event("progress", picture)
            sent, silent = text, 0.0
        elif silent >= _SILENCE_SECONDS:
            yield b": still here\n\n"
            silent = 0.0
        await asyncio.sleep(_POLL_SECONDS)
        silent += _POLL_SECONDS
        picture = await run_in_threadpool(_picture, caller, build)


def _picture(caller: Caller, build: str) -> Json:
    """The record, with what only this server knows where the build runs here."""
    record = caller.looking().build_record(build)
    if record["state"] == BuildState.RUNNING:
        live = caller.builds.find_live(build)
        return record | {"jobs": live} if live else record
    outcome = caller.builds.find_outcome(build) or {"publications": []}
    return record | outcome


def _event(name: str, data: Any) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), orjson.dumps(data, default=str))
