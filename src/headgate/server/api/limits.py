"""What a client may not do to a server: send too much, send too slowly, wait for ever."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headgate.server.api.problems import TIMED_OUT, TOO_LARGE, TOO_SLOW, refusal

API = "/api/"
# Bytes of files come as they are; everything else is a small document.
_UPLOADS = ("/api/v1/files/", "/api/v1/contents/")

# No script, no frame, no guessing of types, nothing kept by a cache on the way.
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
    # Between two parts of a body.
    body_seconds: float = 60
    # Until an answer begins; uploads and builds that are watched take as long as they take.
    answer_seconds: float = 300


class _TooLarge(Exception):
    pass


class _TooSlow(Exception):
    pass


class Guard:
    """Keeps the limits on the API, and puts the security headers on its answers."""

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
    """One request and its answer."""

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
            # A worker thread cannot be stopped: it ends by itself, and nobody hears what it says.
            self._abandoned = True
            work.add_done_callback(lambda task: task.exception())
            await self._refuse(
                TOO_SLOW,
                "no_answer_in_time",
                f"no answer within {self._limits.answer_seconds:g} s. What was asked for may still "
                "happen: look for it by its idempotency key.",
            )
            return
        await self._finish(work)

    async def _finish(self, work: asyncio.Future[None]) -> None:
        try:
            await work
        except _TooLarge:
            await self._refuse(TOO_LARGE, "too_large", self._size_text())
        except _TooSlow:
            text = f"nothing more of the body came for {self._limits.body_seconds:g} s."
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
            headers = MutableHeaders(scope=message)
            for name, value in _SECURITY.items():
                headers.setdefault(name, value)
        await self._send(message)

    async def _refuse(self, status: int, code: str, text: str) -> None:
        if self._began:
            return
        reply = refusal(status, code, text)
        # What is left of the body is not wanted.
        reply.headers["connection"] = "close"
        await reply(self._scope, self._receive, self._sending)

    async def _sending(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _SECURITY.items():
                headers.setdefault(name, value)
        await self._send(message)

    def _size_text(self) -> str:
        return f"the body is over the {self._most} bytes that this server takes."
