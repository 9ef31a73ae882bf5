"""What an operator has of a server: access log, metrics."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from headgate.errors import Denied
from headgate.model.access import Right, require
from headgate.server.authorizing import Authority
from headgate.server.metrics import CONTENT_TYPE, Metrics
from headgate.server.observing import Observing, write_access_line
from headgate.store import Store

_PATH = "/metrics"


def add_operation(app: FastAPI, store: Store) -> None:
    """Counts and logs every request from now on, and answers `/metrics` to whoever may read."""
    metrics = Metrics(store.database)
    authority: Authority = app.state.authority

    def read(token: str | None) -> bytes:
        # Names of branches and codes of errors are nobody's business who may not read the store.
        require(authority.grant(token, "read_metrics"), Right.READ)
        return metrics.text()

    async def show(request: Request) -> Response:
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        try:
            text = await run_in_threadpool(read, token if kind.lower() == "bearer" else None)
        except Denied as refused:
            headers = {"www-authenticate": "Bearer"}
            return JSONResponse(refused.to_json(), status_code=401, headers=headers)
        return Response(text, media_type=CONTENT_TYPE)

    app.add_route(_PATH, show, include_in_schema=False)
    app.add_middleware(Observing, listeners=[write_access_line, metrics.saw_request])
