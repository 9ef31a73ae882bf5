"""The server of a store: application and process.

The application joins the HTTP API, the Iceberg endpoint, the web pages, health checks, the
access log and metrics.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http import HTTPMethod
from importlib.util import find_spec
from types import FrameType
from typing import TYPE_CHECKING, Any

import uvicorn
from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from headgate import __version__
from headgate.catalog.migrate import find_version
from headgate.catalog.tokens import Stamps
from headgate.errors import Denied, HeadgateError, Unavailable
from headgate.iceberg.app import IcebergApp
from headgate.iceberg.delegation import Delegation
from headgate.iceberg.service import Service
from headgate.iceberg.table_catalog import TableCatalog
from headgate.model.access import Right, Role, require
from headgate.server.api import admin, builds, datasets, files, rows, tasks
from headgate.server.api.conventions import handle_errors
from headgate.server.api.openapi import DescribedApp
from headgate.server.authorization import TOKEN_PATH, Authority, ServedTokens
from headgate.server.builds import ServerBuilds
from headgate.server.connections import Connections, HttpConnection, SocketConnection
from headgate.server.content_rights import ContentRights
from headgate.server.hot_reads import HotReads
from headgate.server.limits import MESSAGE_BYTES, Gate, Visitors
from headgate.server.metrics import (
    CONTENT_TYPE,
    Metrics,
    Observing,
    log_to_stderr,
    write_access_line,
)
from headgate.server.oauth import add_token_endpoint
from headgate.server.threads import Threads
from headgate.server.web.build_page import retry_on
from headgate.server.web.host import mount_pages
from headgate.settings import ServerSettings
from headgate.storage.address import client_properties
from headgate.store.embedded import Store

if TYPE_CHECKING:
    from headgate.rows.evaluator_pool import EvaluatorPool

# Access log and metrics

_PATH = "/metrics"
_ICEBERG = "/iceberg"


def add_operation(app: FastAPI, store: Store) -> None:
    """Count and log every request, and serve `/metrics` to tokens that may read the store."""
    metrics = Metrics(store.database)
    authority: Authority = app.state.authority

    def read(token: str | None) -> bytes:
        # Metrics disclose activity and error codes of the store, so they need the right to read.
        require(authority.grant(token, "read_metrics"), Right.READ)
        return metrics.text()

    async def show(request: Request) -> Response:
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        try:
            text = await run_in_threadpool(read, token if kind.lower() == "bearer" else None)
        except Denied as refused:
            headers = {"www-authenticate": "Bearer"}
            return JSONResponse(refused.to_json(), status_code=401, headers=headers)
        return Response(text, media_type=CONTENT_TYPE)

    app.add_route(_PATH, show, include_in_schema=False)
    app.add_middleware(Observing, listeners=[write_access_line, metrics.saw_request])


# One router per noun, in the order of the OpenAPI document.
ROUTERS = (
    admin.store_routes,
    datasets.dataset_routes,
    datasets.branch_routes,
    datasets.tag_routes,
    datasets.transaction_routes,
    files.file_routes,
    files.content_routes,
    files.parcel_routes,
    admin.past_routes,
    datasets.difference_routes,
    rows.row_routes,
    builds.jobspec_routes,
    builds.build_routes,
    builds.client_build_routes,
    tasks.task_routes,
    admin.token_routes,
)


def create_server(
    store: Store,
    *,
    builds_on_server: ServerBuilds | None = None,
    limits: ServerSettings | None = None,
    code_from: Role = Role.ADMIN,
) -> FastAPI:
    """Create one application for all contexts; the URL gives the context, the token the rights."""
    app = DescribedApp(
        title="Headgate",
        version=__version__,
        summary="Branches, transactions and fenced publication for Spark data pipelines.",
        openapi_url="/api/openapi.json",
        # These pages load scripts from another host, which no page of this server may do.
        docs_url=None,
        redoc_url=None,
    )
    authority = Authority(store.database, code_from=code_from)
    app.state.store = store
    app.state.authority = authority
    app.state.builds = builds_on_server or ServerBuilds(store)
    app.state.contents = ContentRights(store)
    app.state.threads = Threads(store.database)
    handle_errors(app)
    visitors = Visitors(authority.is_valid)
    service = _iceberg(store, authority)
    app.add_middleware(_BesideRouter, mounted=IcebergApp(service, is_gated=True))
    app.add_middleware(Gate, limits=limits or store.settings.server, visitors=visitors)
    app.add_middleware(HotReads, service=service, stamps=Stamps(store.database))
    for routes in ROUTERS:
        app.include_router(routes)
    app.add_route(
        "/api/{rest:path}", _unrouted, methods=[str(m) for m in HTTPMethod], include_in_schema=False
    )
    _add_health(app, store)
    add_token_endpoint(app, authority, visitors.knows)
    # The pages are mounted after this: they match every path below `/` that has no route here.
    return app


class _BesideRouter:
    """ASGI middleware that serves the Iceberg catalog, except for its token endpoint.

    The layers of the framework around a mounted application take a fifth of the time of a commit.
    """

    def __init__(self, app: ASGIApp, mounted: ASGIApp) -> None:
        self._app, self._mounted = app, mounted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The scope of the lifespan has no path.
        path = scope["path"] if scope["type"] == "http" else ""
        is_iceberg = path == _ICEBERG or path.startswith(f"{_ICEBERG}/")
        if is_iceberg and path != TOKEN_PATH:
            # Shared with the middleware that writes the access log.
            scope.setdefault("state", {})
            await self._mounted({**scope, "root_path": _ICEBERG}, receive, send)
        else:
            await self._app(scope, receive, send)


async def _unrouted(request: Request) -> JSONResponse:
    """Raise 404 or 405 for API paths without a route; the pages would return HTML."""
    routes = [route for router in ROUTERS for route in router.routes if isinstance(route, Route)]
    allowed = {
        method
        for route in routes
        if route.matches(request.scope)[0] is Match.PARTIAL
        for method in route.methods or ()
    }
    if allowed:
        raise HTTPException(405, headers={"Allow": ", ".join(sorted(allowed))})
    raise HTTPException(404)


def _iceberg(store: Store, authority: Authority) -> Service:
    tokens = ServedTokens(store.database, authority)
    return Service(
        catalog=TableCatalog(store.database),
        versions=store.tables,
        authorize=tokens,
        rules=store.rules,
        refused=tokens.refused,
        shows_addresses=False,
        # The address of S3, never credentials: clients use their own.
        client_defaults=client_properties(store.settings.environ),
        delegation=Delegation.open(store.settings),
    )


def _add_health(app: FastAPI, store: Store) -> None:
    async def alive(_: Request) -> JSONResponse:
        return JSONResponse({"ok": True})

    async def ready(_: Request) -> JSONResponse:
        try:
            read = partial(store.database.read, find_version)
            version = await app.state.threads.run(read, is_reserved=True)
        except HeadgateError as error:
            # Health checks have no token.
            return JSONResponse(
                {"ok": False, **error.without_addresses().to_json()}, status_code=503
            )
        return JSONResponse({"ok": True, "schema_version": version})

    app.add_route("/healthz", alive, include_in_schema=False)
    app.add_route("/readyz", ready, include_in_schema=False)


# Server process

_log = logging.getLogger("headgate.server")

# After a stop signal: until scripts and loads are stopped, until all other requests are cancelled,
# and until the process ends whatever still runs. Service managers kill after 30 s or more.
_STATEMENT_SECONDS = 12
_REQUEST_SECONDS = 15
_EXIT_SECONDS = 19
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def serve(
    store: Store,
    *,
    host: str,
    port: int,
    code_from: Role = Role.ADMIN,
    runs_builds: bool = True,
    public_url: str | None = None,
    announce: Callable[[], None] = lambda: None,
) -> None:
    """Serve until SIGTERM or Ctrl-C, then finish the requests in progress.

    :param announce: called when the port is bound: clients that connect from then on are served.
    """
    log_to_stderr()
    try:
        listening = socket.create_server((host, port))
    except OSError as error:
        is_used = error.errno == errno.EADDRINUSE
        what = f"port {port} is already in use" if is_used else f"cannot listen on {host}:{port}"
        reason = "" if is_used else f" ({error.strerror})"
        raise Unavailable(
            f"{what}{reason}. Choose another --port, or end the process that uses this one.",
            host=host,
            port=port,
        ) from error
    builds = ServerBuilds(store) if runs_builds else ServerBuilds(store, at_once=0)
    with listening, _evaluators(store) as evaluators, contextlib.closing(builds):
        # Without it, a response of two small packets waits for the client's delayed ACK.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        app = create_server(store, builds_on_server=builds, code_from=code_from)
        add_operation(app, store)
        retry = retry_on(builds) if runs_builds else None
        mount_pages(app, store, retry=retry, public_url=public_url)
        limits = store.settings.server
        connections = Connections(limits)
        protocols: dict[str, Any] = {
            "http": partial(HttpConnection, connections, limits),
            "ws": partial(SocketConnection, connections),
        }
        config = uvicorn.Config(
            app,
            **protocols,
            ws_max_size=MESSAGE_BYTES,
            log_config=None,
            access_log=False,
            lifespan="on",
            timeout_graceful_shutdown=_REQUEST_SECONDS,
        )
        ending = _Ending(builds, evaluators)
        announce()
        _Server(config, connections, app.state.threads, ending).run(sockets=[listening])
        app.state.authority.flush()


@contextmanager
def _evaluators(store: Store) -> Iterator[EvaluatorPool | None]:
    """Let scripts and loads run in processes of their own, if what they need is installed."""
    if find_spec("duckdb") is None or find_spec("sqlglot") is None:
        yield None
        return
    from headgate.rows.evaluator_pool import EvaluatorPool  # noqa: PLC0415  (an optional extra)

    settings = store.settings
    started = EvaluatorPool(settings.server, store.scratch, settings.environ)
    with contextlib.closing(started) as pool:
        pool.start()
        store.evaluators = pool
        yield pool


class _Ending:
    """Ends the process in time, whatever it does when the stop signal arrives."""

    def __init__(self, builds: ServerBuilds, evaluators: EvaluatorPool | None) -> None:
        self._builds = builds
        self._evaluators = evaluators
        self._began = False

    def begin(self) -> None:
        if not self._began:
            self._began = True
            # A daemon: the process does not wait for it.
            threading.Thread(target=self._run, name="headgate-ending", daemon=True).start()

    def _run(self) -> None:
        threading.Thread(target=self._builds.stop, name="headgate-builds", daemon=True).start()
        time.sleep(_STATEMENT_SECONDS)
        if self._evaluators is not None:
            self._evaluators.close()
        time.sleep(_EXIT_SECONDS - _STATEMENT_SECONDS)
        _log.warning("the work of some requests did not end within %s s: cut off", _EXIT_SECONDS)
        # Also where `serve` has returned: Python itself waits for threads that work.
        # Safe: what was not published is recovered, as after a power failure.
        os._exit(0)


class _Server(uvicorn.Server):
    """A server that exits normally on a stop signal; uvicorn would raise the signal again."""

    def __init__(
        self, config: uvicorn.Config, connections: Connections, threads: Threads, ending: _Ending
    ) -> None:
        super().__init__(config)
        self._connections = connections
        self._threads = threads
        self._ending = ending

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self._ending.begin()

    async def on_tick(self, counter: int) -> bool:
        # Called ten times a second.
        if counter % 3 == 0:
            self._connections.sweep()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Requests in progress end by themselves; those that wait for a writer may not.
        self._threads.stop()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {sig: signal.signal(sig, self.handle_exit) for sig in _STOP_SIGNALS}
        try:
            yield
        finally:
            for sig, handler in before.items():
                signal.signal(sig, handler)
