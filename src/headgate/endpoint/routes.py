"""Which request goes where, by the raw path."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headgate.endpoint import commits, namespaces, tables
from headgate.endpoint.ports import Action, ServedTable
from headgate.endpoint.replies import Reply
from headgate.endpoint.requests import Request
from headgate.endpoint.service import Service

Handler = Callable[[Service, Request], Reply]
# Given the tables that the write made then.
Replay = Callable[[Service, Request, Sequence[ServedTable]], Reply]


@dataclass(frozen=True, kw_only=True)
class Route:
    """One operation of the protocol."""

    method: str
    # As the protocol writes it, without `/v1/{prefix}`.
    pattern: str
    handler: Handler
    action: Action = Action.READ
    # Answers a write that has happened already, when its idempotency key comes again.
    replay: Replay | None = None

    @property
    def advertised(self) -> str:
        return f"{self.method} /v1/{{prefix}}/{self.pattern}"

    def match(self, segments: tuple[str, ...]) -> Mapping[str, str] | None:
        """The pattern's variables, or None where the segments do not fit it."""
        parts = self.pattern.split("/")
        if len(parts) != len(segments):
            return None
        found: dict[str, str] = {}
        for part, segment in zip(parts, segments, strict=True):
            if part.startswith("{"):
                found[part.strip("{}")] = segment
            elif part != segment:
                return None
        return found


_NAMESPACE = "namespaces/{namespace}"
_TABLE = "namespaces/{namespace}/tables/{table}"


def _write(method: str, pattern: str, handler: Handler, replay: Replay) -> Route:
    return Route(
        method=method, pattern=pattern, handler=handler, action=Action.WRITE, replay=replay
    )


def _read(method: str, pattern: str, handler: Handler) -> Route:
    return Route(method=method, pattern=pattern, handler=handler)


ROUTES = (
    _read("GET", "namespaces", namespaces.list_namespaces),
    _write(
        "POST",
        "namespaces",
        namespaces.create_namespace,
        namespaces.replay_create_namespace,
    ),
    _read("GET", _NAMESPACE, namespaces.load_namespace),
    _read("HEAD", _NAMESPACE, namespaces.namespace_exists),
    _write("DELETE", _NAMESPACE, namespaces.drop_namespace, tables.replay_nothing),
    _write(
        "POST",
        f"{_NAMESPACE}/properties",
        namespaces.update_properties,
        namespaces.replay_update_properties,
    ),
    _read("GET", f"{_NAMESPACE}/tables", tables.list_tables),
    _write("POST", f"{_NAMESPACE}/tables", tables.create_table, tables.replay_made),
    _write("POST", f"{_NAMESPACE}/register", tables.register_table, tables.replay_made),
    _read("GET", _TABLE, tables.load_table),
    _read("HEAD", _TABLE, tables.table_exists),
    _write("POST", _TABLE, commits.commit_table, tables.replay_made),
    _write("DELETE", _TABLE, tables.drop_table, tables.replay_nothing),
    _read("POST", f"{_TABLE}/metrics", tables.report_metrics),
    _write("POST", "tables/rename", tables.rename_table, tables.replay_nothing),
    _write("POST", "transactions/commit", commits.commit_transaction, tables.replay_nothing),
)


def find_route(method: str, segments: tuple[str, ...]) -> tuple[Route, Mapping[str, str]] | None:
    """The operation that a method and path name, with the path's variables."""
    for route in ROUTES:
        if route.method == method and (found := route.match(segments)) is not None:
            return route, found
    return None
