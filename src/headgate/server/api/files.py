"""Routes of files, and of the contents that they are made of.

Files are listed, streamed, removed, or edited many at once; contents are sent by digest.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

from fastapi import Path as PathParameter
from fastapi import Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from headgate.errors import ContentSwept, Invalid, ObjectNotFound, StorageUnavailable
from headgate.files.edits import FileEdit, root_of
from headgate.files.objects import (
    SMALL_BYTES,
    TREE_HEADER,
    Digest,
    encode_frame,
    in_parallel,
    read_frames,
)
from headgate.files.tree import Entry, Mode, empty_directory
from headgate.model.names import check_file_path
from headgate.model.nouns import PublicationKind
from headgate.server.api import conventions as api
from headgate.server.api import models
from headgate.store.documents import TRANSACTION, entry_wire
from headgate.store.embedded import Store
from headgate.store.transactions import TransactionHandle

# Files

file_routes = api.router("files")

_WRITTEN = models.PublicationModel | models.TransactionModel

BranchQuery = Annotated[str | None, Query(max_length=200, description="The primary unless named.")]
TxnQuery = Annotated[str | None, Query(max_length=200, description="An OPEN transaction or unit.")]
AtQuery = Annotated[str | None, Query(max_length=200, description="As a transaction showed it.")]


@file_routes.get("/files/{dataset:dataset}", **api.documented(list[models.FileModel], paged=True))
def list_files(
    caller: api.CallerDependency,
    pages: api.Pages,
    dataset: str,
    path: Annotated[str, Query(max_length=1024, description="At or below it.")] = "",
    branch: BranchQuery = None,
    txn: TxnQuery = None,
    at: AtQuery = None,
) -> api.JsonReply:
    """List the files at or below a path, in the order of their paths."""
    below = check_file_path(path) if path else ""
    shown = caller.reading().dataset(dataset).shown(branch=branch, txn=txn, at=at)
    reply = pages.page_by_key(shown.entries(below), key=lambda entry: entry.path, to=entry_wire)
    reply.headers[TREE_HEADER] = root_of(shown.transaction.version if shown.transaction else None)
    return reply


@file_routes.get(
    "/files/{dataset:dataset}/{path:path}",
    **api.documented(None, what="The bytes.") | {"response_class": StreamingResponse},
)
def get_file(
    caller: api.CallerDependency,
    dataset: str,
    path: str,
    branch: BranchQuery = None,
    txn: TxnQuery = None,
    at: AtQuery = None,
) -> Response:
    """Return the bytes of a file, as they are stored."""
    store = caller.reading()
    entry = store.dataset(dataset).shown(branch=branch, txn=txn, at=at).find(path)
    name = quote(entry.path.rpartition("/")[2])
    return StreamingResponse(
        store.trees.stream(entry),
        media_type=api.OCTETS,
        headers={
            "content-length": str(entry.size),
            "etag": f'"{entry.digest}"',
            # A browser must not show a stored file as a page of this server.
            "content-disposition": f"attachment; filename*=UTF-8''{name}",
        },
    )


@file_routes.put(
    "/files/{dataset:dataset}/{path:path}",
    **api.documented(_WRITTEN),
    openapi_extra={"requestBody": {"required": True, "content": {api.OCTETS: {"schema": {}}}}},
)
async def put_file(
    caller: api.CallerDependency,
    request: Request,
    dataset: str,
    path: str,
    key: api.IdempotencyKey,
    branch: BranchQuery = None,
    txn: TxnQuery = None,
    executable: bool = False,
) -> api.JsonReply:
    """Put one file from a stream: one publication on a branch, or a part of a transaction."""
    check_file_path(path)
    # Rights are checked before the server reads any byte of the body.
    await run_in_threadpool(_check, caller, dataset, branch, txn)
    async with api.received(request, caller.served.scratch / "uploads") as body:
        mode = Mode.EXECUTABLE if executable else Mode.FILE
        entry = Entry(path=path, mode=mode, size=body.size, digest=body.digest)

        def write() -> api.JsonReply:
            caller.served.trees.objects.put_file(body.digest, body.path)
            caller.contents.note_uploads(caller.grant, [body.digest])
            return _write(caller, dataset, branch, txn, FileEdit(put=[entry]), key)

        try:
            return await caller.threads.run_in_turn(write, request.receive)
        except ContentSwept:
            return await caller.threads.run_in_turn(write, request.receive)


@file_routes.delete("/files/{dataset:dataset}/{path:path}", **api.documented(_WRITTEN))
def delete_file(
    caller: api.CallerDependency,
    dataset: str,
    path: str,
    key: api.IdempotencyKey,
    branch: BranchQuery = None,
    txn: TxnQuery = None,
) -> api.JsonReply:
    """Remove a file, or everything below a directory."""
    return _write(caller, dataset, branch, txn, FileEdit(remove=[check_file_path(path)]), key)


@file_routes.post("/files/{dataset:dataset}", **api.documented(_WRITTEN))
def edit_files(
    caller: api.CallerDependency, dataset: str, body: models.Edit, key: api.IdempotencyKey
) -> api.JsonReply:
    """Put and remove many files, from contents that are stored already, in one publication."""
    store = caller.reading()
    used = [Digest(file.digest) for file in body.put if file.digest is not None]
    caller.contents.check_usable(store, caller.grant, used, caller.trees)
    put = list(in_parallel(lambda file: _entry(store, file), body.put))
    edit = FileEdit(put=put, remove=[check_file_path(path) for path in body.remove])
    if not (edit.put or edit.remove):
        raise Invalid("an edit puts or removes at least one file.")
    return _write(caller, dataset, body.branch, body.txn, edit, key)


def _write(
    caller: api.Caller,
    dataset: str,
    branch: str | None,
    txn: str | None,
    edit: FileEdit,
    key: str | None,
) -> api.JsonReply:
    with caller.writing(_branch(caller, branch, txn)) as store:
        target = store.dataset(dataset).writing(branch=branch, txn=txn)
        if isinstance(target, TransactionHandle):
            if key is not None:
                raise Invalid("nothing is published inside a transaction: give the key to commit.")
            target.edit(edit)
            return api.JsonReply(TRANSACTION.wire(target.transaction))
        receipt = target.edit(edit, idempotency_key=key)
        return api.published(store, receipt, kind=PublicationKind.COMMIT)


def _check(caller: api.Caller, dataset: str, branch: str | None, txn: str | None) -> None:
    with caller.writing(_branch(caller, branch, txn)) as store:
        # To write in a unit would open its transaction; to read is enough here.
        store.dataset(dataset).shown(branch=branch, txn=txn)


def _branch(caller: api.Caller, branch: str | None, txn: str | None) -> str:
    if txn is not None and branch is None:
        return caller.reading().opened(txn).branch
    if branch is None or txn is not None:
        raise Invalid("name either a branch or a transaction, as ?branch= or ?txn=.")
    return branch


def _entry(store: Store, file: models.FileToPut) -> Entry:
    """Return the entry of a file; raise unless its content is stored and has the given size."""
    path = check_file_path(file.path)
    if file.digest is None:
        return empty_directory(path)
    size = store.trees.objects.find_size(file.digest)
    if size is None:
        raise ContentSwept(path=path)
    if size != file.size:
        raise Invalid(f"the content of {path!r} has {size} bytes, not {file.size}.", path=path)
    mode = Mode.EXECUTABLE if file.executable else Mode.FILE
    return Entry(path=path, mode=mode, size=size, digest=Digest(file.digest))


# Contents: bytes by digest, which an edit of files then names

content_routes = api.router("files")

_SMALL_BYTES = 64 * 1024

Sha256Path = Annotated[
    str, PathParameter(pattern="^[0-9a-f]{64}$", description="SHA-256 of the bytes.")
]


@content_routes.head("/contents/{digest}", **api.documented(None, what="It is stored."))
def find_content(caller: api.CallerDependency, digest: Sha256Path) -> Response:
    """Return the size of a content in the headers; 404 if it is not stored."""
    store = caller.reading()
    if not caller.contents.known(store, caller.grant, [Digest(digest)], caller.trees):
        raise ObjectNotFound(location=digest)
    return Response(headers={"content-length": str(_size(store, digest))}, media_type=api.OCTETS)


@content_routes.get(
    "/contents/{digest}",
    **api.documented(None, what="The bytes.") | {"response_class": StreamingResponse},
)
def get_content(caller: api.CallerDependency, digest: Sha256Path) -> Response:
    """Return a stored content, of a tree that the caller may read."""
    store = caller.reading()
    caller.contents.check_readable(store, caller.grant, Digest(digest), caller.trees)
    size = _size(store, digest)
    chunks = store.trees.objects.stream(Digest(digest))
    if size <= _SMALL_BYTES:
        # To stream a small content in chunks costs more than to send it as a whole.
        return Response(b"".join(chunks), media_type=api.OCTETS)
    headers = {"content-length": str(size)}
    return StreamingResponse(chunks, headers=headers, media_type=api.OCTETS)


@content_routes.put(
    "/contents/{digest}",
    **api.documented(dict[str, str | int], status=201),
    openapi_extra={"requestBody": {"required": True, "content": {api.OCTETS: {"schema": {}}}}},
)
async def put_content(
    caller: api.CallerDependency, request: Request, digest: Sha256Path
) -> api.JsonReply:
    """Store a content for a later edit of files; cleanup condemns it if no edit names it."""
    with caller.writing() as store:
        async with api.received(request, store.scratch / "uploads", digest=digest) as body:
            await run_in_threadpool(store.trees.objects.put_file, body.digest, body.path)
            caller.contents.note_uploads(caller.grant, [body.digest])
        return api.JsonReply({"digest": digest, "size": body.size}, status_code=201)


def _size(store: Store, digest: str) -> int:
    size = store.trees.objects.find_size(digest)
    if size is None:
        raise ObjectNotFound(location=digest)
    return size


# Many small contents in one request: a tree of a thousand files needs few requests

parcel_routes = api.router("files")

_log = logging.getLogger("headgate.server")

_SHA = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
_MOST = 1000
# Limit of one response, whatever the client requested; it requests the rest again.
_MOST_BYTES = 16 * 1024 * 1024
# Small contents are sent in pieces of this size: each piece costs more than its bytes.
_PIECE_BYTES = 256 * 1024
_READ_BYTES = 1024 * 1024


class Contents(models.Asked):
    digests: list[models.Sha256] = models.eg(
        [_SHA], max_length=_MOST, description="SHA-256 of each one's bytes."
    )


class MissingModel(models.Reply):
    missing: list[str] = models.eg([_SHA], description="Those that are not stored.")


class StoredModel(models.Reply):
    stored: int = models.eg(1, description="Number of contents received.")


@parcel_routes.post("/contents/missing", **api.documented(MissingModel))
def find_missing_contents(caller: api.CallerDependency, body: Contents) -> api.JsonReply:
    """Return those of the contents that are not stored: only they have to be sent."""
    store, wanted = caller.reading(), _digests(body)
    known = caller.contents.known(store, caller.grant, wanted, caller.trees)
    missing = set(store.trees.objects.find_missing([one for one in wanted if one in known]))
    return api.JsonReply({"missing": [one for one in wanted if one not in known or one in missing]})


@parcel_routes.post(
    "/contents/get",
    **api.documented(None, what="The small contents.") | {"response_class": StreamingResponse},
)
def get_contents(caller: api.CallerDependency, body: Contents) -> Response:
    """Return small contents in one stream: each a line `<sha256> <bytes>`, then its bytes.

    Contents that are large, not stored, or beyond the limit of one response are left out: request
    them again, and one by one if the response is empty.
    """
    store = caller.reading()
    wanted = caller.contents.readable(store, caller.grant, _digests(body), caller.trees)
    return StreamingResponse(_pieces(store, wanted), media_type=api.OCTETS)


@parcel_routes.post(
    "/contents/put",
    **api.documented(StoredModel, status=201),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {api.OCTETS: {"schema": {}, "example": f"{_SHA} 5\nhello"}},
        }
    },
)
async def put_contents(caller: api.CallerDependency, request: Request) -> api.JsonReply:
    """Store small contents, each sent as a line `<sha256> <bytes>`, then its bytes."""
    with caller.writing() as store:
        async with api.received(request, store.scratch / "uploads") as body:
            stored = await run_in_threadpool(_store_each, store, body.path)
        caller.contents.note_uploads(caller.grant, stored)
        return api.JsonReply({"stored": len(stored)}, status_code=201)


def _digests(body: Contents) -> list[Digest]:
    """Return each digest once, in the order of the request."""
    return [Digest(digest) for digest in dict.fromkeys(body.digests)]


def _pieces(store: Store, digests: Sequence[Digest]) -> Iterator[bytes]:
    piece, total = bytearray(), 0
    try:
        for digest, data in store.trees.objects.get_small(digests, most_bytes=SMALL_BYTES):
            piece += encode_frame(digest, data)
            total += len(data)
            if len(piece) >= _PIECE_BYTES:
                yield bytes(piece)
                piece.clear()
            if total >= _MOST_BYTES:
                break
    except StorageUnavailable as error:
        # The response has begun, so the error cannot be sent; a request for one content gets it.
        _log.warning("contents were left out of a response: %s", error.message)
    if piece:
        yield bytes(piece)


def _store_each(store: Store, path: Path) -> list[Digest]:
    stored: list[Digest] = []

    def noted(frames: Iterable[tuple[Digest, bytes]]) -> Iterator[tuple[Digest, bytes]]:
        for digest, data in frames:
            stored.append(digest)
            yield digest, data

    with path.open("rb", buffering=0) as file:
        chunks = iter(partial(file.read, _READ_BYTES), b"")
        store.trees.objects.put_each(noted(read_frames(chunks, most_bytes=SMALL_BYTES)))
    return stored
