"""Every request is seen once, when its answer has ended: for the access log and for metrics."""

from __future__ import annotations

import logging
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

ACCESS = logging.getLogger("headgate.access")
_REQUEST_ID = "x-request-id"
# Asked for every few seconds by machines, and of no interest when all is well.
_QUIET = ("/healthz", "/readyz", "/metrics", "/_nicegui", "/assets")
# Routes that do not say in the scope how they were declared.
_PLAIN = {"/healthz", "/readyz", "/metrics"}
_GIVEN_UP = 499


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One request and its answer. No query, no header, no body: secrets may be in any of them."""

    id: str
    method: str
    path: str
    # As it was declared, `/api/v1/datasets/{dataset}`: there are only so many of them.
    route: str
    status: int
    seconds: float
    bytes_sent: int
    client: str | None
    actor: str | None


Listener = Callable[[Seen], None]


class Observing:
    """ASGI middleware, outermost: tells listeners of every request, whatever became of it."""

    def __init__(self, app: ASGIApp, listeners: Sequence[Listener]) -> None:
        self._app = app
        self._listeners = listeners

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, told = time.perf_counter(), _Told()

        async def send_watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                told.status = message["status"]
                MutableHeaders(scope=message)[_REQUEST_ID] = told.id
            elif message["type"] == "http.response.body":
                told.bytes_sent += len(message.get("body", b""))
            await send(message)

        # What is mounted changes these for itself.
        path, root = scope["path"], scope.get("root_path", "")
        try:
            await self._app(scope, receive, send_watched)
        except BaseException:
            told.status = told.status or 500
            raise
        finally:
            seen = _seen(scope, path.removeprefix(root), told, time.perf_counter() - began)
            for listener in self._listeners:
                listener(seen)


class _Told:
    """What is known of an answer so far."""

    def __init__(self) -> None:
        self.id = secrets.token_hex(8)
        self.status = 0
        self.bytes_sent = 0


def _seen(scope: Scope, path: str, told: _Told, seconds: float) -> Seen:
    client = scope.get("client")
    state: dict[str, Any] = scope.get("state") or {}
    return Seen(
        id=told.id,
        method=scope["method"],
        path=path,
        route=route_of(scope, path),
        status=told.status or _GIVEN_UP,
        seconds=seconds,
        bytes_sent=told.bytes_sent,
        client=client[0] if client else None,
        actor=state.get("actor"),
    )


def route_of(scope: Scope, path: str) -> str:
    """The route as it was declared; of what is mounted whole, where it is mounted."""
    for prefix in ("/iceberg", "/_nicegui", "/assets"):
        if path == prefix or path.startswith(f"{prefix}/"):
            return prefix
    if path in _PLAIN:
        return path
    declared = getattr(scope.get("route"), "path", None)
    return str(declared) if declared else "other"


def write_access_line(seen: Seen) -> None:
    """One line of JSON; machines that only look whether the server is there are left out."""
    if seen.path.startswith(_QUIET) and seen.status < 400:
        return
    line = {
        "at": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "request": seen.id,
        "method": seen.method,
        "path": seen.path,
        "route": seen.route,
        "status": seen.status,
        "ms": round(seen.seconds * 1000, 1),
        "bytes": seen.bytes_sent,
        "client": seen.client,
        "actor": seen.actor,
    }
    ACCESS.info(orjson.dumps(line).decode())


def log_to_stderr() -> None:
    """What the server itself says, as lines of JSON, for whoever collects them."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines())
    plain = logging.StreamHandler(sys.stderr)
    ACCESS.setLevel(logging.INFO)
    ACCESS.propagate = False
    ACCESS.handlers = [plain]
    own = logging.getLogger("headgate")
    own.setLevel(logging.INFO)
    own.handlers = [handler]
    own.propagate = False


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {
            "at": at.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "from": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return orjson.dumps(line).decode()
