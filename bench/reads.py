"""Loads of one table over HTTP from a server of its own, beside a bare Starlette application."""

from __future__ import annotations

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
from bench.clients import converse, repeated, reply, request_of
from bench.pipelines import open_store
from headgate.model.access import Role
from headgate.model.contexts import encode_prefix, parse_context
from headgate.store.embedded import Store
from tests.support.serving import ServerProcess
from tests.support.spark_servers import free_port

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


@dataclass(frozen=True, kw_only=True)
class Target:
    """A request, and the ports of the two servers that answer it."""

    request: bytes
    ports: Mapping[str, int]

    def load(self, name: str, connections: int) -> Timed:
        """Return the loads, over so many connections at once."""
        each = _REQUESTS // connections
        return lambda: converse(
            self.ports[name], [repeated(self.request, each) for _ in range(connections)]
        )


@contextmanager
def _targets(scale: Scale, tell: Tell) -> Iterator[Mapping[str, Target]]:
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as temporary:
        home = Path(temporary)
        with open_store(home) as store:
            token = fill_small(store)
        with ServerProcess(home) as server:
            request, served = load_of_table(token), urlsplit(server.url).port or 0
            with bare_server(home, reply(served, request)) as bare:
                yield {"": Target(request=request, ports={"headgate": served, "bare": bare})}


def fill_small(store: Store) -> str:
    """Create the table `g.t`, and return an admin's token."""
    store.load("master", {"g.t": pa.table({"id": [1, 2, 3]})}, create=True)
    return str(store.create_token(actor="bench", role=Role.ADMIN)["token"])


def load_of_table(token: str) -> bytes:
    """Return the request that loads the table `g.t`."""
    prefix = encode_prefix(parse_context("master"), client="bench")
    path = f"/iceberg/v1/{prefix}/namespaces/g/tables/t?snapshots=all"
    return request_of("GET", path, token)


@contextmanager
def bare_server(home: Path, body: bytes) -> Iterator[int]:
    """Start a Starlette application of one process that replies with these bytes."""
    port = free_port()
    (home / "body").write_bytes(body)
    words = [sys.executable, "-c", _BARE, str(home / "body"), str(port)]
    with subprocess.Popen(words) as bare:
        try:
            _wait(port)
            yield port
        finally:
            bare.terminate()


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
