"""Invalid requests are rejected, and never break the server."""

from __future__ import annotations

import json
import socket
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from headgate.tables.updates import UPDATES
from tests.support.iceberg import (
    TABLES,
    RestClient,
    at,
    create,
    error,
)
from tests.support.metadata import commit, two_columns

# Every example uses the store of the test, at the machine's speed.
_ONE_STORE = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
VALID: list[tuple[str, Any]] = [
    ("namespaces", {"namespace": ["x"], "properties": {"a": "b"}}),
    ("namespaces/db/properties", {"removals": ["a"], "updates": {"b": "c"}}),
    (
        TABLES,
        {"name": "n", "schema": two_columns(), "properties": {}, "partition-spec": {"fields": []}},
    ),
    (f"{TABLES}/t", {"requirements": [at(None)], "updates": commit(1)}),
    (
        f"{TABLES}/t",
        {"requirements": [], "updates": [{"action": "add-schema", "schema": two_columns()}]},
    ),
    (
        f"{TABLES}/t",
        {
            "requirements": [{"type": "assert-create"}],
            "updates": [
                {
                    "action": "add-spec",
                    "spec": {"fields": [{"source-id": 1, "transform": "identity", "name": "x"}]},
                },
                {
                    "action": "set-statistics",
                    "statistics": {"snapshot-id": 1, "statistics-path": "x"},
                },
                {"action": "remove-properties", "removals": ["a"]},
            ],
        },
    ),
    ("tables/rename", {"source": {"namespace": ["db"], "name": "t"}, "destination": {}}),
    ("namespaces/db/register", {"name": "r", "metadata-location": "x"}),
    (
        "transactions/commit",
        {"table-changes": [{"identifier": {"namespace": ["db"], "name": "t"}}]},
    ),
]


def broken(value: Any, nonsense: Any, path: list[int]) -> Any:
    """Return the document with one part, found along `path`, replaced by nonsense."""
    if not path or not isinstance(value, dict | list) or not value:
        return nonsense
    keys = sorted(value) if isinstance(value, dict) else list(range(len(value)))
    chosen = keys[path[0] % len(keys)]
    inner = broken(value[chosen], nonsense, path[1:])
    if isinstance(value, dict):
        return {**value, chosen: inner}
    return [inner if at_ == chosen else item for at_, item in enumerate(value)]


@settings(suppress_health_check=_ONE_STORE, max_examples=150)
@given(
    request=st.sampled_from(VALID),
    nonsense=JSON,
    path=st.lists(st.integers(min_value=0, max_value=9), min_size=1, max_size=6),
)
def test_request_with_any_part_broken_is_never_a_500(
    client: RestClient, request: tuple[str, Any], nonsense: Any, path: list[int]
) -> None:
    if client.call("HEAD", f"{TABLES}/t").status_code == 404:
        create(client)
    route, body = request
    response = client.http.post(
        f"/v1/{client.prefix}/{route}",
        content=json.dumps(broken(body, nonsense, path)).encode(),
    )
    assert_told_or_done(response)


def assert_told_or_done(response: httpx.Response) -> None:
    """Check that a rejected request has a 4xx status and an error body of the protocol; no 5xx."""
    assert response.status_code < 500, response.text
    if response.status_code >= 400 and response.request.method != "HEAD":
        told = response.json()["error"]
        assert told["code"] == response.status_code
        assert told["type"].endswith("Exception")
        assert isinstance(told["message"], str) and isinstance(told["stack"], list)


@settings(suppress_health_check=_ONE_STORE, max_examples=100)
@given(
    method=st.sampled_from(["GET", "HEAD", "POST", "DELETE", "PUT", "PATCH", "OPTIONS"]),
    words=st.lists(
        st.sampled_from(["v1", "namespaces", "db", "tables", "t", "rename", "register", "config"])
        | st.text(max_size=8)
        | st.just("x" * 5_000),
        max_size=6,
    ),
    query=st.dictionaries(
        st.sampled_from(["pageToken", "pageSize", "snapshots", "parent", "purgeRequested", "x"]),
        st.text(max_size=8),
        max_size=3,
    ),
    headers=st.dictionaries(
        st.sampled_from(["idempotency-key", "if-none-match", "x-iceberg-access-delegation"]),
        # HTTP clients strip spaces at the beginning and end of a value.
        st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=12).map(str.strip),
        max_size=2,
    ),
    body=st.binary(max_size=40),
)
# No route of Starlette matches a path with a line break.
@example(method="GET", words=["\n"], query={}, headers={}, body=b"")
def test_request_of_any_form_to_any_place_is_never_a_500(
    client: RestClient,
    method: str,
    words: list[str],
    query: dict[str, str],
    headers: dict[str, str],
    body: bytes,
) -> None:
    below = "/".join(quote(word, safe="") for word in words)
    response = client.http.request(
        method, f"/v1/{client.prefix}/{below}", params=query, headers=headers, content=body
    )
    assert_told_or_done(response)


@settings(suppress_health_check=_ONE_STORE, max_examples=100)
@given(
    action=st.sampled_from([*UPDATES, "drop-everything", ""]),
    fields=st.dictionaries(
        st.sampled_from(
            [
                "snapshot-id",
                "snapshot",
                "schema",
                "spec",
                "sort-order",
                "ref-name",
                "type",
                "updates",
                "removals",
                "schema-id",
                "spec-id",
                "format-version",
                "uuid",
                "location",
                "statistics",
                "snapshot-ids",
                "spec-ids",
                "encryption-key",
                "key-id",
                "sort-order-id",
            ]
        ),
        JSON,
    ),
)
def test_update_of_any_kind_with_any_fields_is_never_a_500(
    client: RestClient, action: str, fields: dict[str, Any]
) -> None:
    if client.call("HEAD", f"{TABLES}/t").status_code == 404:
        create(client)
    body = {"requirements": [], "updates": [{"action": action, **fields}]}
    response = client.http.post(
        f"/v1/{client.prefix}/{TABLES}/t", content=json.dumps(body).encode()
    )
    assert_told_or_done(response)
    assert client.call("GET", f"{TABLES}/t").status_code == 200


@pytest.mark.parametrize("name", ["x" * 10_000, "/b", "a\x1fb", "..", "", " ", "ü" * 300, "\0"])
def test_name_that_cannot_be_is_400_to_make_and_404_to_read(client: RestClient, name: str) -> None:
    body = {"name": name, "schema": two_columns()}
    assert error(client.call("POST", TABLES, body))[0] == 400
    assert error(client.call("POST", "namespaces", {"namespace": [name]}))[0] == 400
    # HTTP clients resolve dots in the path.
    if name.strip("."):
        quoted = quote(name, safe="")
        assert error(client.call("GET", f"{TABLES}/{quoted}"))[0] == 404


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"1", b"\xff", b"[" * 5000, b'{"name": NaN}'])
def test_body_that_is_no_json_object_is_400(client: RestClient, body: bytes) -> None:
    response = client.http.post(f"/v1/{client.prefix}/{TABLES}", content=body)
    assert error(response) == (400, "BadRequestException")


@pytest.mark.parametrize("token", ["", "guess"])
def test_body_of_a_stranger_is_not_read(client: RestClient, token: str) -> None:
    address = client.http.base_url
    with socket.create_connection((address.host, address.port or 80), timeout=60) as stranger:
        # The announced body is never sent: only a server that does not wait for it replies.
        head = f"POST /v1/{client.prefix}/{TABLES} HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n"
        bearer = f"authorization: Bearer {token}\r\n" if token else ""
        stranger.sendall(f"{head}{bearer}\r\n".encode())
        assert stranger.recv(1000).startswith(b"HTTP/1.1 401 ")


def test_schema_nested_without_end_is_400(client: RestClient) -> None:
    kind: Any = "long"
    for number in range(400):
        kind = {"type": "list", "element-id": number + 9, "element": kind, "element-required": True}
    column = {"id": 1, "name": "c", "type": kind, "required": False}
    body = {"name": "t", "schema": {"type": "struct", "fields": [column]}}
    assert error(client.call("POST", TABLES, body)) == (400, "BadRequestException")
