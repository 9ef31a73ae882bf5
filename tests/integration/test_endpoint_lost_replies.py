"""Commits that were applied and whose response was lost: a retry applies them once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import httpx
import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog

from tests.support.iceberg import (
    TABLES,
    RestClient,
    Served,
    at,
    create,
    load,
    send,
    table_change,
)
from tests.support.metadata import commit
from tests.support.proxy import Cut, Proxy, proxy_before

ROWS = pa.table({"id": pa.array([1, 2], pa.int64())})


def is_write(data: bytes) -> bool:
    return data.startswith(b"POST ")


@pytest.fixture
def proxy(served: Served) -> Iterator[Proxy]:
    with proxy_before(urlsplit(served.url).port or 0, is_write) as made:
        yield made


@pytest.fixture
def distant(client: RestClient, served: Served, proxy: Proxy) -> Iterator[RestClient]:
    """A client of master whose requests all go through the proxy."""
    create(client)
    create(client, "u")
    url = f"http://127.0.0.1:{proxy.port}"
    with RestClient(url, "master", token=served.token) as made:
        yield made


def again(client: RestClient, path: str, body: Any, headers: dict[str, str]) -> httpx.Response:
    """Send a request whose response is lost, and return the response to its repetition."""
    with pytest.raises(httpx.TransportError):
        client.call("POST", path, body, headers=headers)
    return client.call("POST", path, body, headers=headers)


@pytest.mark.parametrize("cut", [Cut.AFTER, Cut.BEFORE])
@pytest.mark.parametrize("keyed", [True, False])
def test_commit_sent_again_after_a_lost_reply_is_applied_once(
    distant: RestClient, served: Served, proxy: Proxy, keyed: bool, cut: Cut
) -> None:
    before, proxy.cut = served.publications, cut
    headers = {"idempotency-key": str(uuid4())} if keyed else {}
    body = {"requirements": [at(None)], "updates": commit(1)}
    answer = again(distant, f"{TABLES}/t", body, headers)
    assert answer.status_code == 200, answer.text
    assert answer.json()["metadata"]["current-snapshot-id"] == 1
    assert served.publications == before + 1
    assert [one["snapshot-id"] for one in load(distant)["metadata"]["snapshots"]] == [1]
    assert send(distant, *commit(2, parent=1), requirements=[at(1)]).status_code == 200


@pytest.mark.parametrize("keyed", [True, False])
def test_commit_over_two_tables_after_a_lost_reply_is_applied_once(
    distant: RestClient, served: Served, proxy: Proxy, keyed: bool
) -> None:
    before, proxy.cut = served.publications, Cut.AFTER
    headers = {"idempotency-key": str(uuid4())} if keyed else {}
    changes = [table_change(name, *commit(1), requirements=[at(None)]) for name in ("t", "u")]
    answer = again(distant, "transactions/commit", {"table-changes": changes}, headers)
    assert answer.status_code == 204, answer.text
    assert served.publications == before + 1


def test_commit_landed_before_others_is_still_told_so(
    distant: RestClient, client: RestClient, served: Served, proxy: Proxy
) -> None:
    proxy.cut = Cut.AFTER
    with pytest.raises(httpx.TransportError):
        send(distant, *commit(1), requirements=[at(None)])
    assert send(client, *commit(2, parent=1), requirements=[at(1)]).status_code == 200
    before = served.publications
    answer = send(distant, *commit(1), requirements=[at(None)])
    assert answer.status_code == 200, answer.text
    assert served.publications == before


def test_append_by_pyiceberg_with_a_lost_reply_is_there_once_and_whole(
    client: RestClient, served: Served, proxy: Proxy
) -> None:
    near = RestCatalog("near", uri=served.url, warehouse="master", token=served.token)
    near.create_table("db.rows", ROWS.schema)
    url = f"http://127.0.0.1:{proxy.port}"
    far = RestCatalog("far", uri=url, warehouse="master", token=served.token)
    table, before = far.load_table("db.rows"), served.publications
    proxy.cut = Cut.AFTER
    with pytest.raises(Exception, match=r"(?i)connection|disconnected|unknown"):
        table.append(ROWS)
    assert served.publications == before + 1
    assert near.load_table("db.rows").scan().to_arrow() == ROWS
