"""Starting and ending a server."""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from headgate.errors import Unavailable
from headgate.model.access import Role
from headgate.server.app import create_server
from headgate.server.building import ServerBuilds
from headgate.server.observing import log_to_stderr
from headgate.server.operating import add_operation
from headgate.server.web.mounting import mount_pages
from headgate.server.web.retrying import again_on
from headgate.store import Store

_GRACE_SECONDS = 20
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def serve(
    store: Store,
    *,
    host: str,
    port: int,
    code_from: Role = Role.ADMIN,
    runs_builds: bool = True,
) -> None:
    """Serves until SIGTERM or Ctrl-C; requests under way are finished first."""
    store.recover_forward_only()
    log_to_stderr()
    try:
        listening = socket.create_server((host, port))
    except OSError as error:
        raise Unavailable(
            f"{host}:{port} cannot be listened on: {error.strerror}. Choose another --port.",
            host=host,
            port=port,
        ) from error
    builds = ServerBuilds(store) if runs_builds else ServerBuilds(store, at_once=0)
    with listening, contextlib.closing(builds):
        # A reply of two small packets would wait for the client's delayed acknowledgement.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        app = create_server(store, builds_on_server=builds, code_from=code_from)
        add_operation(app, store)
        mount_pages(app, store, again=again_on(builds) if runs_builds else None)
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="on",
            timeout_keep_alive=600,
            timeout_graceful_shutdown=_GRACE_SECONDS,
        )
        _Server(config).run(sockets=[listening])


class _Server(uvicorn.Server):
    """Being told to stop is how a server ends: uvicorn would raise the signal again and fail."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {sig: signal.signal(sig, self.handle_exit) for sig in _STOP_SIGNALS}
        try:
            yield
        finally:
            for sig, handler in before.items():
                signal.signal(sig, handler)
