"""Loads of one table over HTTP from a server of its own, beside a bare Starlette application."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa

from bench.cases import Bench, Scale, Tell, Timed
from headgate.catalog.database import Database
from headgate.catalog.migrate import ensure_schema
from headgate.model.access import Role
from headgate.model.contexts import encode_prefix, parse_context
from headgate.settings import load_settings
from headgate.store.embedded import Store
from tests.support.serving import ServerProcess

_REQUESTS = 2_000
_BARE = """
import sys, uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

body = open(sys.argv[1], "rb").read()


async def load(request: Request) -> Response:
    return Response(body, media_type="application/json")


app = Starlette(routes=[Route("/{path:path}", load)])
uvicorn.run(app, port=int(sys.argv[2]), log_level="error", access_log=False)
"""


class _Client(asyncio.Protocol):
    """One connection that sends the next request when a reply of the known length has come."""

    def __init__(self, request: bytes, reply_bytes: int, count: int) -> None:
        self._request, self._reply_bytes, self._left = request, reply_bytes, count
        self._missing = reply_bytes
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._missing -= len(data)
        if self._missing > 0:
            return
        self._left -= 1
        if self._left > 0:
            self._missing = self._reply_bytes
            self._transport.write(self._request)
        elif not self.done.done():
            self.done.set_result(None)
            self._transport.close()


@dataclass(frozen=True, kw_only=True)
class Target:
    """A request, and the ports of the two servers that answer it."""

    request: bytes
    ports: Mapping[str, int]

    def reply(self, name: str) -> bytes:
        """Return the bytes of one reply."""
        with socket.create_connection(("127.0.0.1", self.ports[name])) as connection:
            connection.sendall(self.request)
            found = b""
            while b"\r\n\r\n" not in found:
                found += connection.recv(65_536)
            head, _, body = found.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            while len(body) < length:
                body += connection.recv(65_536)
            return head + b"\r\n\r\n" + body

    def load(self, name: str, connections: int) -> Timed:
        """Return the loads, over so many connections at once."""
        size, each = len(self.reply(name)), _REQUESTS // connections

        async def run() -> None:
            loop = asyncio.get_running_loop()
            clients = [
                await loop.create_connection(
                    lambda: _Client(self.request, size, each), "127.0.0.1", self.ports[name]
                )
                for _ in range(connections)
            ]
            await asyncio.gather(*(client.done for _, client in clients))

        return lambda: asyncio.run(run())


@contextmanager
def _targets(scale: Scale, tell: Tell) -> Iterator[Mapping[str, Target]]:
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as temporary:
        home = Path(temporary)
        (home / "headgate.toml").write_text('[store]\ncatalog = "c.db"\nwarehouse = "bytes"\n')
        settings = load_settings(home)
        database = Database(settings.catalog)
        ensure_schema(database, create=True)
        database.close()
        with Store(settings) as opened:
            token = opened.create_token(actor="bench", role=Role.READER)["token"]
            opened.load("master", {"g.t": pa.table({"id": [1, 2, 3]})}, create=True)
        prefix = encode_prefix(parse_context("master"), client="bench")
        path = f"/iceberg/v1/{prefix}/namespaces/g/tables/t?snapshots=all"
        head = f"GET {path} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {token}\r\n\r\n"
        with ServerProcess(home) as server, socket.create_server(("127.0.0.1", 0)) as free:
            served = urlsplit(server.url).port or 0
            ports = {"headgate": served, "bare": free.getsockname()[1]}
            target = Target(request=head.encode(), ports=ports)
            (home / "body").write_bytes(target.reply("headgate").partition(b"\r\n\r\n")[2])
            free.close()
            words = [sys.executable, "-c", _BARE, str(home / "body"), str(ports["bare"])]
            bare = subprocess.Popen(words)
            try:
                _wait(ports["bare"])
                yield {"": target}
            finally:
                bare.terminate()
                bare.wait()


def _wait(port: int) -> None:
    for _ in range(300):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise TimeoutError(f"no server on port {port}")


READS: Bench[Target] = Bench(
    f"{_REQUESTS} loads of a table over HTTP",
    _targets,
    repetitions=30,
    quick_repetitions=5,
    warm_ups=1,
    floor="bare Starlette, 16 connections",
    counts_sql=False,
)


@READS.case("bare Starlette, 16 connections")
def _bare(target: Target) -> Timed:
    return target.load("bare", 16)


@READS.case("load a table, 16 connections", target_floor=10)
def _sixteen(target: Target) -> Timed:
    return target.load("headgate", 16)


@READS.case("load a table, one connection", target_ms=0.9 * _REQUESTS)
def _one(target: Target) -> Timed:
    return target.load("headgate", 1)
