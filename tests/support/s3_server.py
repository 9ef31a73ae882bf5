"""The S3 server of the tests: moto, with atomic conditional writes, as in S3.

moto checks that the key is absent and stores the object without a lock between the two, so that two
of several concurrent creators may succeed.
"""

from __future__ import annotations

import io
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from werkzeug.serving import run_simple

_CONDITIONS = ("HTTP_IF_MATCH", "HTTP_IF_NONE_MATCH")


class OneConditionalWriteAtATime:
    def __init__(self, app: Callable[..., Iterable[bytes]]) -> None:
        self._app = app
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        writes = environ["REQUEST_METHOD"] in {"PUT", "POST"}
        if not writes or not any(condition in environ for condition in _CONDITIONS):
            return self._app(environ, start_response)
        if environ.get("CONTENT_LENGTH"):
            # Read before the lock is taken: a sender that pauses blocks no other request.
            body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
            environ["wsgi.input"] = io.BytesIO(body)
        with self._lock:
            return self._app(environ, start_response)


def main(port: int) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    app = DomainDispatcherApplication(create_backend_app)
    run_simple(
        "127.0.0.1",
        port,
        OneConditionalWriteAtATime(app),
        threaded=True,
        request_handler=MotoRequestHandler,
    )


if __name__ == "__main__":
    main(int(sys.argv[1]))
