"""A TCP proxy before PostgreSQL that can cut a connection at its COMMIT."""

from __future__ import annotations

import enum
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_CHUNK = 65536
_COMMIT = b"COMMIT"
_POLL_SECONDS = 0.05
_LATE_SECONDS = 0.7


class Cut(enum.Enum):
    """What happens to the next COMMIT that a client sends."""

    NEVER = enum.auto()
    # The server never hears of it.
    BEFORE = enum.auto()
    # The server commits and answers; the answer never arrives.
    AFTER = enum.auto()
    # The client is cut off at once; the server hears of it a while later, and commits.
    LATE = enum.auto()


class Proxy:
    """Passes bytes between clients and one server, until it is told to cut or to refuse."""

    def __init__(self, port: int) -> None:
        self.cut = Cut.NEVER
        # Nobody gets through any more: the network is gone.
        self.refusing = False
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
        with client, server, suppress(OSError):
            while not self._closing.is_set():
                ready = select.select([client, server], [], [], _POLL_SECONDS)[0]
                for source in ready:
                    data = source.recv(_CHUNK)
                    if not data:
                        return
                    if source is client and self.cut is not Cut.NEVER and _COMMIT in data:
                        self._cut_off(client, server, data)
                        return
                    (server if source is client else client).sendall(data)

    def _cut_off(self, client: socket.socket, server: socket.socket, data: bytes) -> None:
        """The last that passes before both connections are closed."""
        cut, self.cut = self.cut, Cut.NEVER
        if cut is Cut.LATE:
            client.close()
            time.sleep(_LATE_SECONDS)
        if cut is not Cut.BEFORE:
            server.sendall(data)
            server.recv(_CHUNK)


@contextmanager
def proxy_before(port: int) -> Iterator[Proxy]:
    proxy = Proxy(port)
    try:
        yield proxy
    finally:
        proxy.close()
