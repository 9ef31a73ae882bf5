"""An endpoint over the catalog in memory and a warehouse on disk, for tests to talk to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from headgate.endpoint.app import create_app
from headgate.endpoint.loopback import LoopbackEndpoint
from headgate.endpoint.ports import Action, Principal
from headgate.endpoint.service import Service
from headgate.errors import Denied, StorageUnavailable
from headgate.model.contexts import Context
from headgate.storage.local import LocalStore
from headgate.tables.versions import TableVersions
from tests.support.memory_catalog import MemoryCatalog
from tests.support.metadata import two_columns

TOKEN = "token-of-ana"
READER = "token-of-a-reader"
TABLES = "namespaces/db/tables"


def authorize(token: str | None, _context: Context, action: Action) -> Principal:
    """Two people: one may do all, one may read."""
    if token == TOKEN:
        return Principal(actor="ana")
    if token == READER and action is Action.READ:
        return Principal(actor="reader")
    raise Denied("this token may not do that")


def read_outside(location: str) -> bytes:
    """A metadata file that lies anywhere on this machine."""
    try:
        return Path(location.removeprefix("file://")).read_bytes()
    except (OSError, ValueError) as error:
        raise StorageUnavailable(where=location, reason="it cannot be read") from error


def make_service(warehouse: Path, catalog: MemoryCatalog | None = None) -> Service:
    """An endpoint's parts over a fresh warehouse."""
    return Service(
        catalog=catalog or MemoryCatalog(),
        versions=TableVersions(LocalStore(warehouse)),
        authorize=authorize,
        read_outside=read_outside,
    )


class RestClient:
    """A client that says exactly what a test wants said."""

    def __init__(self, url: str, context: str = "master", *, token: str | None = TOKEN) -> None:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self.http = httpx.Client(base_url=url, headers=headers)
        config = self.http.get("/v1/config", params={"warehouse": context})
        self.config: Any = config.json()
        self.prefix = self.config.get("overrides", {}).get("prefix", "")

    def __enter__(self) -> RestClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def call(self, method: str, path: str, json: Any = None, **more: Any) -> httpx.Response:
        """One request below `/v1/{prefix}/`; the path goes out as it is written."""
        url = f"/v1/{self.prefix}/{path}"
        return self.http.request(method, url, json=json, **more)


@contextmanager
def serving(warehouse: Path, catalog: MemoryCatalog) -> Iterator[str]:
    """The URL of an endpoint, for as long as it is served."""
    endpoint = LoopbackEndpoint(create_app(make_service(warehouse, catalog)))
    yield endpoint.start()
    endpoint.stop()


def create(client: RestClient, name: str = "t", **more: Any) -> Any:
    """A table of two columns, made."""
    response = client.call("POST", TABLES, {"name": name, "schema": two_columns(), **more})
    assert response.status_code == 200, response.text
    return response.json()


def send(client: RestClient, *updates: Any, name: str = "t", **more: Any) -> httpx.Response:
    """One commit."""
    body = {"requirements": more.pop("requirements", []), "updates": list(updates)}
    return client.call("POST", f"{TABLES}/{name}", body, **more)


def load(client: RestClient, name: str = "t", query: str = "?snapshots=all") -> Any:
    """A table as a statement loads it; without the query, as a refresh does."""
    return client.call("GET", f"{TABLES}/{name}{query}").json()


def at(snapshot_id: int | None) -> dict[str, Any]:
    """The requirement that main is at a snapshot."""
    return {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": snapshot_id}


def error(response: httpx.Response) -> tuple[int, str]:
    """Status and exception name of an error body."""
    body = response.json()["error"]
    assert body["code"] == response.status_code
    return response.status_code, body["type"]


def creation(staged: Any) -> list[dict[str, Any]]:
    """The updates with which a client commits a table that it staged."""
    metadata = staged["metadata"]
    return [
        {"action": "assign-uuid", "uuid": metadata["table-uuid"]},
        {"action": "upgrade-format-version", "format-version": metadata["format-version"]},
        {"action": "add-schema", "schema": metadata["schemas"][0]},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": metadata["partition-specs"][0]},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": metadata["sort-orders"][0]},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        {"action": "set-location", "location": metadata["location"]},
        {"action": "set-properties", "updates": metadata["properties"]},
    ]
