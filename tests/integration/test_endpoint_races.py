"""Concurrent clients: no commit is lost or applied twice, and no request fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.support.iceberg import (
    TABLES,
    RestClient,
    Served,
    at,
    create,
    load,
    send,
    snapshot_of,
    table_change,
)
from tests.support.metadata import commit, two_columns

CLIENTS = 16
_ROUNDS = 50


def at_once(
    served: Served,
    act: Callable[[RestClient, int], httpx.Response],
    *,
    contexts: Sequence[str] = ("master",),
    clients: int = CLIENTS,
) -> list[httpx.Response]:
    """Return the responses of sixteen clients that act at the same moment."""
    barrier = Barrier(clients)

    def one(number: int) -> httpx.Response:
        with served.client(contexts[number % len(contexts)]) as client:
            barrier.wait()
            return act(client, number)

    with ThreadPoolExecutor(clients) as pool:
        return list(pool.map(one, range(clients)))


def statuses(responses: Sequence[httpx.Response]) -> Counter[int]:
    return Counter(response.status_code for response in responses)


def append(client: RestClient, number: int, name: str = "t") -> httpx.Response:
    """Append to the snapshot that was read; retry after a conflict."""
    for _ in range(_ROUNDS):
        metadata = load(client, name)["metadata"]
        parent = metadata.get("current-snapshot-id")
        snapshot = commit(number, parent=parent, **next_in(metadata))
        response = send(client, *snapshot, name=name, requirements=[at(parent)])
        if response.status_code != 409:
            return response
    return response


def next_in(metadata: Any) -> dict[str, int]:
    return {"sequence-number": metadata["last-sequence-number"] + 1}


def test_appends_of_sixteen_clients_are_all_kept(client: RestClient, served: Served) -> None:
    create(client)
    answers = at_once(served, lambda one, number: append(one, 100 + number))
    assert statuses(answers) == {200: CLIENTS}
    kept = load(client)["metadata"]["snapshots"]
    assert {one["snapshot-id"] for one in kept} == {100 + number for number in range(CLIENTS)}
    assert served.publications == 1 + CLIENTS
    parents = [t.parent for t in served.history()]
    assert len(set(parents)) == len(parents) == 1 + CLIENTS


@pytest.mark.parametrize("contexts", [("master",), ("feature>master",), ("empty>master",)])
def test_of_sixteen_writers_on_one_view_exactly_one_wins(
    client: RestClient, served: Served, contexts: tuple[str, ...]
) -> None:
    create(client)
    served.store.dataset("db.t").branch("empty").create()
    before = served.publications
    answers = at_once(
        served,
        lambda one, number: send(one, *commit(1 + number, op="overwrite"), requirements=[at(None)]),
        contexts=contexts,
    )
    assert statuses(answers) == {200: 1, 409: CLIENTS - 1}
    [winner] = [number for number, one in enumerate(answers) if one.status_code == 200]
    with served.client(contexts[0]) as after:
        assert snapshot_of(after) == 1 + winner
    assert served.publications == before + 1


def test_of_sixteen_creations_exactly_one_makes_the_table(
    client: RestClient, served: Served
) -> None:
    body = {"name": "t", "schema": two_columns()}
    answers = at_once(served, lambda one, _: one.call("POST", TABLES, body))
    assert statuses(answers) == {200: 1, 409: CLIENTS - 1}
    kinds = {one.json()["error"]["type"] for one in answers if one.status_code == 409}
    assert kinds == {"AlreadyExistsException"}
    assert served.publications == 1


def test_sixteen_branches_may_all_create_the_same_name(client: RestClient, served: Served) -> None:
    body = {"name": "t", "schema": two_columns()}
    answers = at_once(
        served,
        lambda one, _: one.call("POST", TABLES, body),
        contexts=[f"b{number}>master" for number in range(CLIENTS)],
    )
    assert statuses(answers) == {200: CLIENTS}
    # Of one dataset, each in a directory of its own.
    locations = {one.json()["metadata"]["location"] for one in answers}
    assert len(locations) == CLIENTS
    assert len({location.rpartition("/")[0] for location in locations}) == 1


def test_one_key_sent_sixteen_times_at_once_has_one_effect_and_one_answer(
    client: RestClient, served: Served
) -> None:
    create(client)
    headers = {"idempotency-key": str(uuid4())}
    change = {"action": "set-properties", "updates": {"a": "1"}}

    def repeat(one: RestClient, _: int) -> httpx.Response:
        # A repeated request goes to the same URL.
        one.prefix = client.prefix
        return send(one, change, requirements=[at(None)], headers=headers)

    answers = at_once(served, repeat)
    assert statuses(answers) == {200: CLIENTS}
    assert len({one.json()["metadata-location"] for one in answers}) == 1
    assert served.publications == 2


def test_commits_over_two_tables_in_both_orders_stay_together(
    client: RestClient, served: Served
) -> None:
    for name in ("a", "b"):
        create(client, name)

    def both(one: RestClient, number: int) -> httpx.Response:
        for _ in range(_ROUNDS):
            changes = []
            for name in ("a", "b") if number % 2 else ("b", "a"):
                metadata = load(one, name)["metadata"]
                parent = metadata.get("current-snapshot-id")
                snapshot = commit(100 + number, parent=parent, **next_in(metadata))
                changes.append(table_change(name, *snapshot, requirements=[at(parent)]))
            response = one.call("POST", "transactions/commit", {"table-changes": changes})
            if response.status_code != 409:
                break
        return response

    assert statuses(at_once(served, both, clients=8)) == {204: 8}
    orders = [
        [one["snapshot-id"] for one in load(client, name)["metadata"]["snapshots"]] for name in "ab"
    ]
    assert orders[0] == orders[1]
    assert sorted(orders[0]) == [100 + number for number in range(8)]
    assert served.publications == 2 + 8


def test_namespace_made_and_changed_by_sixteen_at_once_is_one_with_all_changes(
    client: RestClient, served: Served
) -> None:
    made = at_once(served, lambda one, _: one.call("POST", "namespaces", {"namespace": ["x", "y"]}))
    assert statuses(made) == {200: 1, 409: CLIENTS - 1}
    path = "namespaces/x%1Fy/properties"
    changed = at_once(served, lambda one, n: one.call("POST", path, {"updates": {f"p{n}": "1"}}))
    assert statuses(changed) == {200: CLIENTS}
    assert len(client.call("GET", "namespaces/x%1Fy").json()["properties"]) == CLIENTS


def test_namespace_dropped_while_tables_are_made_in_it_never_loses_one(
    client: RestClient, served: Served
) -> None:
    def act(one: RestClient, number: int) -> httpx.Response:
        if number == 0:
            return one.call("DELETE", "namespaces/x")
        body = {"name": f"t{number}", "schema": two_columns()}
        return one.call("POST", "namespaces/x/tables", body)

    for _ in range(3):
        client.call("POST", "namespaces", {"namespace": ["x"]})
        dropped, *made = at_once(served, act)
        assert dropped.status_code in {204, 409}
        assert set(statuses(made)) <= {200, 404, 409}
        shown = client.call("GET", "namespaces/x/tables")
        count = statuses(made)[200]
        assert shown.status_code == (404 if not count and dropped.status_code == 204 else 200)
        if count:
            break
