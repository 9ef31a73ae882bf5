"""Conventions that all routes of the HTTP API share.

Responses and pages, errors, declarations of routes, callers and their rights, idempotency keys,
and the limits on requests.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import orjson
from fastapi import APIRouter, Depends, FastAPI, Header, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import URL, Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headgate import errors
from headgate.catalog.attempts import Holder
from headgate.files.objects import TREE_HEADER, Digest
from headgate.model.access import Grant, authorize, check_rule, check_supersedable, rule_of
from headgate.model.changes import Receipt
from headgate.model.names import check_label
from headgate.model.nouns import PublicationKind
from headgate.server.api.models import Problem
from headgate.server.authorization import Authority
from headgate.server.content_rights import ContentRights, parse_trees
from headgate.store.documents import PUBLICATION, unpublished_json

if TYPE_CHECKING:
    from headgate.server.builds import ServerBuilds
    from headgate.store.embedded import Store

OCTETS = "application/octet-stream"


# Responses: the documents of the command line, paged by a header

T = TypeVar("T")

_DIGITS = 15
_REPLAYED = "Idempotency-Replayed"


class JsonReply(Response):
    """One JSON document, in the form that the command line prints."""

    media_type = "application/json"

    def __init__(self, content: Any, *, replayed: bool = False, **how: Any) -> None:
        """Create the response; `replayed` marks one that repeats an earlier response."""
        super().__init__(content, **how)
        if replayed:
            self.headers[_REPLAYED] = "true"

    def render(self, content: Any) -> bytes:
        try:
            return orjson.dumps(content, default=str, option=orjson.OPT_NON_STR_KEYS)
        except TypeError:
            # orjson rejects invalid Unicode, but the error about such a name must contain it.
            return json.dumps(content, default=str).encode()


def _same(item: T) -> T:
    return item


@dataclass(frozen=True, kw_only=True)
class Paging:
    """The page of a list that a request selects."""

    request: Request
    limit: int
    cursor: str | None

    @property
    def number(self) -> int:
        """The cursor of a list whose cursors are numbers; 0 at its start."""
        if self.cursor is None:
            return 0
        if not (self.cursor.isascii() and self.cursor.isdigit() and len(self.cursor) <= _DIGITS):
            shown = self.cursor[:80]
            raise errors.Invalid(f"{shown!r} is not a cursor of this list.", cursor=shown)
        return int(self.cursor)

    def page(
        self, items: Sequence[T], *, cursor: Callable[[T], object], to: Callable[[T], Any] = _same
    ) -> JsonReply:
        """Return the first items up to the limit; if there are more, with a Link to the rest.

        Callers pass one item beyond the limit, if there is one, so that the last page is not empty.
        """
        reply = JsonReply([to(item) for item in items[: self.limit]])
        if len(items) > self.limit:
            after = str(cursor(items[self.limit - 1]))
            rest = URL(str(self.request.url)).include_query_params(cursor=after)
            # Without host: the client may reach this server by another name.
            reply.headers["link"] = f'<{rest.path}?{rest.query}>; rel="next"'
        return reply

    def page_by_offset(self, items: Sequence[T], to: Callable[[T], Any] = _same) -> JsonReply:
        """Return a page of a list whose cursors are numbers of items to skip."""
        return self.page(items, cursor=lambda _: self.number + self.limit, to=to)

    def page_by_key(
        self, items: Iterable[T], *, key: Callable[[T], str], to: Callable[[T], Any] = _same
    ) -> JsonReply:
        """Return a page of a whole list in the order of its keys, which are its cursors."""
        rest = sorted(items, key=key)
        if self.cursor is not None:
            rest = [item for item in rest if key(item) > self.cursor]
        return self.page(rest, cursor=key, to=to)


def paging(default: int = 100) -> Callable[..., Paging]:
    """Return a dependency that reads the parameters of a page, with this limit by default."""

    def read(
        request: Request,
        limit: Annotated[int, Query(ge=1, le=1000, description="Maximum number.")] = default,
        cursor: Annotated[
            str | None,
            Query(
                max_length=1200,
                description="Start of the page, from the `Link` header of the page before.",
            ),
        ] = None,
    ) -> Paging:
        return Paging(request=request, limit=limit, cursor=cursor)

    return read


Pages = Annotated[Paging, Depends(paging())]


def published(store: Store, receipt: Receipt, *, kind: PublicationKind) -> JsonReply:
    """Return the publication of an operation, or the receipt of one that changed nothing."""
    number = receipt.publication
    body = (
        PUBLICATION.wire(store.publication(number))
        if number is not None
        else unpublished_json(receipt, kind=kind, actor=store.settings.actor)
    )
    return JsonReply(body, replayed=receipt.replayed)


# Errors: one table from family to status, one shape of body

_log = logging.getLogger("headgate.server")

STATUSES: dict[type[errors.HeadgateError], int] = {
    errors.Invalid: 400,
    errors.TokenRefused: 401,
    errors.Denied: 403,
    errors.NotFound: 404,
    errors.Conflict: 409,
    errors.Exists: 409,
    errors.WorkFailed: 422,
    errors.Unavailable: 503,
    errors.HeadgateError: 500,
}
# Statuses of requests that exceed a limit, whatever the verb does.
TIMED_OUT, TOO_LARGE, TOO_SLOW = 408, 413, 504
# The status that proxies log for a client that disconnected; it is never sent.
CLIENT_GONE = 499

MEANINGS: Mapping[int, str] = {
    400: "The request is invalid for every caller: change it.",
    401: "There is no bearer token, or it is unknown, expired or revoked.",
    403: "The token's role or branch patterns do not allow this, or the branch is protected.",
    404: "An object that the request names does not exist.",
    TIMED_OUT: "The body did not arrive in time.",
    409: "Another writer was first, a fence refused, or the name exists; nothing was changed.",
    TOO_LARGE: "The body is larger than this server accepts.",
    422: "The work itself failed: a build, a check, or user code.",
    503: "A required part of the server does not respond, or is busy: try again.",
    TOO_SLOW: "No response in time; the request may still be carried out. Check it by its key.",
}


def status_of(error: errors.HeadgateError) -> int:
    """Return the status of the nearest family of the error."""
    return next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)


def problem(error: errors.HeadgateError) -> JsonReply:
    """Return `{"error", "code", …facts}`, as the command line prints it."""
    status = status_of(error)
    headers = {"www-authenticate": "Bearer"} if status == 401 else None
    return JsonReply(error.to_json(), status_code=status, headers=headers)


def refusal(status: int, code: str, message: str, **facts: Any) -> JsonReply:
    """Return the same shape of body for an error that no verb raised."""
    return JsonReply({"error": message, "code": code, **facts}, status_code=status)


def _unrouted(error: HTTPException, request: Request) -> JsonReply:
    path = request.url.path
    if error.status_code == 404:
        message = f"there is no route {path}: /api/openapi.json describes all routes."
        return refusal(404, "no_such_route", message)
    if error.status_code == 405:
        message = f"{path} does not accept {request.method}: see /api/openapi.json."
        return refusal(405, "method_not_allowed", message)
    return refusal(error.status_code, "http", f"{str(error.detail).lower()}.")


def handle_errors(app: FastAPI) -> None:
    """Install handlers that turn every error of a route into the same shape of body."""

    async def known(_: Request, error: Exception) -> JsonReply:
        assert isinstance(error, errors.HeadgateError)
        return problem(error)

    async def malformed(_: Request, error: Exception) -> JsonReply:
        assert isinstance(error, RequestValidationError)
        fields = [
            {"where": ".".join(str(part) for part in found["loc"]), "what": found["msg"]}
            for found in error.errors()
        ]
        message = "; ".join(f"{field['where']}: {field['what']}" for field in fields)
        return refusal(
            400, "malformed_request", f"the request cannot be read: {message}.", fields=fields
        )

    async def unrouted(request: Request, error: Exception) -> JsonReply:
        assert isinstance(error, HTTPException)
        reply = _unrouted(error, request)
        reply.headers.update(error.headers or {})
        return reply

    async def gone(_: Request, __: Exception) -> JsonReply:
        # Not a defect, and the client cannot receive this; the status is for the access log.
        message = "the client disconnected before its body arrived."
        return refusal(CLIENT_GONE, "client_gone", message)

    async def unforeseen(request: Request, error: Exception) -> JsonReply:
        # The log has the traceback; the response must not disclose what it contains.
        _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return refusal(500, "defect", "this is a defect of Headgate; the server's log has it.")

    app.add_exception_handler(errors.HeadgateError, known)
    app.add_exception_handler(RequestValidationError, malformed)
    app.add_exception_handler(HTTPException, unrouted)
    app.add_exception_handler(ClientDisconnect, gone)
    app.add_exception_handler(Exception, unforeseen)


# Declarations of routes

_PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": meaning} for status, meaning in MEANINGS.items()
}


def router(noun: str) -> APIRouter:
    """Return the router of one noun."""
    return APIRouter(prefix="/api/v1", tags=[noun], responses=_PROBLEMS)


def documented(
    operation: str, model: Any, *, status: int = 200, paged: bool = False, what: str = "Done."
) -> dict[str, Any]:
    """Return the keywords of a route; raise if its operation has no access rule."""
    rule_of(operation)
    answer: dict[str, Any] = {"model": model, "description": what}
    if paged:
        answer["headers"] = {
            "Link": {
                "description": 'The next page, as `<…>; rel="next"`; absent on the last.',
                "schema": {"type": "string"},
            }
        }
    return {
        "operation_id": operation,
        "response_model": None,
        "status_code": status,
        "responses": {status: answer},
    }


# Callers: bearers of tokens, subject to the access rule of the route

_bearer = HTTPBearer(auto_error=False, description="A token of `headgate token create`.")


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Actor and rights of one request. To get a store to write, a route names the branches."""

    grant: Grant
    operation: str
    served: Store
    authority: Authority
    builds: ServerBuilds
    contents: ContentRights
    # Roots of the trees that the request names: see `headgate.server.content_rights`.
    trees: tuple[Digest, ...]

    def reading(self) -> Store:
        """Return the store as the caller may read it, in the caller's name."""
        return self.served.acting_for(self.grant, reads_only=True)

    def check_holder(self, holder: Holder) -> None:
        """Raise unless the caller may supersede the holder of a key."""
        found = holder.attempt
        check_supersedable(self.grant, key=found.ref.key, actor=found.actor, branch=holder.branch)

    @contextmanager
    def writing(self, *written: str) -> Iterator[Store]:
        """Open the store in the caller's name; raise unless they may write these branches."""
        try:
            authorize(self.grant, self.operation, written=written)
            yield self.served.acting_for(self.grant, check_holder=self.check_holder)
        except errors.Denied as refused:
            branch = next(iter(written), None)
            self.authority.note(self.grant.actor, self.operation, refused, branch=branch)
            raise


def identify(
    request: Request,
    credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
) -> Caller:
    """Return the caller; raise if their role does not have the right that the route needs."""
    operation = str(request.scope["route"].operation_id)
    rule = rule_of(operation)
    authority: Authority = request.app.state.authority
    grant = authority.grant(credentials.credentials if credentials else None, operation)
    # For the access log.
    request.state.actor = grant.actor
    try:
        check_rule(grant, rule)
    except errors.Denied as refused:
        authority.note(grant.actor, operation, refused)
        raise
    return Caller(
        grant=grant,
        operation=operation,
        served=request.app.state.store,
        authority=authority,
        builds=request.app.state.builds,
        contents=request.app.state.contents,
        trees=parse_trees(request.headers.get(TREE_HEADER)),
    )


CallerDependency = Annotated[Caller, Depends(identify)]


# Idempotency keys


def _checked_key(
    key: Annotated[
        str | None,
        Header(
            alias="Idempotency-Key",
            description="A repeated request with this key is done once; kept for 30 days.",
        ),
    ] = None,
) -> str | None:
    return check_label(key, what="an idempotency key") if key is not None else None


IdempotencyKey = Annotated[str | None, Depends(_checked_key)]


# Request bodies, received on disk instead of in memory

# Larger writes need fewer switches to a worker thread.
_BUFFER_BYTES = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Received:
    path: Path
    digest: Digest
    size: int


@asynccontextmanager
async def received(request: Request, directory: Path) -> AsyncIterator[Received]:
    """Write the body to a temporary file, for the length of the block; yield it with its digest."""
    directory.mkdir(parents=True, exist_ok=True)
    seen, size, buffer = hashlib.sha256(), 0, bytearray()
    with tempfile.NamedTemporaryFile(dir=directory, prefix="upload-") as file:

        def flush() -> None:
            seen.update(buffer)
            file.write(buffer)
            buffer.clear()

        async for chunk in request.stream():
            size += len(chunk)
            buffer += chunk
            if len(buffer) >= _BUFFER_BYTES:
                await run_in_threadpool(flush)
        await run_in_threadpool(flush)
        file.flush()
        yield Received(path=Path(file.name), digest=Digest(seen.hexdigest()), size=size)


# Limits and security headers

API = "/api/"
# Bodies here are the bytes of files; all others are small documents.
_UPLOADS = ("/api/v1/files/", "/api/v1/contents/", "/api/v1/bundles/")

# No scripts, no frames, no content sniffing, no copies in caches of proxies.
_SECURITY = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cache-control": "no-store",
}


@dataclass(frozen=True, kw_only=True)
class Limits:
    document_bytes: int = 16 * 1024 * 1024
    upload_bytes: int = 64 * 1024**3
    # Between two chunks of a body.
    body_seconds: float = 60
    # Until a response begins. Uploads have no such limit; a stream may last longer once begun.
    answer_seconds: float = 300


class _TooLarge(Exception):
    pass


class _TooSlow(Exception):
    pass


class Guard:
    """ASGI middleware: limits requests to the API, and adds security headers to its responses."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self._app = app
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(API):
            await self._app(scope, receive, send)
            return
        is_upload = scope["method"] == "PUT" and scope["path"].startswith(_UPLOADS)
        exchange = _Exchange(scope, receive, send, self._limits, is_upload=is_upload)
        await exchange.run(self._app)


class _Exchange:
    """One request and its response."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, limits: Limits, *, is_upload: bool
    ) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self._limits = limits
        self._is_upload = is_upload
        self._most = limits.upload_bytes if is_upload else limits.document_bytes
        self._taken = 0
        self._complete = False
        self._began = False
        self._abandoned = False

    async def run(self, app: ASGIApp) -> None:
        announced = Headers(scope=self._scope).get("content-length", "0")
        if announced.isdigit() and int(announced) > self._most:
            await self._refuse(TOO_LARGE, "too_large", self._size_text())
            return
        patience = None if self._is_upload else self._limits.answer_seconds
        work = asyncio.ensure_future(app(self._scope, self.receive, self.send))
        done, _ = await asyncio.wait({work}, timeout=patience)
        if not done and not self._began:
            # A worker thread cannot be stopped: it ends by itself, and its response is dropped.
            self._abandoned = True
            work.add_done_callback(lambda task: task.exception())
            await self._refuse(
                TOO_SLOW,
                "no_answer_in_time",
                f"no response within {self._limits.answer_seconds:g} s. The request may still be "
                "carried out: check it by its idempotency key.",
            )
            return
        await self._finish(work)

    async def _finish(self, work: asyncio.Future[None]) -> None:
        try:
            await work
        except _TooLarge:
            await self._refuse(TOO_LARGE, "too_large", self._size_text())
        except _TooSlow:
            text = f"no more of the body arrived for {self._limits.body_seconds:g} s."
            await self._refuse(TIMED_OUT, "body_timeout", text)

    async def receive(self) -> Message:
        if self._complete:
            return await self._receive()
        try:
            message = await asyncio.wait_for(self._receive(), self._limits.body_seconds)
        except TimeoutError as error:
            raise _TooSlow from error
        if message["type"] == "http.request":
            self._taken += len(message.get("body", b""))
            self._complete = not message.get("more_body", False)
            if self._taken > self._most:
                raise _TooLarge
        return message

    async def send(self, message: Message) -> None:
        if self._abandoned:
            return
        if message["type"] == "http.response.start":
            self._began = True
        await self._send_secured(message)

    async def _refuse(self, status: int, code: str, text: str) -> None:
        if self._began:
            return
        reply = refusal(status, code, text)
        # The rest of the body stays unread.
        reply.headers["connection"] = "close"
        await reply(self._scope, self._receive, self._send_secured)

    async def _send_secured(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _SECURITY.items():
                headers.setdefault(name, value)
        await self._send(message)

    def _size_text(self) -> str:
        return f"the body is larger than the {self._most} bytes that this server accepts."
