"""An HTTP server that records what it receives, as a receiver of events."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(kw_only=True)
class Receiver:
    url: str = ""
    # Status of its responses.
    status: int = 201
    paths: list[str] = field(default_factory=list)
    authorizations: list[str | None] = field(default_factory=list)
    received: list[dict[str, Any]] = field(default_factory=list)


@contextmanager
def receiving(status: int = 201) -> Iterator[Receiver]:
    """Run a receiver on a free loopback port."""
    receiver = Receiver(status=status)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.paths.append(self.path)
            receiver.authorizations.append(self.headers.get("Authorization"))
            receiver.received.append(json.loads(body))
            self.send_response(receiver.status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Write no log."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
