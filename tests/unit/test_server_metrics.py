"""Metrics for Prometheus and lines of the access log, without a server."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from headgate.errors import HeadgateError
from headgate.server.metrics import ACCESS, Metrics, Observing, Seen, write_access_line
from headgate.store.embedded import Store
from tests.support.stores import files_branch, new_store, put


def _figures(metrics: Metrics) -> dict[str, float]:
    lines = metrics.text().decode().splitlines()
    return {n: float(v) for n, v in (li.rsplit(" ", 1) for li in lines if not li.startswith("#"))}


@pytest.fixture
def store(made_sqlite_url: str, tmp_path: Path) -> Store:
    return new_store(made_sqlite_url, tmp_path)


def test_metrics_follow_publications_open_transactions_and_conflicts(store: Store) -> None:
    metrics = Metrics(store.database)
    branch = files_branch(store)
    put(branch, a="1")
    branch.transaction("APPEND")
    with pytest.raises(HeadgateError):
        branch.transaction("APPEND")
    found = _figures(metrics)
    assert found["headgate_publications_total"] == 2
    assert found["headgate_open_transactions"] == 1
    assert found["headgate_catalog_up"] == 1
    conflicts = {name: value for name, value in found.items() if "conflicts_total" in name}
    assert conflicts == {'headgate_conflicts_total{code="open_transaction_exists"}': 1}
    assert found['headgate_catalog_seconds_count{kind="write"}'] >= 3
    store.close()


def test_metrics_of_a_catalog_that_is_gone_say_so(store: Store, tmp_path: Path) -> None:
    metrics = Metrics(store.database)
    store.close()
    (tmp_path / "made.db").unlink()
    (tmp_path / "made.db").mkdir()
    assert _figures(metrics)["headgate_catalog_up"] == 0


async def _answer(status: int, seen: list[Seen], **scope: Any) -> None:
    async def app(inner: Any, _receive: Any, send: Any) -> None:
        inner["state"] = {"actor": "ana"}
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b"hello"})

    async def nothing(*_: Any) -> Any: ...

    given = {"type": "http", "method": "GET", "path": "/x", "client": ("1.2.3.4", 5), **scope}
    await Observing(app, [seen.append])(given, nothing, nothing)


def test_observing_sees_status_size_and_actor_but_no_query() -> None:
    seen: list[Seen] = []
    asyncio.run(_answer(404, seen, path="/iceberg/v1/config", query_string=b"token=secret"))
    [one] = seen
    assert (one.status, one.bytes_sent, one.actor, one.route) == (404, 5, "ana", "/iceberg")
    assert "secret" not in repr(one)


def test_access_line_is_json_and_leaves_out_the_pulse(caplog: pytest.LogCaptureFixture) -> None:
    ACCESS.addHandler(caplog.handler)
    ACCESS.setLevel("INFO")
    try:
        seen: list[Seen] = []
        asyncio.run(_answer(200, seen, path="/api/v1/datasets"))
        asyncio.run(_answer(200, seen, path="/healthz"))
        for one in seen:
            write_access_line(one)
    finally:
        ACCESS.removeHandler(caplog.handler)
    lines = {json.loads(record.message)["path"] for record in caplog.records}
    assert lines == {"/api/v1/datasets"}
