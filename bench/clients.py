"""HTTP clients on one event loop: each sends its next request when the last reply has come."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator, Sequence
from functools import partial
from typing import TypeAlias

# Yields requests, and receives the bodies of their replies.
Talk: TypeAlias = Generator[bytes, bytes, None]


class _Client(asyncio.Protocol):
    """One connection, and the milliseconds that each of its requests took."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk
        self._reply = bytearray()
        self.times_ms: list[float] = []
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._send(next(self._talk))

    def data_received(self, data: bytes) -> None:
        self._reply += data
        try:
            body = _body_of(self._reply)
            if body is None:
                return
            self.times_ms.append((time.perf_counter_ns() - self._began) / 1_000_000)
            self._reply.clear()
            self._send(self._talk.send(body))
        except StopIteration:
            self._end(None)
        except AssertionError as error:
            self._end(error)

    def connection_lost(self, error: Exception | None) -> None:
        self._end(error or ConnectionError("the server closed the connection"))

    def _send(self, request: bytes) -> None:
        self._began = time.perf_counter_ns()
        self._transport.write(request)

    def _end(self, error: Exception | None) -> None:
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)
        self._transport.close()


def _body_of(reply: bytearray) -> bytes | None:
    """Return the body of a complete reply with a Content-Length; None if some of it is missing."""
    end = reply.find(b"\r\n\r\n")
    if end < 0:
        return None
    head = bytes(reply[:end]).lower()
    assert head.startswith(b"http/1.1 2"), bytes(reply[:1000])
    length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
    return bytes(reply[end + 4 :]) if len(reply) >= end + 4 + length else None


def converse(port: int, talks: Sequence[Talk]) -> list[float]:
    """Hold all conversations at once, a connection each; return the time of each request."""

    async def run() -> list[float]:
        loop = asyncio.get_running_loop()
        made = [
            await loop.create_connection(partial(_Client, talk), "127.0.0.1", port)
            for talk in talks
        ]
        await asyncio.gather(*(client.done for _, client in made))
        return [ms for _, client in made for ms in client.times_ms]

    return asyncio.run(run())


def reply(port: int, request: bytes) -> bytes:
    """Return the body of the reply to one request."""
    found = []

    def once() -> Talk:
        found.append((yield request))

    converse(port, [once()])
    return found[0]


def repeated(request: bytes, count: int) -> Talk:
    """Send one request so many times."""
    yield from given([request] * count)


def given(requests: Sequence[bytes]) -> Talk:
    """Send requests that exist already."""
    # A generator, since only generators take the replies that are sent to them.
    yield from (one for one in requests)


def request_of(
    method: str, path: str, token: str = "", body: bytes = b"", kind: str = "application/json"
) -> bytes:
    """Return the bytes of a request."""
    lines = [f"{method} {path} HTTP/1.1", "host: 127.0.0.1", f"authorization: Bearer {token}"]
    lines += [f"content-type: {kind}", f"content-length: {len(body)}"] if body else []
    return "\r\n".join([line for line in lines if not line.endswith("Bearer ")]).encode() + (
        b"\r\n\r\n" + body
    )
