"""Routes of many small contents at once: a tree of a thousand files in a few requests."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from fastapi import Request
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from headgate.errors import StorageUnavailable
from headgate.files.batches import SMALL_BYTES
from headgate.files.frames import framed, read_frames
from headgate.files.objects import Digest
from headgate.server.api.caller import CallerDependency
from headgate.server.api.files import OCTETS
from headgate.server.api.models import shown
from headgate.server.api.receiving import received
from headgate.server.api.replies import JsonReply
from headgate.server.api.requests import Sha256, asked
from headgate.server.api.routing import documented, router
from headgate.store import Store

routes = router("files")

_log = logging.getLogger("headgate.server")

_SHA = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
_MOST = 1000
# Of one answer, whatever was asked for: the rest is asked for again.
_MOST_BYTES = 16 * 1024 * 1024
# Handing over piece by piece costs more than the pieces.
_PIECE_BYTES = 256 * 1024
_READ_BYTES = 1024 * 1024


class Contents(BaseModel):
    model_config = asked(digests=[_SHA])
    digests: list[Sha256] = Field(max_length=_MOST, description="SHA-256 of each one's bytes.")


class MissingModel(BaseModel):
    model_config = shown(missing=[_SHA])
    missing: list[str] = Field(description="Those that are not stored.")


class StoredModel(BaseModel):
    model_config = shown(stored=1)
    stored: int = Field(description="How many contents came.")


@routes.post("/contents/missing", **documented("find_missing_contents", MissingModel))
def find_missing_contents(caller: CallerDependency, body: Contents) -> JsonReply:
    """Which of these contents are not stored: only those have to be sent."""
    return JsonReply({"missing": caller.looking().trees.find_missing(_digests(body))})


@routes.post(
    "/contents/get",
    **documented("get_contents", None, what="Those that travel together.")
    | {"response_class": StreamingResponse},
)
def get_contents(caller: CallerDependency, body: Contents) -> Response:
    """Small contents in one stream: each a line `<sha256> <bytes>`, then its bytes.

    What is large, is not there or finds no room any more is left out: ask for it again, and by
    itself if nothing else comes.
    """
    chunks = _pieces(caller.looking(), _digests(body))
    return StreamingResponse(chunks, media_type=OCTETS)


@routes.post(
    "/contents/put",
    **documented("put_contents", StoredModel, status=201),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {OCTETS: {"schema": {}, "example": f"{_SHA} 5\nhello"}},
        }
    },
)
async def put_contents(caller: CallerDependency, request: Request) -> JsonReply:
    """Stores small contents, each a line `<sha256> <bytes>`, then its bytes."""
    with caller.acting() as store:
        async with received(request, store.scratch / "uploads") as body:
            stored = await run_in_threadpool(_store_each, store, body.path)
        return JsonReply({"stored": stored}, status_code=201)


def _digests(body: Contents) -> list[Digest]:
    """Each once, in the order in which they were asked for."""
    return [Digest(digest) for digest in dict.fromkeys(body.digests)]


def _pieces(store: Store, digests: Sequence[Digest]) -> Iterator[bytes]:
    piece, total = bytearray(), 0
    try:
        for digest, data in store.trees.read_small(digests, most_bytes=SMALL_BYTES):
            piece += framed(digest, data)
            total += len(data)
            if len(piece) >= _PIECE_BYTES:
                yield bytes(piece)
                piece.clear()
            if total >= _MOST_BYTES:
                break
    except StorageUnavailable as error:
        # The answer has begun: whoever asks for one of the others by itself is told.
        _log.warning("contents were left out of an answer: %s", error.message)
    if piece:
        yield bytes(piece)


def _store_each(store: Store, path: Path) -> int:
    with path.open("rb", buffering=0) as file:
        chunks = iter(partial(file.read, _READ_BYTES), b"")
        return store.trees.store_each(read_frames(chunks, most_bytes=SMALL_BYTES))
