"""A TCP proxy in front of a server that can cut a connection at a chosen request."""

from __future__ import annotations

import enum
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_CHUNK = 65536
_POLL_SECONDS = 0.05
_LATE_SECONDS = 0.7


class Cut(enum.Enum):
    """Fate of the next matching request of a client."""

    NEVER = enum.auto()
    # The server never receives it.
    BEFORE = enum.auto()
    # The server executes it and answers; the answer never arrives.
    AFTER = enum.auto()
    # The server answers; only the first part of the answer arrives.
    MIDWAY = enum.auto()
    # The client is cut off at once; the server receives the request later, and executes it.
    LATE = enum.auto()


class Proxy:
    """Passes bytes between clients and one server, until it is set to cut or to refuse."""

    def __init__(self, port: int, matters: Callable[[bytes], bool]) -> None:
        self.cut = Cut.NEVER
        self._matters = matters
        # No connection passes any more: the network is down.
        self.refusing = False
        # How often clients sent something and then waited for the server.
        self.round_trips = 0
        self._server_port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._closing = threading.Event()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    def close(self) -> None:
        self._closing.set()
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _accept(self) -> None:
        while not self._closing.is_set():
            if not select.select([self._listener], [], [], _POLL_SECONDS)[0]:
                continue
            client, _ = self._listener.accept()
            if self.refusing:
                client.close()
                continue
            thread = threading.Thread(target=self._serve, args=(client,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        server = socket.create_connection(("127.0.0.1", self._server_port))
        sent: socket.socket | None = None
        with client, server, suppress(OSError):
            while not self._closing.is_set():
                ready = select.select([client, server], [], [], _POLL_SECONDS)[0]
                for source in ready:
                    data = source.recv(_CHUNK)
                    if not data:
                        return
                    self.round_trips += source is client and sent is not client
                    sent = source
                    if source is client and self._matters(data) and self.cut is not Cut.NEVER:
                        self._cut_off(client, server, data)
                        return
                    (server if source is client else client).sendall(data)

    def _cut_off(self, client: socket.socket, server: socket.socket, data: bytes) -> None:
        """Pass the last bytes before both connections are closed."""
        cut, self.cut = self.cut, Cut.NEVER
        if cut is Cut.LATE:
            client.close()
            time.sleep(_LATE_SECONDS)
        if cut is not Cut.BEFORE:
            server.sendall(data)
        if cut is Cut.LATE:
            server.recv(_CHUNK)
        elif cut is Cut.AFTER:
            _await_answer(client, server)
        elif cut is Cut.MIDWAY:
            arrived = 0
            while arrived < _CHUNK:
                part = _await_answer(client, server)
                client.sendall(part)
                arrived += len(part)


def _await_answer(client: socket.socket, server: socket.socket) -> bytes:
    """Pass on the rest of the request, until the server begins to answer."""
    while True:
        ready = select.select([client, server], [], [])[0]
        if server in ready:
            return server.recv(_CHUNK)
        server.sendall(client.recv(_CHUNK))


def _is_commit(data: bytes) -> bool:
    """Return True for the message with which a PostgreSQL client ends its transaction."""
    return b"COMMIT" in data


@contextmanager
def proxy_before(port: int, matters: Callable[[bytes], bool] = _is_commit) -> Iterator[Proxy]:
    proxy = Proxy(port, matters)
    try:
        yield proxy
    finally:
        proxy.close()
