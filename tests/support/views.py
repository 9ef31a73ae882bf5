"""Views for tests of the endpoint: requests as clients send them."""

from __future__ import annotations

from typing import Any

import httpx

from tests.support.iceberg import RestClient

VIEWS = "namespaces/db/views"
SPARK = "SELECT id FROM db.t"


def view_version(queries: dict[str, str], *, schema_id: int = -1) -> dict[str, Any]:
    """Return a version of a view with a query in each dialect."""
    return {
        "version-id": 1,
        "schema-id": schema_id,
        "timestamp-ms": 1_700_000_000_000,
        "summary": {"engine-name": "spark"},
        "default-catalog": "headgate",
        "default-namespace": ["db"],
        "representations": [
            {"type": "sql", "sql": sql, "dialect": dialect} for dialect, sql in queries.items()
        ],
    }


def view_schema(*columns: str) -> dict[str, Any]:
    """Return a schema of columns of numbers."""
    fields = [
        {"id": at, "name": name, "type": "long", "required": False}
        for at, name in enumerate(columns or ("id",))
    ]
    return {"type": "struct", "schema-id": 0, "fields": fields}


def post_view(client: RestClient, name: str = "v", sql: str = SPARK, **more: Any) -> httpx.Response:
    """Send the request that creates a view."""
    headers = more.pop("headers", None)
    body = {
        "name": name,
        "schema": view_schema(),
        "view-version": view_version({"spark": sql}),
        "properties": {},
        **more,
    }
    return client.call("POST", VIEWS, body, headers=headers)


def make_view(client: RestClient, name: str = "v", sql: str = SPARK, **more: Any) -> Any:
    """Create a view, and return its metadata."""
    response = post_view(client, name, sql, **more)
    assert response.status_code == 200, response.text
    return response.json()["metadata"]


def to_replace(queries: dict[str, str]) -> list[dict[str, Any]]:
    """Return the updates by which a client gives a view other queries."""
    return [
        {"action": "add-view-version", "view-version": view_version(queries, schema_id=0)},
        {"action": "set-current-view-version", "view-version-id": -1},
    ]


def send_view(client: RestClient, *updates: Any, name: str = "v", **more: Any) -> httpx.Response:
    """Commit to a view."""
    body = {"requirements": more.pop("requirements", []), "updates": list(updates)}
    return client.call("POST", f"{VIEWS}/{name}", body, **more)


def replace_view(client: RestClient, sql: str, name: str = "v") -> Any:
    """Give a view another query, and return its metadata."""
    response = send_view(client, *to_replace({"spark": sql}), name=name)
    assert response.status_code == 200, response.text
    return response.json()["metadata"]


def query_of(client: RestClient, name: str = "v") -> str | None:
    """Return the query that a context shows of a view; None without the view."""
    response = client.call("GET", f"{VIEWS}/{name}")
    if response.status_code == 404:
        return None
    assert response.status_code == 200, response.text
    metadata = response.json()["metadata"]
    (version,) = (
        one for one in metadata["versions"] if one["version-id"] == metadata["current-version-id"]
    )
    return str(version["representations"][0]["sql"])
