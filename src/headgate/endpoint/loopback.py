"""The endpoint on this machine only, for as long as somebody needs it."""

from __future__ import annotations

import socket
import threading
import time

import uvicorn
from starlette.types import ASGIApp

from headgate.errors import EndpointNotStarted

_POLL_SECONDS = 0.005


class LoopbackEndpoint:
    """Serves an application on a free port, of 127.0.0.1 unless told, from a daemon thread.

    Off the main thread uvicorn leaves the process's signals alone.
    """

    def __init__(
        self, app: ASGIApp, *, host: str = "127.0.0.1", start_seconds: float = 10.0
    ) -> None:
        self._host = host
        self._start_seconds = start_seconds
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                log_config=None,
                log_level="warning",
                access_log=False,
                lifespan="off",
                # Spark keeps connections; closing one under it would look like a lost commit.
                timeout_keep_alive=600,
                timeout_graceful_shutdown=2,
            )
        )
        self._socket: socket.socket | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> str:
        """Starts serving and returns the URL, once requests are answered."""
        listening = self._listen()
        # Accepted connections inherit it; else a reply's second packet waits 40 ms for the first.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        port = listening.getsockname()[1]
        self._socket = listening
        self._thread = threading.Thread(
            target=self._server.run,
            kwargs={"sockets": [listening]},
            name=f"headgate-endpoint-{port}",
            daemon=True,
        )
        self._thread.start()
        deadline = time.monotonic() + self._start_seconds
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                self.stop()
                raise EndpointNotStarted(where=f"{self._host}:{port}", reason="the log says why")
            time.sleep(_POLL_SECONDS)
        return f"http://{self._host}:{port}"

    def stop(self) -> None:
        """Stops serving and waits for the thread; safe to call twice."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(timeout=10)
        if self._socket is not None:
            self._socket.close()

    def _listen(self) -> socket.socket:
        try:
            return socket.create_server((self._host, 0))
        except OSError as error:
            raise EndpointNotStarted(where=self._host, reason=str(error)) from error
