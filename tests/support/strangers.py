"""A server with low limits, and clients that send bytes as no HTTP library would."""

from __future__ import annotations

import re
import select
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import orjson

from headgate.model.access import Role
from headgate.settings import load_settings
from headgate.store.embedded import Store
from tests.support.serving import ServerProcess
from tests.support.shell import headgate_json

LIMITS = {
    "connections": 40,
    "connections_per_address": 12,
    "upload_bytes": 12 * 1024**2,
    "header_seconds": 3,
    "stall_seconds": 2,
    "streams_per_actor": 2,
}
# Only a failure takes this long, also on a busy machine.
PATIENCE_SECONDS = 60.0
# Addresses of this machine that are not the server's: to it, they are other machines.
STRANGER, ANOTHER = "127.0.0.2", "127.0.0.3"
CHUNK = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"


@dataclass(frozen=True, kw_only=True)
class Response:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str:
        return str(orjson.loads(self.body)["code"])


class RawClient:
    """One connection, from an address of this machine."""

    def __init__(self, address: tuple[str, int], source: str, *, receive_buffer: int = 0) -> None:
        self.socket = socket.socket()
        self._method = "GET"
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(PATIENCE_SECONDS)
        self.socket.bind((source, 0))
        self.socket.connect(address)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def head(self, method: str, path: str, **headers: str) -> None:
        """Send request line and headers; a keyword `content_length` is `Content-Length`."""
        self._method = method
        lines = [f"{method} {path} HTTP/1.1", "Host: headgate"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.send("\r\n".join([*lines, "", ""]).encode())

    def chunked(self, method: str, path: str, **headers: str) -> None:
        """Send headers of a body without length, and its first 64 KiB."""
        self.head(method, path, transfer_encoding="chunked", **headers)
        self.send(CHUNK)

    def response(self) -> Response:
        """Return the response, read up to its Content-Length."""
        text = b""
        while b"\r\n\r\n" not in text:
            text += self._more()
        head, _, body = text.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        length = 0 if self._method == "HEAD" else int(headers.get("content-length", "0"))
        while len(body) < length:
            body += self._more()
        return Response(status=int(first.split()[1]), headers=headers, body=body)

    def _more(self) -> bytes:
        data = self.socket.recv(1 << 16)
        assert data, "the server closed the connection before its response was complete"
        return data

    def flood(self, data: bytes = CHUNK, *, most_bytes: int = 64 * 1024**2) -> int:
        """Send until the server closes the connection; return the number of bytes."""
        sent = 0
        try:
            while sent < most_bytes:
                self.send(data)
                sent += len(data)
        except OSError:
            return sent
        raise AssertionError(f"the server read {sent} bytes of a stranger")

    def is_open(self) -> bool:
        """Return whether the server has not closed this connection; nothing is read."""
        poll = select.poll()
        poll.register(self.socket, select.POLLRDHUP)
        return not poll.poll(0)

    def wait_until_closed(self) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.is_open():
            assert time.monotonic() < deadline, "the server keeps the connection"
            time.sleep(0.05)

    def close(self) -> None:
        self.socket.close()


class Strangers:
    """A server of a new store, and connections to it from any address."""

    def __init__(self, server: ServerProcess, root: Path, tokens: dict[str, str]) -> None:
        self.server = server
        self.root = root
        self.tokens = tokens
        self._clients: list[RawClient] = []
        parts = urlsplit(server.url)
        self._address = (str(parts.hostname), int(parts.port or 0))

    def connect(self, source: str = STRANGER, **how: Any) -> RawClient:
        client = RawClient(self._address, source, **how)
        self._clients.append(client)
        return client

    def disconnect(self) -> None:
        for client in self._clients:
            client.close()
        self._clients.clear()

    def bearer(self, actor: str) -> str:
        return f"Bearer {self.tokens[actor]}"

    def http(self, actor: str | None = None, *, source: str = "127.0.0.1") -> httpx.Client:
        headers = {"authorization": self.bearer(actor)} if actor else {}
        transport = httpx.HTTPTransport(local_address=source, verify=False)
        return httpx.Client(
            base_url=self.server.url, headers=headers, transport=transport, timeout=PATIENCE_SECONDS
        )

    def check_health(self, source: str = ANOTHER) -> float:
        """Return how long the health checks take over new connections, which must succeed."""
        began = time.monotonic()
        for path in ("/healthz", "/readyz"):
            with self.http(source=source) as http:
                assert http.get(path).status_code == 200
        return time.monotonic() - began


@contextmanager
def serving_strangers(root: Path) -> Iterator[Strangers]:
    headgate_json("init", cwd=root)
    lines = "\n".join(f"{name} = {value}" for name, value in LIMITS.items())
    file = root / "headgate.toml"
    file.write_text(f"{file.read_text()}\n[server]\n{lines}\n")
    with Store(load_settings(root)) as store:
        tokens = {
            str(role): str(store.create_token(actor=str(role), role=role)["token"]) for role in Role
        }
    with ServerProcess(root) as server:
        yield Strangers(server, root, tokens)


def fill(path: str) -> str:
    """Return the path of a route with a value for each of its variables."""
    return re.sub(r"\{digest\}", "0" * 64, re.sub(r"\{(?!digest)[^}]*\}", "x.y", path))
