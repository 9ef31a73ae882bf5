"""A client that disconnects in the middle of its body: not logged as an error of the server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI, Request

from headgate.server.api.conventions import handle_errors


def test_client_that_leaves_during_its_upload_is_no_defect(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = FastAPI()
    handle_errors(app)

    @app.put("/file")
    async def put(request: Request) -> int:
        return len(await request.body())

    said: Iterator[dict[str, Any]] = iter(
        [
            {"type": "http.request", "body": b"half", "more_body": True},
            {"type": "http.disconnect"},
        ]
    )
    sent: list[dict[str, Any]] = []

    async def receive() -> Any:
        return next(said)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "PUT", "path": "/file", "headers": [], "query_string": b""}
    asyncio.run(app(scope, receive, send))
    assert sent[0]["status"] == 499
    assert not caplog.records
