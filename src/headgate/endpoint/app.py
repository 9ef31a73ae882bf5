"""The Iceberg REST catalog as an ASGI application."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from urllib.parse import parse_qsl

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Mount
from starlette.types import Receive, Scope, Send

from headgate.endpoint.config import get_config
from headgate.endpoint.ports import Action
from headgate.endpoint.replays import RecordedRefusals
from headgate.endpoint.replies import Reply, error_reply, problem
from headgate.endpoint.requests import Request
from headgate.endpoint.routes import Route, find_route
from headgate.endpoint.service import Service
from headgate.errors import ContextReadOnly, Denied, HeadgateError, TokenRefused
from headgate.model.contexts import decode_prefix, is_writable

_log = logging.getLogger("headgate.endpoint")
_BODY_LIMIT_BYTES = 64 * 1024 * 1024


def create_app(service: Service) -> Starlette:
    """The endpoint, to be served by itself or mounted below another application."""
    endpoint = _Endpoint(service)
    return Starlette(routes=[Mount("/", app=endpoint)])


class _Endpoint:
    """Reads a request, answers it on a worker thread, and turns every error into the protocol's."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._refusals = RecordedRefusals()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        http = HttpRequest(scope, receive)
        try:
            body = await _read_body(http)
        except ClientDisconnect:
            return
        if body is None:
            reply = problem(400, "BadRequestException", "the request body is over 64 MiB.")
        else:
            headers = {key.lower(): value for key, value in http.headers.items()}
            reply = await run_in_threadpool(
                self.answer, http.method, _raw_path(scope), http.url.query, headers, body
            )
        response = Response(reply.body, status_code=reply.status, headers=dict(reply.headers))
        await response(scope, receive, send)

    def answer(
        self, method: str, path: str, query: str, headers: Mapping[str, str], body: bytes
    ) -> Reply:
        """The reply to one request; never raises."""
        token = _bearer(headers)
        try:
            return self._route(method, path, query, headers, body, token)
        except HeadgateError as error:
            return error_reply(error, authenticated=not _from_stranger(error, token))
        except Exception:
            _log.exception("%s %s failed", method, path)
            kind = "CommitStateUnknownException" if method == "POST" else "InternalServerError"
            return problem(500, kind, "the server failed; its log says why. [internal]")

    def _route(
        self,
        method: str,
        path: str,
        query_text: str,
        headers: Mapping[str, str],
        body: bytes,
        token: str | None,
    ) -> Reply:
        query = dict(parse_qsl(query_text, keep_blank_values=True))
        segments = tuple(path.strip("/").split("/"))
        if segments == ("v1", "config") and method == "GET":
            return get_config(self._service, token, query.get("warehouse"))
        found = find_route(method, segments[2:]) if segments[0] == "v1" else None
        if found is None:
            return problem(404, "NotFoundException", f"there is no operation {method} {path}.")
        route, arguments = found
        context, _ = decode_prefix(segments[1])
        principal = self._service.authorize(token, context, route.action)
        if route.action is Action.WRITE and not is_writable(context):
            raise ContextReadOnly(context=str(context))
        request = Request(
            method=method,
            path=path,
            prefix=segments[1],
            context=context,
            principal=principal,
            arguments=arguments,
            query=query,
            headers=headers,
            body=body,
        )
        return self._perform(route, request)

    def _perform(self, route: Route, request: Request) -> Reply:
        """Runs a handler once for each idempotency key."""
        idempotency = request.idempotency if route.replay else None
        if route.replay is None or idempotency is None:
            return self._handle(route, request)
        if refusal := self._refusals.find(request.principal.actor, idempotency):
            return refusal
        recall = partial(
            self._service.catalog.recall, request.principal, request.context, idempotency
        )
        if (made := recall()) is not None:
            return route.replay(self._service, request, made)
        try:
            return self._handle(route, request)
        except HeadgateError as error:
            reply = error_reply(error)
            if reply.status >= 500:
                return reply
            # The same request may have come first while this one was being answered.
            if (made := recall()) is not None:
                return route.replay(self._service, request, made)
            self._refusals.keep(request.principal.actor, idempotency, reply)
            return reply

    def _handle(self, route: Route, request: Request) -> Reply:
        try:
            return route.handler(self._service, request)
        except Denied as refusal:
            self._service.refused(request.principal, route.action, refusal)
            raise


async def _read_body(http: HttpRequest) -> bytes | None:
    """The whole body, or None as soon as it is over the limit."""
    chunks, size = [], 0
    async for chunk in http.stream():
        size += len(chunk)
        if size > _BODY_LIMIT_BYTES:
            return None
        chunks.append(chunk)
    return b"".join(chunks)


def _raw_path(scope: Scope) -> str:
    """The path as sent, below where this application is mounted.

    Decoding comes after splitting: `%2F` and `%1F` may be inside a name.
    """
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    text = raw.decode("latin-1").partition("?")[0]
    return text.removeprefix(scope.get("root_path", ""))


def _from_stranger(error: HeadgateError, token: str | None) -> bool:
    """Whether whoever is denied showed no good token at all, and is told to show one."""
    if token is None:
        return isinstance(error, Denied)
    return isinstance(error, TokenRefused) and not error.is_good


def _bearer(headers: Mapping[str, str]) -> str | None:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token.strip() else None
