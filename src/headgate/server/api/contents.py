"""Routes of contents: bytes by their digest, which an edit of files then names."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from headgate.errors import Invalid, ObjectNotFound
from headgate.files.objects import Digest
from headgate.server.api.caller import CallerDependency
from headgate.server.api.files import OCTETS
from headgate.server.api.receiving import received
from headgate.server.api.replies import JsonReply
from headgate.server.api.routing import documented, router
from headgate.store import Store

routes = router("files")

_SMALL_BYTES = 64 * 1024

Sha256 = Annotated[str, Path(pattern="^[0-9a-f]{64}$", description="SHA-256 of the bytes.")]


@routes.head("/contents/{digest}", **documented("find_content", None, what="It is stored."))
def find_content(caller: CallerDependency, digest: Sha256) -> Response:
    """Whether a content is stored, and how long it is."""
    size = _size(caller.looking(), digest)
    return Response(headers={"content-length": str(size)}, media_type=OCTETS)


@routes.get(
    "/contents/{digest}",
    **documented("get_content", None, what="The bytes.") | {"response_class": StreamingResponse},
)
def get_content(caller: CallerDependency, digest: Sha256) -> Response:
    """A stored content."""
    store = caller.looking()
    size = _size(store, digest)
    chunks = store.trees.stream_content(Digest(digest))
    if size <= _SMALL_BYTES:
        # Handing over piece by piece costs more than the whole of it.
        return Response(b"".join(chunks), media_type=OCTETS)
    headers = {"content-length": str(size)}
    return StreamingResponse(chunks, headers=headers, media_type=OCTETS)


@routes.put(
    "/contents/{digest}",
    **documented("put_content", dict[str, str | int], status=201),
    openapi_extra={"requestBody": {"required": True, "content": {OCTETS: {"schema": {}}}}},
)
async def put_content(caller: CallerDependency, request: Request, digest: Sha256) -> JsonReply:
    """Stores a content for an edit to name; one that nothing names is cleaned up after a while."""
    with caller.acting() as store:
        async with received(request, store.scratch / "uploads") as body:
            if body.digest != digest:
                raise Invalid(
                    f"the bytes that came have the digest {body.digest}, not {digest}: they were "
                    "cut short or changed on the way. Send them again.",
                    expected=digest,
                    actual=body.digest,
                )
            await run_in_threadpool(store.trees.store_file, body.digest, body.path)
        return JsonReply({"digest": digest, "size": body.size}, status_code=201)


def _size(store: Store, digest: str) -> int:
    size = store.trees.find_size(digest)
    if size is None:
        raise ObjectNotFound(location=digest)
    return size
