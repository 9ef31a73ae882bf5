"""Connections of a server process: their number, and how long they may make no progress.

uvicorn closes a connection that is idle after a response, and nothing else: a client that sends
half of a header, or does not read its response, would hold its connection for ever. These
protocols of uvicorn count all connections, limit the size of headers, and close connections that
stall. A client is a stranger until one of its requests had a valid token.
"""

import asyncio
import logging
import math
import resource
import socket
import struct
import time
from collections import defaultdict
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import Any, cast

import orjson
from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from headgate.settings import ServerSettings

_log = logging.getLogger("headgate.server")

# The key in an ASGI scope of the connection that the request came over.
_SCOPE_KEY = "headgate.connection"
# Request line and headers, also trailers; more than any client sends, tokens and cookies included.
_HEADER_BYTES = 64 * 1024
# Requests that a client sent without waiting for the responses.
_PIPELINED = 32
# A body in chunks of one byte has five bytes around each.
_OVERHEAD = 16
# Progress of bodies and responses below this rate counts as none.
SLOWEST_BYTES_PER_SECOND = 1024
# Connections from this machine that are accepted beyond the limit.
_RESERVE = 16
_LOG_SECONDS = 60.0


def _refusal(status: bytes, code: str, text: str) -> bytes:
    """Return a response that is sent without the application, in the shape of its errors."""
    body = orjson.dumps({"error": text, "code": code})
    head = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
    return head % (status, len(body)) + b"connection: close\r\n\r\n" + body


_FULL = _refusal(
    b"503 Service Unavailable",
    "too_many_connections",
    "the server has as many connections as it accepts. Try again, or ask its operator to raise "
    "`connections` in [server].",
)
_HEADERS_TOO_LARGE = _refusal(
    b"431 Request Header Fields Too Large",
    "headers_too_large",
    f"the headers of a request may have {_HEADER_BYTES} bytes.",
)


@dataclass(eq=False)
class Connection:
    """State of one connection, over all its requests and after an upgrade to a WebSocket."""

    transport: asyncio.Transport
    address: str
    # From an address of this machine, so from an operator or a proxy.
    is_local: bool
    # One of its requests had a valid token.
    is_known: bool = False
    # Since when a request's headers are awaited; None while a request is in progress.
    headers_since: float | None = None
    # Since when the client has not read, and how many bytes it had not read then.
    unread_since: float | None = None
    unread_bytes: int = 0
    is_paused: bool = False


class Connections:
    """All connections of one process.

    At the limit, a new connection replaces the oldest one of a stranger, first of the same
    address: a client that holds connections without a token cannot keep out one that has a token.
    """

    def __init__(self, limits: ServerSettings) -> None:
        self._limits = limits
        self._most = limits.connections
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if files != resource.RLIM_INFINITY:
            self._most = min(self._most, files // 2)
        self._open: dict[asyncio.Transport, Connection] = {}
        self._by_address: defaultdict[str, dict[Connection, None]] = defaultdict(dict)
        # In the order of their arrival.
        self._strangers: dict[Connection, None] = {}
        self._logged = -_LOG_SECONDS

    def admit(self, transport: asyncio.Transport) -> Connection | None:
        """Return the connection of a new client; None if there is no room for it."""
        peer, own = (transport.get_extra_info(name) for name in ("peername", "sockname"))
        address = network_of(str(peer[0]) if peer else "")
        is_local = not peer or peer[0] == own[0]
        same = self._by_address.get(address, {})
        if not is_local and len(same) >= self._limits.connections_per_address:
            stranger = next((one for one in same if not one.is_known), None)
            if not self._replace(stranger, f"from {address}"):
                return None
        if len(self._open) >= self._most + (_RESERVE if is_local else 0):
            stranger = next((one for one in self._strangers if not one.is_known), None)
            if not self._replace(stranger, "of all clients"):
                return None
        found = Connection(
            transport=transport, address=address, is_local=is_local, headers_since=time.monotonic()
        )
        self._open[transport] = found
        self._by_address[address][found] = None
        self._strangers[found] = None
        return found

    def find(self, transport: asyncio.Transport) -> Connection | None:
        return self._open.get(transport)

    def release(self, transport: asyncio.Transport) -> None:
        """Forget a connection that was closed; safe to call twice."""
        found = self._open.pop(transport, None)
        if found is None:
            return
        self._strangers.pop(found, None)
        same = self._by_address[found.address]
        same.pop(found, None)
        if not same:
            del self._by_address[found.address]

    def sweep(self) -> None:
        """Abort connections that have made no progress for too long."""
        moment = time.monotonic()
        self._strangers = {one: None for one in self._strangers if not one.is_known}
        for found in list(self._open.values()):
            if self._is_overdue(found, moment):
                self._abort(found)

    def _is_overdue(self, found: Connection, moment: float) -> bool:
        limits = self._limits
        if found.headers_since is not None and not found.transport.is_closing():
            return moment - found.headers_since > limits.header_seconds
        # Nothing is written to a paused or closing transport, so that its buffer only shrinks.
        if not (found.is_paused or found.transport.is_closing()):
            found.unread_since = None
            return False
        unread = found.transport.get_write_buffer_size()
        if found.unread_since is not None:
            seconds = moment - found.unread_since
            if found.unread_bytes - unread < seconds * SLOWEST_BYTES_PER_SECOND:
                return seconds > limits.stall_seconds
        found.unread_since, found.unread_bytes = moment, unread
        return False

    def _replace(self, stranger: Connection | None, which: str) -> bool:
        moment = time.monotonic()
        if moment - self._logged >= _LOG_SECONDS:
            self._logged = moment
            _log.warning("the connections %s are at their limit", which)
        if stranger is None:
            return False
        self._abort(stranger)
        return True

    def _abort(self, found: Connection) -> None:
        self.release(found.transport)
        wire = found.transport.get_extra_info("socket")
        if wire is not None:
            # Otherwise the system would keep unread data, and the client would notice nothing.
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        found.transport.abort()


def network_of(address: str) -> str:
    """Return an IPv4 address, or the network of an IPv6 one: a client has all addresses of it."""
    try:
        found = ip_address(address)
    except ValueError:
        return address
    return str(ip_network((found, 64), strict=False)) if found.version == 6 else address


def recognize(scope: Scope) -> None:
    """Record that the client of a request has a valid token."""
    found: Connection | None = scope.get(_SCOPE_KEY)
    if found is not None:
        found.is_known = True


class HttpConnection(HttpToolsProtocol):
    """uvicorn's HTTP protocol, with limits on headers, pipelining and the time that they take."""

    def __init__(self, connections: Connections, limits: ServerSettings, **how: Any) -> None:
        super().__init__(**how)
        self._all = connections
        self._limits = limits
        self._found: Connection | None = None
        self._in_headers = True
        self._header_bytes = 0
        self._body_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._found = self._all.admit(transport)
        if self._found is None:
            transport.write(_FULL)
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.release(self.transport)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        found = self._found
        if found is None:
            return
        if self._in_headers and (self.cycle is None or self.cycle.response_complete):
            found.headers_since = found.headers_since or time.monotonic()
        # While a body arrives: all that is not the body itself, which is unbounded otherwise.
        self._header_bytes += len(data)
        super().data_received(data)
        if self._header_bytes > _HEADER_BYTES + _OVERHEAD * self._body_bytes:
            self.transport.write(_HEADERS_TOO_LARGE)
            self.transport.close()

    def on_headers_complete(self) -> None:
        assert self._found is not None
        self._in_headers = False
        self._found.headers_since = None
        self._header_bytes = self._body_bytes = 0
        cast(Scope, self.scope)[_SCOPE_KEY] = self._found
        if len(self.pipeline) >= _PIPELINED:
            raise ValueError("too many pipelined requests")
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_headers = True
        self._header_bytes = self._body_bytes = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        found = self._found
        if found is not None:
            stays = found.is_known or found.is_local
            limits = self._limits
            seconds = limits.idle_seconds if stays else limits.header_seconds
            self.timeout_keep_alive = math.ceil(seconds)
        super().on_response_complete()

    def pause_writing(self) -> None:
        _set_paused(self._found, is_paused=True)
        super().pause_writing()

    def resume_writing(self) -> None:
        _set_paused(self._found, is_paused=False)
        super().resume_writing()


class SocketConnection(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket protocol, for a connection that was counted as an HTTP connection."""

    def __init__(self, connections: Connections, **how: Any) -> None:
        super().__init__(**how)
        self._all = connections

    async def run_asgi(self) -> None:
        cast(Scope, self.scope)[_SCOPE_KEY] = self._all.find(self.transport)
        await super().run_asgi()

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.release(self.transport)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        _set_paused(self._all.find(self.transport), is_paused=True)
        super().pause_writing()

    def resume_writing(self) -> None:
        _set_paused(self._all.find(self.transport), is_paused=False)
        super().resume_writing()


def _set_paused(found: Connection | None, *, is_paused: bool) -> None:
    if found is not None:
        found.is_paused = is_paused
        found.unread_since = None
