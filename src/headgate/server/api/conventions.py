"""Conventions that all routes of the HTTP API share.

Responses and pages, errors, documents in bodies, declarations of routes, callers and their rights,
and idempotency keys.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import tempfile
from collections import Counter
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import orjson
from fastapi import APIRouter, Depends, FastAPI, Header, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.datastructures import URL
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from headgate import errors
from headgate.catalog.attempts import Holder
from headgate.catalog.database import begin_call, doubted
from headgate.files.objects import TREE_HEADER, Digest
from headgate.model.access import Grant, Role, authorize, check_rule, check_supersedable, rule_of
from headgate.model.changes import Receipt
from headgate.model.names import check_label
from headgate.model.nouns import PublicationKind
from headgate.rows.outcome import Interrupt
from headgate.server.api.models import Problem
from headgate.server.authorization import Authority
from headgate.server.content_rights import ContentRights, parse_trees
from headgate.server.threads import RESERVED_OPERATIONS, ThreadRoute, Threads
from headgate.storage.local import make_private_directory
from headgate.store.documents import PUBLICATION, unpublished_json
from headgate.tables.metadata import check_document, too_deep


class _DatasetConvertor(StringConvertor):
    """A dataset's name in a path, in which a part in backticks may have slashes."""

    regex = r"(?:`[^`]*`|[^/`]|`(?=[^`]*\Z))+"


# Routes of the API and of the pages name it; both are declared after this.
register_url_convertor("dataset", _DatasetConvertor())


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


def paging(default: int = 100) -> Callable[..., Coroutine[Any, Any, Paging]]:
    """Return a dependency that reads the parameters of a page, with this limit by default."""

    async def read(
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
    errors.CatalogFull: 507,
    errors.StorageFull: 507,
    errors.HeadgateError: 500,
}
# Statuses of requests that exceed a limit, whatever the verb does.
TIMED_OUT, TOO_LARGE, TOO_SLOW = 408, 413, 504
# The status that proxies log for a client that disconnected; it is never sent.
CLIENT_GONE = 499

MEANINGS: Mapping[int, str] = {
    400: "The request is invalid for every caller: change it.",
    401: "The bearer token is missing, unknown, expired or revoked.",
    403: "The token's role or branch patterns do not allow this, or the branch is protected.",
    404: "An object that the request names does not exist.",
    TIMED_OUT: "The body did not arrive in time.",
    409: "Another writer was first, a fence refused, or the name exists; nothing was changed.",
    TOO_LARGE: "The body is larger than this server accepts.",
    422: "The work itself failed: a build, a check, or user code.",
    503: "A required part of the server does not respond, or is busy: try again.",
    TOO_SLOW: "No response in time; the request may still be carried out. Check it by its key.",
    507: "The disk of the catalog or of the storage is full; nothing was changed.",
}


def status_of(error: errors.HeadgateError) -> int:
    """Return the status of the nearest family of the error."""
    return next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)


def problem(error: errors.HeadgateError, *, may_see_addresses: bool = False) -> JsonReply:
    """Return `{"error", "code", …facts}`, as the command line prints it.

    Only admins see addresses and paths of the server; the log has them.
    """
    status = status_of(error)
    if error.public is not None:
        _log.warning("%s: %s", error.code, error.message)
        error = error if may_see_addresses else error.without_addresses()
    headers = {"www-authenticate": "Bearer"} if status == 401 else None
    return JsonReply(error.to_json(), status_code=status, headers=headers)


def refusal(status: int, code: str, message: str, **facts: Any) -> JsonReply:
    """Return the same shape of body for an error that no verb raised."""
    return JsonReply({"error": message, "code": code, **facts}, status_code=status)


def _unrouted(error: HTTPException, request: Request) -> JsonReply:
    path = request.url.path
    if error.status_code == 404:
        message = f"route {path} does not exist: /api/openapi.json describes all routes."
        return refusal(404, "no_such_route", message)
    if error.status_code == 405:
        message = f"{path} does not accept {request.method}: see /api/openapi.json."
        return refusal(405, "method_not_allowed", message)
    return refusal(error.status_code, "http", f"{str(error.detail).lower()}.")


def handle_errors(app: FastAPI) -> None:
    """Install handlers that turn every error of a route into the same shape of body."""

    async def known(request: Request, error: Exception) -> JsonReply:
        assert isinstance(error, errors.HeadgateError)
        return problem(error, may_see_addresses=_is_admin(request))

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
        if isinstance(error.__cause__, errors.HeadgateError):
            # FastAPI's error about a body that cannot be read.
            return problem(error.__cause__)
        reply = _unrouted(error, request)
        reply.headers.update(error.headers or {})
        return reply

    async def gone(_: Request, __: Exception) -> JsonReply:
        # Not a defect, and the client cannot receive this; the status is for the access log.
        message = "the client disconnected before its request was carried out."
        return refusal(CLIENT_GONE, "client_gone", message)

    async def unforeseen(request: Request, error: Exception) -> JsonReply:
        if (failure := errors.find_known_error(error)) is not None:
            return problem(failure, may_see_addresses=_is_admin(request))
        # The log has the traceback; the response must not disclose what it contains.
        _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return refusal(500, "defect", "this is a defect of Headgate; the server's log has it.")

    app.add_exception_handler(errors.HeadgateError, known)
    app.add_exception_handler(RequestValidationError, malformed)
    app.add_exception_handler(HTTPException, unrouted)
    app.add_exception_handler(ClientDisconnect, gone)
    # Also by its own class: a handler of all exceptions makes the server log a traceback.
    app.add_exception_handler(OSError, unforeseen)
    app.add_exception_handler(Exception, unforeseen)


# Documents in bodies

# Larger ones are parsed on a worker thread.
_PARSED_AT_ONCE_BYTES = 16 * 1024


def parse_document(body: bytes) -> Any:
    """Return the value of a JSON text; raise `MalformedRequest` for one that is not plain JSON."""
    check_document(body)
    try:
        # Never another encoding than UTF-8, which the check before has assumed.
        text = body.decode("utf-8-sig")
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_not_json)
    except json.JSONDecodeError:
        raise
    except RecursionError as error:
        raise too_deep() from error
    except ValueError as error:
        # Not UTF-8, or a number of thousands of digits.
        raise errors.MalformedRequest(what="the request body", reason=str(error)) from error


def _unique(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(members)
    if len(found) != len(members):
        twice = next(name for name, number in Counter(n for n, _ in members).items() if number > 1)
        reason = f"an object has the key {twice[:80]!r} twice"
        raise errors.MalformedRequest(what="the request body", reason=reason)
    return found


def _not_json(constant: str) -> Any:
    raise errors.MalformedRequest(what="the request body", reason=f"JSON has no {constant}")


# FastAPI lists every error of a document; with 250,000 of them, that takes seconds.
_LISTED_ERRORS = 100


def _validated(body: bytes, model: Any) -> Any:
    """Return a document as its model, or as it is if FastAPI is to report what is wrong with it."""
    document = parse_document(body)
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        return document
    try:
        return model.model_validate(document)
    except ValidationError as error:
        number = error.error_count()
        if number <= _LISTED_ERRORS:
            return document
        reason = f"{number} of its values are wrong or unknown, too many to list"
        raise errors.MalformedRequest(what="the request body", reason=reason) from None


class DocumentRoute(ThreadRoute):
    """A route whose body is a document of limited depth and size.

    The name of its function is the operation, which must have an access rule. FastAPI parses and
    validates bodies on the event loop. It leaves a value alone that is an instance of the route's
    model already.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **how: Any) -> None:
        rule_of(endpoint.__name__)
        super().__init__(path, endpoint, **{**how, "operation_id": endpoint.__name__})

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        model = self.body_field.field_info.annotation if self.body_field else None

        class DocumentRequest(Request):
            async def json(self) -> Any:
                body = await self.body()
                if len(body) <= _PARSED_AT_ONCE_BYTES:
                    return parse_document(body)
                return await run_in_threadpool(_validated, body, model)

        async def handle_document(request: Request) -> Response:
            return await handle(DocumentRequest(request.scope, request.receive))

        return handle_document


def _is_admin(request: Request) -> bool:
    """Return whether the request has the token of an admin; False until it is checked."""
    return getattr(request.state, "role", None) is Role.ADMIN


# Declarations of routes

_PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": meaning} for status, meaning in MEANINGS.items()
}


def router(noun: str) -> APIRouter:
    """Return the router of one noun."""
    return APIRouter(prefix="/api/v1", tags=[noun], responses=_PROBLEMS, route_class=DocumentRoute)


def documented(
    model: Any, *, status: int = 200, paged: bool = False, what: str = "Done."
) -> dict[str, Any]:
    """Return the keywords of a route that describe its answer."""
    answer: dict[str, Any] = {"model": model, "description": what}
    if paged:
        answer["headers"] = {
            "Link": {
                "description": 'The next page, as `<…>; rel="next"`; absent on the last.',
                "schema": {"type": "string"},
            }
        }
    return {"response_model": None, "status_code": status, "responses": {status: answer}}


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
    threads: Threads

    def reading(self) -> Store:
        """Return the store as the caller may read it, in the caller's name."""
        return self.served.acting_for(self.grant, reads_only=True)

    def check_holder(self, holder: Holder) -> None:
        """Raise unless the caller may supersede the holder of a key."""
        found = holder.attempt
        check_supersedable(self.grant, key=found.ref.key, actor=found.actor, branch=holder.branch)

    @contextmanager
    def writing(self, *written: str, interrupt: Interrupt | None = None) -> Iterator[Store]:
        """Open the store in the caller's name; raise unless they may write these branches."""
        begin_call()
        try:
            authorize(self.grant, self.operation, written=written)
            store = self.served.acting_for(self.grant, check_holder=self.check_holder)
            store.interrupt = interrupt
            yield store
        except errors.Denied as refused:
            branch = next(iter(written), None)
            self.authority.note(self.grant, self.operation, refused, branch=branch)
            raise
        except errors.Unavailable as failure:
            if (doubt := doubted(failure)) is not failure:
                raise doubt from failure
            raise


async def identify(
    request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
) -> Caller:
    """Return the caller; raise if their role does not have the right that the route needs."""
    operation = str(request.scope["route"].operation_id)
    threads: Threads = request.app.state.threads
    return await threads.run(
        lambda: _identify(request, credentials, operation),
        is_reserved=operation in RESERVED_OPERATIONS,
    )


def _identify(
    request: Request, credentials: HTTPAuthorizationCredentials | None, operation: str
) -> Caller:
    rule = rule_of(operation)
    authority: Authority = request.app.state.authority
    grant = authority.grant(credentials.credentials if credentials else None, operation)
    # For the access log.
    request.state.actor = grant.actor
    request.state.role = grant.role
    try:
        check_rule(grant, rule)
    except errors.Denied as refused:
        authority.note(grant, operation, refused)
        raise
    return Caller(
        grant=grant,
        operation=operation,
        served=request.app.state.store,
        authority=authority,
        builds=request.app.state.builds,
        contents=request.app.state.contents,
        trees=parse_trees(request.headers.get(TREE_HEADER)),
        threads=request.app.state.threads,
    )


CallerDependency = Annotated[Caller, Depends(identify)]


async def _interrupt(request: Request) -> AsyncIterator[Interrupt]:
    """Yield an interrupt that is set when the client disconnects."""
    interrupt = Interrupt()

    async def watch() -> None:
        # The body has been received, so this is the only message left.
        if (await request.receive())["type"] == "http.disconnect":
            interrupt.set(ClientDisconnect())

    watching = asyncio.create_task(watch())
    try:
        yield interrupt
    finally:
        watching.cancel()


Interruption = Annotated[Interrupt, Depends(_interrupt)]


# Idempotency keys


async def _checked_key(
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
async def received(
    request: Request, directory: Path, *, digest: str | None = None
) -> AsyncIterator[Received]:
    """Write the body to a temporary file, for the length of the block; yield it with its digest.

    Raise if the request names another `digest`.
    """
    make_private_directory(directory)
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
        found = Digest(seen.hexdigest())
        if digest not in (None, found):
            raise errors.Invalid(
                f"the received bytes have the digest {found}, not {digest}: they were truncated or "
                "changed in transit. Send them again.",
                expected=digest,
                actual=found,
            )
        yield Received(path=Path(file.name), digest=found, size=size)
