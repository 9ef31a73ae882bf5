"""What Prometheus reads: requests, the catalog's pace, conflicts, and how much is under way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from headgate.catalog.database import Database
from headgate.catalog.figures import CatalogFigures, read_figures
from headgate.errors import Conflict, HeadgateError, Unavailable
from headgate.server.observing import Seen

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
