"""Observation of a server: the access log, the server's own log, and Prometheus metrics.

Metrics cover requests, latency of the catalog, conflicts, and work in progress.
"""

import logging
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import orjson
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headgate.catalog.database import Database
from headgate.catalog.overview import CatalogFigures, read_figures
from headgate.errors import Conflict, HeadgateError, Unavailable

# Requests, each observed once, when its response has ended

ACCESS = logging.getLogger("headgate.access")
_REQUEST_ID = "x-request-id"
# Requested by programs every few seconds; logged only if they fail.
_QUIET = ("/healthz", "/readyz", "/metrics", "/_nicegui", "/assets")
# Plain Starlette routes, whose declared path is not in the scope.
_PLAIN = {"/healthz", "/readyz", "/metrics"}
_GIVEN_UP = 499


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One request and its response, without query, headers and body: they may contain secrets."""

    id: str
    method: str
    path: str
    # As declared, `/api/v1/datasets/{dataset}`: a label of metrics needs few distinct values.
    route: str
    status: int
    seconds: float
    bytes_sent: int
    client: str | None
    actor: str | None


Listener = Callable[[Seen], None]


class Observing:
    """Outermost ASGI middleware: calls the listeners for every request, also for failed ones."""

    def __init__(self, app: ASGIApp, listeners: Sequence[Listener]) -> None:
        self._app = app
        self._listeners = listeners

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, response = time.perf_counter(), _Response()

        async def send_watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                response.status = message["status"]
                MutableHeaders(scope=message)[_REQUEST_ID] = response.id
            elif message["type"] == "http.response.body":
                response.bytes_sent += len(message.get("body", b""))
            await send(message)

        # Mounted applications change both in the scope.
        path, root = scope["path"], scope.get("root_path", "")
        try:
            await self._app(scope, receive, send_watched)
        except BaseException:
            response.status = response.status or 500
            raise
        finally:
            seen = _seen(scope, path.removeprefix(root), response, time.perf_counter() - began)
            for listener in self._listeners:
                listener(seen)


@dataclass
class _Response:
    """State of a response in progress."""

    id: str = field(default_factory=lambda: secrets.token_hex(8))
    status: int = 0
    bytes_sent: int = 0


def _seen(scope: Scope, path: str, response: _Response, seconds: float) -> Seen:
    client = scope.get("client")
    state: dict[str, Any] = scope.get("state") or {}
    return Seen(
        id=response.id,
        method=scope["method"],
        path=path,
        route=route_of(scope, path),
        status=response.status or _GIVEN_UP,
        seconds=seconds,
        bytes_sent=response.bytes_sent,
        client=client[0] if client else None,
        actor=state.get("actor"),
    )


def route_of(scope: Scope, path: str) -> str:
    """Return the route as declared; for a mounted application, its mount path."""
    for prefix in ("/iceberg", "/_nicegui", "/assets"):
        if path == prefix or path.startswith(f"{prefix}/"):
            return prefix
    if path in _PLAIN:
        return path
    declared = getattr(scope.get("route"), "path", None)
    return str(declared) if declared else "other"


def write_access_line(seen: Seen) -> None:
    """Write one line of JSON, except for successful requests to the paths in `_QUIET`."""
    if seen.path.startswith(_QUIET) and seen.status < 400:
        return
    line = {
        "at": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "request": seen.id,
        "method": seen.method,
        "path": seen.path,
        "route": seen.route,
        "status": seen.status,
        "ms": round(seen.seconds * 1000, 1),
        "bytes": seen.bytes_sent,
        "client": seen.client,
        "actor": seen.actor,
    }
    ACCESS.info(orjson.dumps(line).decode())


def log_to_stderr() -> None:
    """Write the server's own log and the access log to stderr as lines of JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines())
    plain = logging.StreamHandler(sys.stderr)
    ACCESS.setLevel(logging.INFO)
    ACCESS.propagate = False
    ACCESS.handlers = [plain]
    own = logging.getLogger("headgate")
    own.setLevel(logging.INFO)
    own.handlers = [handler]
    own.propagate = False


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {
            "at": at.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "from": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return orjson.dumps(line).decode()


# Prometheus metrics

CONTENT_TYPE = CONTENT_TYPE_LATEST
_REFUSED = {401, 403}
_REQUEST_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_CATALOG_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5, 30)


class Metrics:
    """Metrics of one server, in a registry of its own: two servers in one process share none."""

    def __init__(self, database: Database) -> None:
        self._registry = CollectorRegistry()
        self._requests = Histogram(
            "headgate_request_seconds",
            "Time from a request to the end of its answer.",
            ("method", "route", "status"),
            buckets=_REQUEST_SECONDS,
            registry=self._registry,
        )
        self._refusals = Counter(
            "headgate_refusals",
            "Requests without a good token (401), or beyond its rights (403).",
            ("route", "status"),
            registry=self._registry,
        )
        self._catalog = Histogram(
            "headgate_catalog_seconds",
            "Time of one unit of work of the catalog.",
            ("kind",),
            buckets=_CATALOG_SECONDS,
            registry=self._registry,
        )
        self._conflicts = Counter(
            "headgate_conflicts",
            "Units of work that a fence or another writer refused, by the error's code.",
            ("code",),
            registry=self._registry,
        )
        self._registry.register(_Catalog(database))
        database.observe = self.saw_work

    def saw_request(self, seen: Seen) -> None:
        status = str(seen.status)
        self._requests.labels(seen.method, seen.route, status).observe(seen.seconds)
        if seen.status in _REFUSED:
            self._refusals.labels(seen.route, status).inc()

    def saw_work(self, writing: bool, seconds: float, refusal: HeadgateError | None) -> None:
        self._catalog.labels("write" if writing else "read").observe(seconds)
        if isinstance(refusal, Conflict):
            self._conflicts.labels(refusal.code).inc()

    def text(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        return generate_latest(self._registry)


class _Catalog(Collector):
    """Metrics read from the catalog at each scrape; all servers of a catalog return the same."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def describe(self) -> Iterable[Metric]:
        # Registration must not need a reachable catalog.
        return []

    def collect(self) -> Iterator[Metric]:
        try:
            found = self._database.read(read_figures)
        except Unavailable:
            found = None
        yield _gauge("headgate_catalog_up", "Whether the catalog answers.", found is not None)
        if found is not None:
            yield from _families(found)


def _families(found: CatalogFigures) -> Iterator[Metric]:
    published = CounterMetricFamily("headgate_publications", "Publications so far.")
    published.add_metric([], found.publications)
    yield published
    yield _gauge("headgate_datasets", "Datasets.", found.datasets)
    yield _gauge("headgate_branches", "Branches, over all datasets.", found.branches)
    yield _gauge("headgate_open_transactions", "OPEN transactions.", found.open_transactions)
    yield _gauge(
        "headgate_intents_pending",
        "Operations with an effect outside the catalog that are not settled yet.",
        found.intents_pending,
    )
    for name, what, by_state in (
        ("headgate_builds", "Builds by state.", found.builds_by_state),
        ("headgate_attempts", "Attempts of jobs and tasks by state.", found.attempts_by_state),
    ):
        family = GaugeMetricFamily(name, what, labels=["state"])
        for state, number in sorted(by_state.items()):
            family.add_metric([state], number)
        yield family


def _gauge(name: str, what: str, value: float) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, what)
    family.add_metric([], value)
    return family
