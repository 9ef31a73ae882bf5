"""What Prometheus reads: requests, the catalog's pace, conflicts, and how much is under way."""

from __future__ import annotations

import logging
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
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

# Every request is seen once, when its answer has ended: for the access log and for metrics.

ACCESS = logging.getLogger("headgate.access")
_REQUEST_ID = "x-request-id"
# Asked for every few seconds by machines, and of no interest when all is well.
_QUIET = ("/healthz", "/readyz", "/metrics", "/_nicegui", "/assets")
# Routes that do not say in the scope how they were declared.
_PLAIN = {"/healthz", "/readyz", "/metrics"}
_GIVEN_UP = 499


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One request and its answer. No query, no header, no body: secrets may be in any of them."""

    id: str
    method: str
    path: str
    # As it was declared, `/api/v1/datasets/{dataset}`: there are only so many of them.
    route: str
    status: int
    seconds: float
    bytes_sent: int
    client: str | None
    actor: str | None


Listener = Callable[[Seen], None]


class Observing:
    """ASGI middleware, outermost: tells listeners of every request, whatever became of it."""

    def __init__(self, app: ASGIApp, listeners: Sequence[Listener]) -> None:
        self._app = app
        self._listeners = listeners

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, told = time.perf_counter(), _Told()

        async def send_watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                told.status = message["status"]
                MutableHeaders(scope=message)[_REQUEST_ID] = told.id
            elif message["type"] == "http.response.body":
                told.bytes_sent += len(message.get("body", b""))
            await send(message)

        # What is mounted changes these for itself.
        path, root = scope["path"], scope.get("root_path", "")
        try:
            await self._app(scope, receive, send_watched)
        except BaseException:
            told.status = told.status or 500
            raise
        finally:
            seen = _seen(scope, path.removeprefix(root), told, time.perf_counter() - began)
            for listener in self._listeners:
                listener(seen)


class _Told:
    """What is known of an answer so far."""

    def __init__(self) -> None:
        self.id = secrets.token_hex(8)
        self.status = 0
        self.bytes_sent = 0


def _seen(scope: Scope, path: str, told: _Told, seconds: float) -> Seen:
    client = scope.get("client")
    state: dict[str, Any] = scope.get("state") or {}
    return Seen(
        id=told.id,
        method=scope["method"],
        path=path,
        route=route_of(scope, path),
        status=told.status or _GIVEN_UP,
        seconds=seconds,
        bytes_sent=told.bytes_sent,
        client=client[0] if client else None,
        actor=state.get("actor"),
    )


def route_of(scope: Scope, path: str) -> str:
    """The route as it was declared; of what is mounted whole, where it is mounted."""
    for prefix in ("/iceberg", "/_nicegui", "/assets"):
        if path == prefix or path.startswith(f"{prefix}/"):
            return prefix
    if path in _PLAIN:
        return path
    declared = getattr(scope.get("route"), "path", None)
    return str(declared) if declared else "other"


def write_access_line(seen: Seen) -> None:
    """One line of JSON; machines that only look whether the server is there are left out."""
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
    """What the server itself says, as lines of JSON, for whoever collects them."""
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


CONTENT_TYPE = CONTENT_TYPE_LATEST
_REFUSED = {401, 403}
_REQUEST_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_CATALOG_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5, 30)


class Metrics:
    """The figures of one server; nothing global, so that two servers never share any."""

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
        """Everything, as it is now, in the text format."""
        return generate_latest(self._registry)


class _Catalog(Collector):
    """Read when somebody asks; what the catalog says is true of all servers on it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def describe(self) -> Iterable[Metric]:
        # Registering must not need a catalog that answers.
        return []

    def collect(self) -> Iterator[Metric]:
        try:
            found = self._database.read(read_figures)
        except Unavailable:
            yield _gauge("headgate_catalog_up", "Whether the catalog answers.", 0)
            return
        yield _gauge("headgate_catalog_up", "Whether the catalog answers.", 1)
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
        (
            "headgate_attempts",
            "Attempts of jobs and tasks by state.",
            found.attempts_by_state,
        ),
    ):
        family = GaugeMetricFamily(name, what, labels=["state"])
        for state, number in sorted(by_state.items()):
            family.add_metric([state], number)
        yield family


def _gauge(name: str, what: str, value: float) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, what)
    family.add_metric([], value)
    return family
