"""A proxy between clients and a server that damages connections by chance, from a seed."""

from __future__ import annotations

import enum
import random
import select
import socket
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress

_CHUNK = 65536
_POLL_SECONDS = 0.1
_DELAY_SECONDS = (0.05, 1.5)
# Longer than a client waits.
_SILENT_SECONDS = 7.0


class Fate(enum.StrEnum):
    """What happens to one piece of a request."""

    PASS = "pass"
    DELAY = "delayed"
    # The server never receives it.
    CUT_BEFORE = "cut before the server"
    # The server receives it; its answer is lost.
    CUT_AFTER = "cut after the server"
    # Only a part of the answer arrives.
    CUT_MIDWAY = "cut within the answer"
    # The client is cut off at once; the server receives the request later.
    LATE = "cut, and delivered late"
    # As if the packets were lost, in either direction.
    DROP_BEFORE = "dropped before the server"
    DROP_AFTER = "dropped after the server"


class FaultyProxy:
    """Passes bytes between clients and one server; `rate` is the share of pieces with a fault."""

    def __init__(self, port: int, seed: str) -> None:
        self.rate = 0.0
        self.drawn: Counter[str] = Counter()
        self._server_port = port
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def close(self) -> None:
        self._closing.set()
        self._listener.close()

    def counts(self) -> Mapping[str, int]:
        with self._lock:
            return dict(self.drawn)

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError), self._server() as server:
            while not self._closing.is_set():
                ready = select.select([client, server], [], [], _POLL_SECONDS)[0]
                for source in ready:
                    data = source.recv(_CHUNK)
                    if not data:
                        return
                    if source is server:
                        client.sendall(data)
                    elif not self._pass(client, server, data):
                        return

    def _server(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self._server_port))

    def _pass(self, client: socket.socket, server: socket.socket, data: bytes) -> bool:
        """Give a piece of a request its fate; return False if the connection ends with it."""
        fate, seconds = self._draw()
        if fate in (Fate.PASS, Fate.DELAY):
            time.sleep(seconds)
            server.sendall(data)
            return True
        if fate is Fate.LATE:
            client.close()
            time.sleep(seconds)
        if fate not in (Fate.CUT_BEFORE, Fate.DROP_BEFORE):
            server.sendall(data)
            answer = self._answer(server)
            if fate is Fate.CUT_MIDWAY:
                client.sendall(answer[: len(answer) // 2])
        if fate in (Fate.DROP_BEFORE, Fate.DROP_AFTER):
            self._closing.wait(_SILENT_SECONDS)
        return False

    def _draw(self) -> tuple[Fate, float]:
        with self._lock:
            if self._random.random() >= self.rate:
                return Fate.PASS, 0.0
            fate = self._random.choice([fate for fate in Fate if fate is not Fate.PASS])
            self.drawn[fate] += 1
            return fate, self._random.uniform(*_DELAY_SECONDS)

    def _answer(self, server: socket.socket) -> bytes:
        """Return the beginning of the answer; nothing where it takes too long."""
        ready = select.select([server], [], [], _SILENT_SECONDS)[0]
        return server.recv(_CHUNK) if ready else b""
