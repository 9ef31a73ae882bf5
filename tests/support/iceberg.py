"""A store's Iceberg REST endpoint for tests, request by request."""

from __future__ import annotations

from functools import cached_property, partial
from pathlib import Path
from typing import Any

import httpx
import orjson
from starlette.types import ASGIApp, Receive, Scope, Send

from headgate.catalog.log import list_publications
from headgate.catalog.tokens import create_token
from headgate.iceberg.app import IcebergApp, LoopbackEndpoint
from headgate.iceberg.service import Action, EmbeddedTokens, Service
from headgate.iceberg.table_catalog import TableCatalog
from headgate.model.access import Grant, Role
from headgate.model.changes import Caller
from headgate.model.contexts import Context
from headgate.model.nouns import Transaction
from headgate.server.authorization import ServedTokens
from headgate.storage.address import read_outside
from headgate.store.embedded import Store
from tests.support.manifests import empty_manifest_list
from tests.support.metadata import LOCATION, two_columns

TABLES = "namespaces/db/tables"


class Front:
    """One loopback server for all tests of a process; each test sets its own application."""

    def __init__(self) -> None:
        self.app: ASGIApp | None = None
        self._endpoint = LoopbackEndpoint(self)
        self.url = self._endpoint.start()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self.app is not None, "no test is being served"
        await self.app(scope, receive, send)

    def stop(self) -> None:
        self._endpoint.stop()


class Served:
    """A store behind its endpoint: the parts that the product wires, and clients."""

    def __init__(self, store: Store, front: Front) -> None:
        self.store = store
        self.url = front.url
        self.tokens = EmbeddedTokens(store.database)
        self.catalog = TableCatalog(store.database)
        self.service = Service(
            catalog=self.catalog,
            versions=store.tables,
            rules=store.rules,
            authorize=self._authorize,
            read_outside=partial(read_outside, options={}),
        )
        self.app = IcebergApp(self.service)
        self.token = self.tokens.issue("ana")
        front.app = self.app

    def client(self, context: str = "master", *, token: str | None = None) -> RestClient:
        """Return a client of a context, with ana's token by default."""
        return RestClient(self.url, context, token=token or self.token)

    @property
    def publications(self) -> int:
        """Return the number of publications."""
        newest = self.store.database.read(lambda c: list_publications(c, limit=1))
        return newest[0].number if newest else 0

    def history(self, name: str = "db.t", branch: str = "master") -> list[Transaction]:
        """Return the history of a table on a branch, oldest first."""
        return self.store.dataset(name).branch(branch).history()[::-1]

    @cached_property
    def reader(self) -> str:
        """Return the token of an actor who may only read."""
        token, _ = create_token(
            self.store.database,
            Grant(actor="rea", role=Role.READER),
            lifetime_seconds=None,
            created_by="ana",
        )
        return token

    def _authorize(self, token: str | None, context: Context, action: Action) -> Caller:
        """Authenticate as an embedded store; a reader's token as a server would."""
        is_reader = token is not None and token == self.__dict__.get("reader")
        decide = ServedTokens(self.store.database) if is_reader else self.tokens
        return decide(token, context, action)


class RestClient:
    """HTTP client that sends requests exactly as a test writes them."""

    def __init__(self, url: str, context: str, *, token: str) -> None:
        headers = {"authorization": f"Bearer {token}"}
        # No connection uses TLS; reading the machine's certificates is slower than most tests.
        self.http = httpx.Client(base_url=url, headers=headers, verify=False, timeout=60)
        self._context = context
        self._locations: dict[str, str] = {}
        self.configure()

    def configure(self) -> None:
        """Get a configuration, with the prefix of a new client."""
        config = self.http.get("/v1/config", params={"warehouse": self._context})
        self.config: Any = config.json()
        self.prefix = self.config.get("overrides", {}).get("prefix", "")

    def __enter__(self) -> RestClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def call(self, method: str, path: str, json: Any = None, **more: Any) -> httpx.Response:
        """Send one request below `/v1/{prefix}/`; the path is sent as it is written.

        The placeholder `LOCATION` in the body is replaced by the location of the table.
        """
        url = f"/v1/{self.prefix}/{path}"
        return self.http.request(method, url, json=self._placed(path, json), **more)

    def _placed(self, path: str, body: Any) -> Any:
        if not isinstance(body, dict) or LOCATION not in str(body):
            return body
        if isinstance(changes := body.get("table-changes"), list):
            placed = [self._placed(f"{TABLES}/{_named(one)}", one) for one in changes]
            return {**body, "table-changes": placed}
        text = orjson.dumps(body).decode()
        placed = orjson.loads(text.replace(LOCATION, self._location(path, body)))
        _write_manifest_lists(placed)
        return placed

    def _location(self, path: str, body: Any) -> str:
        staged = [u["location"] for u in body["updates"] if u["action"] == "set-location"]
        if staged or path in self._locations:
            return str(staged[0]) if staged else self._locations[path]
        # With a prefix of its own, as another client: the responses to this one are under test.
        config = self.http.get("/v1/config", params={"warehouse": self._context}).json()
        prefix = config.get("overrides", {}).get("prefix", "")
        found = self.http.get(f"/v1/{prefix}/{path}")
        if not found.is_success:
            return LOCATION
        self._locations[path] = str(found.json()["metadata"]["location"])
        return self._locations[path]


def _write_manifest_lists(commit: Any) -> None:
    """Write an empty manifest list for each snapshot below the table, as an engine would."""
    for update in commit.get("updates", []):
        place = (update.get("snapshot") or {}).get("manifest-list") or ""
        path = Path(place.removeprefix("file://"))
        if place.startswith("file:///") and path.parent.is_dir() and not path.exists():
            path.write_bytes(empty_manifest_list())


def create(client: RestClient, name: str = "t", **more: Any) -> Any:
    """Create a table of two columns."""
    response = client.call("POST", TABLES, {"name": name, "schema": two_columns(), **more})
    assert response.status_code == 200, response.text
    return response.json()


def send(client: RestClient, *updates: Any, name: str = "t", **more: Any) -> httpx.Response:
    """Commit once."""
    body = {"requirements": more.pop("requirements", []), "updates": list(updates)}
    return client.call("POST", f"{TABLES}/{name}", body, **more)


def load(client: RestClient, name: str = "t", query: str = "?snapshots=all") -> Any:
    """Load a table as a statement does; without the query, as a refresh does."""
    return client.call("GET", f"{TABLES}/{name}{query}").json()


def snapshot_of(client: RestClient, name: str = "t") -> int | None:
    """Return the snapshot that a context shows of a table."""
    response = client.call("GET", f"{TABLES}/{name}")
    assert response.status_code == 200, response.text
    found: int | None = response.json()["metadata"].get("current-snapshot-id")
    return found


def at(snapshot_id: int | None) -> dict[str, Any]:
    """Return the requirement that main is at a snapshot."""
    return {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": snapshot_id}


def table_change(name: str, *updates: Any, requirements: Any = ()) -> dict[str, Any]:
    """Return the part of one table in a commit over several."""
    return {
        "identifier": {"namespace": ["db"], "name": name},
        "requirements": list(requirements),
        "updates": list(updates),
    }


def _named(change: Any) -> str:
    return str(change["identifier"]["name"])


def rename(source: str, target: str) -> dict[str, Any]:
    """Return the body that renames a table."""
    old, new = ({"namespace": ["db"], "name": name} for name in (source, target))
    return {"source": old, "destination": new}


def error(response: httpx.Response) -> tuple[int, str]:
    """Return the status and the exception name of an error body."""
    body = response.json()["error"]
    assert body["code"] == response.status_code
    return response.status_code, body["type"]


def refusal(response: httpx.Response) -> tuple[int, str]:
    """Return the status and Headgate's own code of an error body."""
    return response.status_code, response.json()["error"]["headgate"]["code"]


def creation(staged: Any) -> list[dict[str, Any]]:
    """Return the updates with which a client commits a table that it staged."""
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
