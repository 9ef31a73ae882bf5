"""Requests that mean nothing are told so, and never break the server."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.iceberg import (
    TABLES,
    RestClient,
    at,
    create,
    error,
)
from tests.support.metadata import commit, two_columns

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
    """The same document with one part, found by walking `path`, replaced by nonsense."""
    if not path or not isinstance(value, dict | list) or not value:
        return nonsense
    keys = sorted(value) if isinstance(value, dict) else list(range(len(value)))
    chosen = keys[path[0] % len(keys)]
    inner = broken(value[chosen], nonsense, path[1:])
    if isinstance(value, dict):
        return {**value, chosen: inner}
    return [inner if at_ == chosen else item for at_, item in enumerate(value)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
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
    assert response.status_code < 500, response.text


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"1", b"\xff", b"[" * 5000, b'{"name": NaN}'])
def test_body_that_is_no_json_object_is_400(client: RestClient, body: bytes) -> None:
    response = client.http.post(f"/v1/{client.prefix}/{TABLES}", content=body)
    assert error(response) == (400, "BadRequestException")


def test_schema_nested_without_end_is_400(client: RestClient) -> None:
    kind: Any = "long"
    for number in range(400):
        kind = {"type": "list", "element-id": number + 9, "element": kind, "element-required": True}
    column = {"id": 1, "name": "c", "type": kind, "required": False}
    body = {"name": "t", "schema": {"type": "struct", "fields": [column]}}
    assert error(client.call("POST", TABLES, body)) == (400, "BadRequestException")
