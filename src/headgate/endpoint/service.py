"""The parts that every handler works with."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from headgate.endpoint.ports import Action, Authorize, Principal, TableCatalog
from headgate.endpoint.rendering import RenderedTables
from headgate.endpoint.served import ServedVersions
from headgate.errors import Denied
from headgate.tables.versions import TableVersions


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _keep_nothing(principal: Principal, action: Action, refusal: Denied) -> None:
    """An embedded endpoint has nobody who would look at an audit."""


@dataclass(frozen=True, kw_only=True)
class Service:
    """One endpoint: its truth, its versions, and what it remembers of its clients."""

    catalog: TableCatalog
    versions: TableVersions
    authorize: Authorize
    # Reads a metadata file that is being registered, from wherever it lies; `NotFound` or
    # `StorageUnavailable` where it cannot.
    read_outside: Callable[[str], bytes]
    # Hears of what was refused to somebody who had been let in, as by a branch's protection.
    refused: Callable[[Principal, Action, Denied], None] = _keep_nothing
    # Settings handed to every client, such as where S3 is.
    client_defaults: Mapping[str, str] = field(default_factory=dict)
    rendered: RenderedTables = field(default_factory=RenderedTables)
    served: ServedVersions = field(default_factory=ServedVersions)
    now_ms: Callable[[], int] = _now_ms
