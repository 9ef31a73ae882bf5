"""Routes of files: list, stream up and down, remove, and edit many at once."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from fastapi import Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from headgate.errors import ContentSwept, Invalid
from headgate.files.entries import Entry, Mode, empty_directory
from headgate.files.objects import Digest
from headgate.files.parallel import in_parallel
from headgate.files.writing import FileEdit
from headgate.handles import BranchHandle, TransactionHandle
from headgate.handles.nouns import Json
from headgate.handles.wire import entry_wire, transaction_wire
from headgate.model.names import check_file_path
from headgate.model.nouns import PublicationKind
from headgate.server.api.asking import Cursor, KeyDependency, Keyed, Limit
from headgate.server.api.caller import Caller, CallerDependency
from headgate.server.api.models import FileModel, PublicationModel, TransactionModel
from headgate.server.api.receiving import received
from headgate.server.api.replies import JsonReply, following, page, published
from headgate.server.api.requests import Edit, FileToPut
from headgate.server.api.routing import documented, router
from headgate.store import Store

routes = router("files")

OCTETS = "application/octet-stream"
_WRITTEN = PublicationModel | TransactionModel

BranchQuery = Annotated[str | None, Query(max_length=200, description="The primary unless named.")]
TxnQuery = Annotated[str | None, Query(max_length=200, description="An OPEN transaction or unit.")]
AtQuery = Annotated[str | None, Query(max_length=200, description="As a transaction showed it.")]


@routes.get("/files/{dataset}", **documented("list_files", list[FileModel], paged=True))
def list_files(
    caller: CallerDependency,
    request: Request,
    dataset: str,
    path: Annotated[str, Query(max_length=1024, description="At or below it.")] = "",
    branch: BranchQuery = None,
    txn: TxnQuery = None,
    at: AtQuery = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> JsonReply:
    """Files below a path, in the order of their paths."""
    below = check_file_path(path) if path else ""
    found = caller.looking().dataset(dataset).shown(branch=branch, txn=txn, at=at).entries(below)
    rest = following(found, cursor, key=lambda entry: entry.path)
    return page(request, rest, limit=limit, cursor=lambda entry: entry.path, to=entry_wire)


@routes.get(
    "/files/{dataset}/{path:path}",
    **documented("get_file", None, what="The bytes.") | {"response_class": StreamingResponse},
)
def get_file(
    caller: CallerDependency,
    dataset: str,
    path: str,
    branch: BranchQuery = None,
    txn: TxnQuery = None,
    at: AtQuery = None,
) -> Response:
    """A file's bytes, as they are stored."""
    store = caller.looking()
    entry = store.dataset(dataset).shown(branch=branch, txn=txn, at=at).find(path)
    name = quote(entry.path.rpartition("/")[2])
    return StreamingResponse(
        store.trees.stream(entry),
        media_type=OCTETS,
        headers={
            "content-length": str(entry.size),
            "etag": f'"{entry.digest}"',
            # Never shown in a browser as if it were a page of ours.
            "content-disposition": f"attachment; filename*=UTF-8''{name}",
        },
    )


@routes.put(
    "/files/{dataset}/{path:path}",
    **documented("put_file", _WRITTEN),
    openapi_extra={"requestBody": {"required": True, "content": {OCTETS: {"schema": {}}}}},
)
async def put_file(
    caller: CallerDependency,
    request: Request,
    dataset: str,
    path: str,
    keyed: KeyDependency,
    branch: BranchQuery = None,
    txn: TxnQuery = None,
    executable: bool = False,
) -> JsonReply:
    """Puts one file, streaming: one publication on a branch, or a part of a transaction."""
    check_file_path(path)
    # Whether it may be written at all is settled before any byte is taken.
    await run_in_threadpool(_check, caller, dataset, branch, txn)
    async with received(request, caller.served.scratch / "uploads") as body:
        mode = Mode.EXECUTABLE if executable else Mode.FILE
        entry = Entry(path=path, mode=mode, size=body.size, digest=body.digest)

        def write() -> JsonReply:
            caller.served.trees.store_file(body.digest, body.path)
            return _write(caller, dataset, branch, txn, FileEdit(put=[entry]), "files-put", keyed)

        try:
            return await run_in_threadpool(write)
        except ContentSwept:
            return await run_in_threadpool(write)


@routes.delete("/files/{dataset}/{path:path}", **documented("delete_file", _WRITTEN))
def delete_file(
    caller: CallerDependency,
    dataset: str,
    path: str,
    keyed: KeyDependency,
    branch: BranchQuery = None,
    txn: TxnQuery = None,
) -> JsonReply:
    """Removes a file, or all that is below a directory."""
    edit = FileEdit(remove=[check_file_path(path)])
    return _write(caller, dataset, branch, txn, edit, "files-rm", keyed)


@routes.post("/files/{dataset}", **documented("edit_files", _WRITTEN))
def edit_files(
    caller: CallerDependency, dataset: str, body: Edit, keyed: KeyDependency
) -> JsonReply:
    """Puts and removes many files at once, from contents that are stored: one publication."""
    store = caller.looking()
    put = list(in_parallel(lambda file: _entry(store, file), body.put))
    edit = FileEdit(put=put, remove=[check_file_path(path) for path in body.remove])
    if not (edit.put or edit.remove):
        raise Invalid("an edit puts or removes at least one file.")
    kind = "files-put" if edit.put else "files-rm"
    return _write(caller, dataset, body.branch, body.txn, edit, kind, keyed)


def edit_json(edit: FileEdit) -> Json:
    """What an edit says, for the hash of its request."""
    return {
        "put": [[e.path, e.mode, e.size, e.digest] for e in edit.put],
        "remove": list(edit.remove),
    }


def _write(
    caller: Caller,
    dataset: str,
    branch: str | None,
    txn: str | None,
    edit: FileEdit,
    kind: str,
    keyed: Keyed,
) -> JsonReply:
    with caller.acting(_branch(caller, branch, txn)) as store:
        target = store.dataset(dataset).writing(branch=branch, txn=txn)
        if isinstance(target, TransactionHandle):
            if keyed.key is not None and txn is not None and keyed.settled is None:
                raise Invalid("nothing is published inside a transaction: give the key to commit.")
            target.edit(edit)
            return JsonReply(transaction_wire(target.transaction))
        return _publish(store, target, edit, kind, keyed)


def _publish(
    store: Store, target: BranchHandle, edit: FileEdit, kind: str, keyed: Keyed
) -> JsonReply:
    operation = keyed.operation(
        actor=store.settings.actor,
        kind=kind,
        branch=target.name,
        request={"dataset": str(target.dataset.name), **edit_json(edit)},
    )
    receipt = target.edit(edit, operation=operation)
    return published(store, receipt, kind=PublicationKind.COMMIT)


def _check(caller: Caller, dataset: str, branch: str | None, txn: str | None) -> None:
    with caller.acting(_branch(caller, branch, txn)) as store:
        # A unit would open its transaction: looking is enough here.
        store.dataset(dataset).shown(branch=branch, txn=txn)


def _branch(caller: Caller, branch: str | None, txn: str | None) -> str:
    if txn is not None and branch is None:
        return caller.looking().opened(txn).branch
    if branch is None or txn is not None:
        raise Invalid("say where: name either a branch or a transaction, as ?branch= or ?txn=.")
    return branch


def _entry(store: Store, file: FileToPut) -> Entry:
    """Only what is stored, and as long as it is said to be, can be put into a tree."""
    path = check_file_path(file.path)
    if file.digest is None:
        return empty_directory(path)
    size = store.trees.find_size(file.digest)
    if size is None:
        raise ContentSwept(path=path)
    if size != file.size:
        raise Invalid(f"the content of {path!r} has {size} bytes, not {file.size}.", path=path)
    mode = Mode.EXECUTABLE if file.executable else Mode.FILE
    return Entry(path=path, mode=mode, size=size, digest=Digest(file.digest))
