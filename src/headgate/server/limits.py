"""Limits on requests: who may send a body, how large it may be, and how slowly it may arrive."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from hashlib import sha256

from anyio import CapacityLimiter, to_thread
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headgate.catalog.database import RESERVED
from headgate.errors import HeadgateError
from headgate.iceberg.service import problem
from headgate.server.api.conventions import TIMED_OUT, TOO_LARGE, TOO_SLOW, refusal, status_of
from headgate.server.authorization import TOKEN_PATH
from headgate.server.connections import SLOWEST_BYTES_PER_SECOND, recognize
from headgate.settings import ServerSettings

_API, _ICEBERG = "/api/", "/iceberg"
# Everything below these paths needs a bearer token.
_BEARER = (_API, _ICEBERG, "/metrics")
# Bodies here are the bytes of files; all others are small documents.
_UPLOADS = ("/api/v1/files/", "/api/v1/contents/", "/api/v1/bundles/")
# Forms and messages of the pages.
_FORM_BYTES = 8 * 1024
MESSAGE_BYTES = 1024 * 1024
_OTHER_BODIES = {"/login": _FORM_BYTES, TOKEN_PATH: _FORM_BYTES, "/_nicegui_ws": MESSAGE_BYTES}

# No scripts, no frames, no content sniffing, no copies in caches of proxies.
_SECURITY = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cache-control": "no-store",
}
# A client that is refused while it sends gets this long to read the response: data that arrives on
# a closed connection makes the client's system drop the response.
_DRAIN_SECONDS = 1.0
_DRAIN_BYTES = 1024 * 1024
# What has arrived already is read before the response, so that the connection can be kept.
_ARRIVED_SECONDS = 0.02
_ARRIVED_BYTES = 64 * 1024


class Visitors:
    """Valid tokens, each for a few seconds: a stranger cannot occupy the threads of others.

    This decides only whether a body is read. The application checks the token again, against the
    catalog, so a revocation takes effect at once.
    """

    _SECONDS = 10.0
    _REMEMBERED = 4096
    # Strangers' tokens are looked up on threads of their own.
    _THREADS = 4

    def __init__(self, is_valid: Callable[[str], bool]) -> None:
        self._is_valid = is_valid
        self._until: OrderedDict[bytes, float] = OrderedDict()
        self._limiter: CapacityLimiter | None = None

    async def knows(self, token: str) -> bool:
        """Return whether the token is valid, or was a few seconds ago."""
        digest = sha256(token.encode(errors="replace")).digest()
        if self._until.get(digest, 0.0) > time.monotonic():
            return True
        # Created here because it belongs to the event loop.
        self._limiter = self._limiter or CapacityLimiter(self._THREADS)
        # A commit comes through here too, and must not wait for a connection either.
        before = RESERVED.set(True)
        try:
            found = await to_thread.run_sync(self._is_valid, token, limiter=self._limiter)
        finally:
            RESERVED.reset(before)
        if found:
            self._until[digest] = time.monotonic() + self._SECONDS
            self._until.move_to_end(digest)
            while len(self._until) > self._REMEMBERED:
                self._until.popitem(last=False)
        else:
            self._until.pop(digest, None)
        return found


class Gate:
    """ASGI middleware: limits every request, and adds security headers to responses of the API."""

    def __init__(self, app: ASGIApp, limits: ServerSettings, visitors: Visitors) -> None:
        self._app = app
        self._limits = limits
        self._visitors = visitors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, receive, send, self._limits)
        try:
            is_stranger = await self._is_stranger(scope)
        except HeadgateError as error:
            await exchange.run_without_body(self._app, error)
        else:
            await exchange.run(self._app, is_stranger=is_stranger)

    async def _is_stranger(self, scope: Scope) -> bool:
        """Return whether a request needs a token and has no valid one; pages check cookies."""
        path = scope["path"]
        if path == TOKEN_PATH or not path.startswith(_BEARER):
            return False
        kind, _, token = Headers(scope=scope).get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not await self._visitors.knows(token.strip()):
            return True
        recognize(scope)
        return False


class _Refused(Exception):
    """Ends the application, whose response is replaced."""


class _Exchange:
    """One request and its response."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, limits: ServerSettings) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self._limits = limits
        path: str = scope["path"]
        self._is_api = path.startswith(_API)
        self._is_upload = scope["method"] == "PUT" and path.startswith(_UPLOADS)
        self._most = _most(path, limits, is_upload=self._is_upload)
        headers = Headers(scope=scope)
        self._announced = headers.get("content-length", "0")
        # Until all of the body has been received; it may be unread when the response is sent.
        self._complete = self._announced == "0" and "transfer-encoding" not in headers
        self._invites = "expect" in headers
        self._is_stranger = False
        self._has_empty_body = False
        self._taken = 0
        self._waited = 0.0
        self._began = False
        # The response that replaces the application's.
        self._verdict: tuple[int, str, str] | None = None
        self._abandoned = False

    async def run(self, app: ASGIApp, *, is_stranger: bool) -> None:
        self._is_stranger = is_stranger
        if not is_stranger and self._announced.isdigit() and int(self._announced) > self._most:
            self._refuse_size()
            await self._answer()
            return
        try:
            await self._run_in_time(app)
        except Exception:
            if self._verdict is None or self._began:
                raise
        if self._verdict is not None and not self._began:
            await self._answer()

    async def run_without_body(self, app: ASGIApp, error: HeadgateError) -> None:
        """Run the application after the token could not be checked; refuse a request with a body.

        An empty body would be rejected as an invalid request, which the client does not repeat.
        """
        if self._complete:
            await self.run(app, is_stranger=True)
            return
        told = error.without_addresses()
        self._verdict = (status_of(told), told.code, told.message)
        await self._answer()

    async def _run_in_time(self, app: ASGIApp) -> None:
        seconds = self._limits.answer_seconds
        if not self._is_api or self._is_upload:
            await app(self._scope, self.receive, self.send)
            return
        work = asyncio.ensure_future(app(self._scope, self.receive, self.send))
        done, _ = await asyncio.wait({work}, timeout=seconds)
        if done or self._began:
            await work
            return
        # A worker thread cannot be stopped: it ends by itself, and its response is dropped.
        work.add_done_callback(lambda task: task.exception())
        text = f"no response within {seconds:g} s. The request may still be carried out: check it "
        self._verdict = (TOO_SLOW, "no_answer_in_time", f"{text}by its idempotency key.")
        self._abandoned = True

    async def receive(self) -> Message:
        if self._complete:
            return await self._receive()
        if self._began:
            message = await self._receive()
            self._note(message)
            return message
        if self._verdict is not None:
            raise _Refused
        if self._is_stranger:
            # The body stays unread. Without it, the application rejects the request by its token.
            if self._has_empty_body:
                return {"type": "http.disconnect"}
            self._has_empty_body = True
            return {"type": "http.request", "body": b"", "more_body": False}
        began = time.monotonic()
        limits = self._limits
        # Slow clients earn time by what they send: one byte a minute would hold a connection.
        earned = limits.stall_seconds + self._taken / SLOWEST_BYTES_PER_SECOND - self._waited
        try:
            message = await asyncio.wait_for(
                self._receive(), max(0.0, min(limits.stall_seconds, earned))
            )
        except TimeoutError:
            text = f"the body did not arrive, or too slowly, for {limits.stall_seconds:g} s."
            self._verdict = (TIMED_OUT, "body_timeout", text)
            raise _Refused from None
        self._waited += time.monotonic() - began
        self._note(message)
        if self._taken > self._most:
            self._refuse_size()
            raise _Refused
        return message

    def _note(self, message: Message) -> None:
        if message["type"] == "http.request":
            self._taken += len(message.get("body", b""))
            self._complete = not message.get("more_body", False)
        else:
            self._complete = True

    def _refuse_size(self) -> None:
        text = f"the body is larger than the {self._most} bytes that this server accepts."
        self._verdict = (TOO_LARGE, "too_large", text)

    async def send(self, message: Message) -> None:
        if self._abandoned or (self._verdict is not None and not self._began):
            return
        await self._pass_on(message)

    async def _answer(self) -> None:
        assert self._verdict is not None
        status, code, text = self._verdict
        if self._scope["path"].startswith(_ICEBERG):
            kind = "BadRequestException" if status < 500 else "ServiceUnavailableException"
            told = problem(status, kind, f"{text} [{code}]")
            reply = Response(told.body, status_code=status, headers=dict(told.headers))
        else:
            reply = refusal(status, code, text)
        await reply(self._scope, self._receive, self._pass_on)

    async def _pass_on(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._began = True
            headers = MutableHeaders(scope=message)
            if self._is_api:
                for name, value in _SECURITY.items():
                    headers.setdefault(name, value)
            if not self._complete and not self._invites:
                await self._discard(_ARRIVED_SECONDS, _ARRIVED_BYTES)
            if not self._complete:
                headers["connection"] = "close"
        elif not self._complete and not message.get("more_body", False):
            await self._send({**message, "more_body": True})
            await self._discard(_DRAIN_SECONDS, _DRAIN_BYTES)
            message = {"type": "http.response.body"}
        await self._send(message)

    async def _discard(self, seconds: float, most_bytes: int) -> None:
        """Receive and drop what is left of the body, for a time and up to a size."""
        until, most = time.monotonic() + seconds, self._taken + most_bytes
        while not self._complete and self._taken < most:
            try:
                left = max(0.0, until - time.monotonic())
                self._note(await asyncio.wait_for(self._receive(), left))
            except TimeoutError:
                return


def _most(path: str, limits: ServerSettings, *, is_upload: bool) -> int:
    """Return the most bytes that the body of a request may have."""
    if is_upload:
        return limits.upload_bytes
    for prefix, most in _OTHER_BODIES.items():
        if path.startswith(prefix):
            return most
    return limits.document_bytes
