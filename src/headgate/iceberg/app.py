"""The Iceberg REST catalog as an ASGI application, and a server of it on this machine."""

import logging
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar
from urllib.parse import parse_qsl

import uvicorn
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from headgate import errors
from headgate.iceberg import commits, delegation, tables, views
from headgate.iceberg.service import (
    Action,
    Reply,
    Request,
    Service,
    drop,
    error_reply,
    exists,
    json_reply,
    list_names,
    problem,
    rename,
)
from headgate.iceberg.table_catalog import Idempotency, ServedTable
from headgate.model import contexts
from headgate.model.changes import Caller
from headgate.model.nouns import DatasetKind
from headgate.settings import REMOTE_SIGNING, VENDED_CREDENTIALS

# Routes, by the raw path

Handler = Callable[[Service, Request], Reply]
# The last argument is the tables that the write made.
Replay = Callable[[Service, Request, Sequence[ServedTable]], Reply]


@dataclass(frozen=True, kw_only=True)
class Route:
    """One operation of the protocol."""

    method: str
    # As in the protocol's specification, without `/v1/{prefix}`.
    pattern: str
    handler: Handler
    action: Action = Action.READ
    # Replies to a repeated idempotency key of a write that has happened.
    replay: Replay | None = None
    # The ability that a server needs to serve it, such as a way of access to storage.
    mode: str | None = None

    @property
    def advertised(self) -> str:
        return f"{self.method} /v1/{{prefix}}/{self.pattern}"

    def match(self, segments: tuple[str, ...]) -> Mapping[str, str] | None:
        """Return the pattern's variables, or None where the segments do not match it."""
        parts = self.pattern.split("/")
        if len(parts) != len(segments):
            return None
        found: dict[str, str] = {}
        for part, segment in zip(parts, segments, strict=True):
            if part.startswith("{"):
                found[part.strip("{}")] = segment
            elif part != segment:
                return None
        return found


_REGISTRATION = "registration"
_NAMESPACE = "namespaces/{namespace}"
_TABLE = "namespaces/{namespace}/tables/{table}"
_VIEW = "namespaces/{namespace}/views/{view}"


def _write(method: str, pattern: str, handler: Handler, replay: Replay) -> Route:
    return Route(
        method=method, pattern=pattern, handler=handler, action=Action.WRITE, replay=replay
    )


def _read(method: str, pattern: str, handler: Handler) -> Route:
    return Route(method=method, pattern=pattern, handler=handler)


ROUTES = (
    _read("GET", "namespaces", tables.list_namespaces),
    _write("POST", "namespaces", tables.create_namespace, tables.replay_create_namespace),
    _read("GET", _NAMESPACE, tables.load_namespace),
    _read("HEAD", _NAMESPACE, tables.namespace_exists),
    _write("DELETE", _NAMESPACE, tables.drop_namespace, tables.replay_nothing),
    _write(
        "POST",
        f"{_NAMESPACE}/properties",
        tables.update_properties,
        tables.replay_update_properties,
    ),
    _read("GET", f"{_NAMESPACE}/tables", partial(list_names, kind=DatasetKind.TABLE)),
    _write("POST", f"{_NAMESPACE}/tables", tables.create_table, tables.replay_made),
    replace(
        _write("POST", f"{_NAMESPACE}/register", tables.register_table, tables.replay_made),
        mode=_REGISTRATION,
    ),
    _read("GET", _TABLE, tables.load_table),
    _read("HEAD", _TABLE, partial(exists, kind=DatasetKind.TABLE)),
    _write("POST", _TABLE, commits.commit_table, tables.replay_made),
    _write("DELETE", _TABLE, partial(drop, kind=DatasetKind.TABLE), tables.replay_nothing),
    _read("POST", f"{_TABLE}/metrics", tables.report_metrics),
    Route(
        method="GET",
        pattern=f"{_TABLE}/credentials",
        handler=delegation.load_credentials,
        mode=VENDED_CREDENTIALS,
    ),
    Route(
        method="POST",
        pattern=f"{_TABLE}/sign",
        handler=delegation.sign_request,
        mode=REMOTE_SIGNING,
    ),
    _write("POST", "tables/rename", partial(rename, kind=DatasetKind.TABLE), tables.replay_nothing),
    _read("GET", f"{_NAMESPACE}/views", partial(list_names, kind=DatasetKind.VIEW)),
    _write("POST", f"{_NAMESPACE}/views", views.create_view, views.replay_made),
    _read("GET", _VIEW, views.load_view),
    _read("HEAD", _VIEW, partial(exists, kind=DatasetKind.VIEW)),
    _write("POST", _VIEW, views.replace_view, views.replay_made),
    _write("DELETE", _VIEW, partial(drop, kind=DatasetKind.VIEW), tables.replay_nothing),
    _write("POST", "views/rename", partial(rename, kind=DatasetKind.VIEW), tables.replay_nothing),
    _write("POST", "transactions/commit", commits.commit_transaction, tables.replay_nothing),
)


def find_route(method: str, segments: tuple[str, ...]) -> tuple[Route, Mapping[str, str]] | None:
    """Return the operation of a method and path, with the path's variables."""
    for route in ROUTES:
        if route.method == method and (found := route.match(segments)) is not None:
            return route, found
    return None


# How long a client may repeat a request with its idempotency key.
IDEMPOTENCY_KEY_LIFETIME = "PT24H"


def get_config(
    service: Service,
    authorize: Callable[[contexts.Context, Action], Caller],
    warehouse: str | None,
    client_version: str = "",
) -> Reply:
    """Return the configuration of a client of a context; each client gets its own prefix."""
    if not warehouse:
        raise errors.InvalidContext(
            context="", reason="the catalog property 'warehouse' is not set"
        )
    context = contexts.parse_context(warehouse)
    service.limited_to(authorize(context, Action.READ).policy).catalog.check_context(context)
    overrides = {
        "prefix": contexts.encode_prefix(context, client=service.served.new_client(client_version)),
        # Statements then load with the parameter `snapshots`, a refresh inside a commit without.
        "snapshot-loading-mode": "all",
        "rest-metrics-reporting-enabled": "false",
    }
    modes = {None, *(service.delegation.modes if service.delegation else ())}
    if service.read_outside is not None:
        modes.add(_REGISTRATION)
    return json_reply(
        {
            "defaults": dict(service.client_defaults),
            "overrides": overrides,
            "endpoints": [route.advertised for route in ROUTES if route.mode in modes],
            "idempotency-key-lifetime": IDEMPOTENCY_KEY_LIFETIME,
        }
    )


class RecordedRefusals:
    """Final 4xx replies by actor and idempotency key; the catalog records writes that happened.

    In memory only: a refused request changed nothing, so a restart loses nothing.
    """

    def __init__(self, *, limit: int = 10_000) -> None:
        self._limit = limit
        self._replies: OrderedDict[tuple[str, str], tuple[str, Reply]] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, actor: str, idempotency: Idempotency) -> Reply | None:
        """Return the refusal of a key; another request under the same key is invalid."""
        with self._lock:
            known = self._replies.get((actor, idempotency.key))
        if known is None:
            return None
        if known[0] != idempotency.request_hash:
            raise errors.IdempotencyKeyReused(key=idempotency.key)
        return known[1]

    def keep(self, actor: str, idempotency: Idempotency, reply: Reply) -> None:
        """Record a final refusal."""
        with self._lock:
            self._replies[actor, idempotency.key] = (idempotency.request_hash, reply)
            while len(self._replies) > self._limit:
                self._replies.popitem(last=False)


_log = logging.getLogger("headgate.endpoint")
_BODY_LIMIT_BYTES = 64 * 1024 * 1024

_Result = TypeVar("_Result")


@dataclass(frozen=True, kw_only=True)
class _Head:
    """A request without its body."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]

    @property
    def token(self) -> str | None:
        scheme, _, token = self.headers.get("authorization", "").partition(" ")
        return token.strip() if scheme.lower() == "bearer" and token.strip() else None

    @property
    def announces_body(self) -> bool:
        length = self.headers.get("content-length", "0")
        return length != "0" or "transfer-encoding" in self.headers


@dataclass(frozen=True, kw_only=True)
class _Admitted:
    """A request whose token allows its operation."""

    route: Route
    request: Request


class IcebergApp:
    """The endpoint, to be served by itself or mounted below another ASGI application.

    It handles each request on a worker thread and renders every error as the protocol's.

    :param is_gated: the application around this one passes on no body of a client without a token.
    """

    def __init__(self, service: Service, *, is_gated: bool = False) -> None:
        self._service = service
        self._is_gated = is_gated
        self._refusals = RecordedRefusals()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        http = HttpRequest(scope, receive)
        head = _Head(
            method=http.method,
            path=_raw_path(scope),
            query=http.url.query,
            headers={key.lower(): value for key, value in http.headers.items()},
        )
        try:
            reply = await self._exchange(http, head)
        except ClientDisconnect:
            return
        response = Response(reply.body, status_code=reply.status, headers=dict(reply.headers))
        await response(scope, receive, send)

    async def _exchange(self, http: HttpRequest, head: _Head) -> Reply:
        if not head.announces_body:
            return await self._on_thread(head, lambda: self._finish(self._admit(http, head), b""))
        admitted: _Admitted | Reply | None = None
        if not self._is_gated:
            # First the token: the body of a client without a valid one is not read.
            admitted = await self._on_thread(head, lambda: self._admit(http, head))
            if isinstance(admitted, Reply):
                return admitted
        body = await _read_body(http)
        if body is None:
            return problem(400, "BadRequestException", "the request body is over 64 MiB.")
        return await self._on_thread(
            head, lambda: self._finish(admitted or self._admit(http, head), body)
        )

    async def _on_thread(self, head: _Head, work: Callable[[], _Result]) -> _Result | Reply:
        return await run_in_threadpool(self._guard, head, work)

    def _guard(self, head: _Head, work: Callable[[], _Result]) -> _Result | Reply:
        """Run a part of a request; return the reply for an error that it raises."""
        try:
            return work()
        except errors.HeadgateError as error:
            return self._reply(error, authenticated=_is_authenticated(error, head.token))
        except Exception as error:
            if (failure := errors.find_known_error(error)) is not None:
                return self._reply(failure)
            _log.exception("%s %s failed", head.method, head.path)
            is_commit = head.method == "POST"
            kind = "CommitStateUnknownException" if is_commit else "InternalServerError"
            return problem(500, kind, "the server failed; its log has the cause. [internal]")

    def _admit(self, http: HttpRequest, head: _Head) -> _Admitted | Reply:
        """Find the operation of a request, and check that its token allows the operation."""

        def authorize(context: contexts.Context, action: Action) -> Caller:
            caller = self._service.authorize(head.token, context, action)
            # For the access log.
            http.state.actor = caller.actor
            return caller

        query = dict(parse_qsl(head.query, keep_blank_values=True))
        segments = tuple(head.path.strip("/").split("/"))
        if segments == ("v1", "config") and head.method == "GET":
            version = head.headers.get("x-client-version", "")
            return get_config(self._service, authorize, query.get("warehouse"), version)
        found = find_route(head.method, segments[2:]) if segments[0] == "v1" else None
        if found is None:
            told = f"there is no operation {head.method} {head.path}."
            return problem(404, "NotFoundException", told)
        route, arguments = found
        context, _ = contexts.decode_prefix(segments[1])
        caller = authorize(context, route.action)
        if route.action is Action.WRITE and not contexts.is_writable(context):
            raise errors.ContextReadOnly(context=str(context))
        request = Request(
            method=head.method,
            path=head.path,
            prefix=segments[1],
            context=context,
            caller=caller,
            arguments=arguments,
            query=query,
            headers=head.headers,
            body=b"",
        )
        return _Admitted(route=route, request=request)

    def _finish(self, admitted: _Admitted | Reply, body: bytes) -> Reply:
        if isinstance(admitted, Reply):
            return admitted
        request = replace(admitted.request, body=body)
        service = self._service.limited_to(request.caller.policy)
        return self._perform(admitted.route, request, service)

    def _perform(self, route: Route, request: Request, service: Service) -> Reply:
        """Run a handler once for each idempotency key."""
        idempotency = request.idempotency if route.replay else None
        if route.replay is None or idempotency is None:
            return self._handle(route, request, service)
        if refusal := self._refusals.find(request.caller.actor, idempotency):
            return refusal
        recall = partial(service.catalog.recall, request)
        if (made := recall()) is not None:
            return route.replay(service, request, made)
        try:
            return self._handle(route, request, service)
        except errors.HeadgateError as error:
            reply = self._reply(error)
            if reply.status >= 500:
                return reply
            # The same request may have been handled by another thread meanwhile.
            if (made := recall()) is not None:
                return route.replay(service, request, made)
            self._refusals.keep(request.caller.actor, idempotency, reply)
            return reply

    def _reply(self, error: errors.HeadgateError, *, authenticated: bool = True) -> Reply:
        if error.public is not None and not self._service.shows_addresses:
            _log.warning("%s: %s", error.code, error.message)
            error = error.without_addresses()
        return error_reply(error, authenticated=authenticated)

    def _handle(self, route: Route, request: Request, service: Service) -> Reply:
        try:
            return route.handler(service, request)
        except errors.Denied as refusal:
            service.refused(request.caller, route.action, refusal)
            raise


async def _read_body(http: HttpRequest) -> bytes | None:
    """Return the whole body, or None as soon as it is over the limit."""
    chunks, size = [], 0
    async for chunk in http.stream():
        size += len(chunk)
        if size > _BODY_LIMIT_BYTES:
            return None
        chunks.append(chunk)
    return b"".join(chunks)


def _raw_path(scope: Scope) -> str:
    """Return the path as sent, below where this application is mounted.

    Decoding comes after splitting: `%2F` and `%1F` may be inside a name.
    """
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw.decode("latin-1").partition("?")[0].removeprefix(scope.get("root_path", ""))


def _is_authenticated(error: errors.HeadgateError, token: str | None) -> bool:
    """Return whether the client of a refused request sent a good token."""
    if token is None:
        return not isinstance(error, errors.Denied)
    return not isinstance(error, errors.TokenRefused) or error.is_good


_POLL_SECONDS = 0.005


class LoopbackEndpoint:
    """Serves an application on a free port, by default of 127.0.0.1, from a daemon thread.

    Off the main thread uvicorn installs no signal handlers.
    """

    def __init__(
        self, app: ASGIApp, *, host: str = "127.0.0.1", start_seconds: float = 10.0
    ) -> None:
        self._host = host
        self._start_seconds = start_seconds
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                log_config=None,
                log_level="warning",
                access_log=False,
                lifespan="off",
                # Spark keeps connections; to it, closing one is a lost commit.
                timeout_keep_alive=600,
                timeout_graceful_shutdown=2,
            )
        )
        self._socket: socket.socket | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> str:
        """Start serving, and return the URL once requests are accepted."""
        try:
            listening = socket.create_server((self._host, 0))
        except OSError as error:
            raise errors.EndpointNotStarted(where=self._host, reason=str(error)) from error
        # Accepted connections inherit it; without it a reply's second packet waits 40 ms.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        port = listening.getsockname()[1]
        self._socket = listening
        self._thread = threading.Thread(
            target=self._server.run,
            kwargs={"sockets": [listening]},
            name=f"headgate-endpoint-{port}",
            daemon=True,
        )
        self._thread.start()
        deadline = time.monotonic() + self._start_seconds
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                self.stop()
                raise errors.EndpointNotStarted(
                    where=f"{self._host}:{port}", reason="the log has the cause"
                )
            time.sleep(_POLL_SECONDS)
        return f"http://{self._host}:{port}"

    def stop(self) -> None:
        """Stop serving and wait for the thread; safe to call twice."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(timeout=10)
        if self._socket is not None:
            self._socket.close()
