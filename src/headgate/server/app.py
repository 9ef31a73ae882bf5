"""The served store: the Iceberg endpoint under `/iceberg`, and how an operator sees it is well."""

from __future__ import annotations

from pathlib import Path

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from headgate.catalog.database import Database
from headgate.catalog.migrate import find_version
from headgate.endpoint.app import create_app
from headgate.endpoint.service import Service
from headgate.endpoint.truth import SqlTableCatalog
from headgate.errors import HeadgateError, StorageUnavailable
from headgate.server.authorizing import ServedTokens
from headgate.tables.versions import TableVersions


def create_server(database: Database, tables: TableVersions) -> Starlette:
    """One application for all contexts; the URL of a client says which one it means."""
    service = Service(
        catalog=SqlTableCatalog(database),
        versions=tables,
        authorize=ServedTokens(database),
        read_outside=_refuse_outside,
    )

    async def alive(_: Request) -> JSONResponse:
        return JSONResponse({"ok": True})

    async def ready(_: Request) -> JSONResponse:
        try:
            version = await run_in_threadpool(database.read, find_version)
        except HeadgateError as error:
            return JSONResponse({"ok": False, **error.to_json()}, status_code=503)
        return JSONResponse({"ok": True, "schema_version": version})

    return Starlette(
        routes=[
            Route("/healthz", alive),
            Route("/readyz", ready),
            Mount("/iceberg", app=create_app(service)),
        ]
    )


def _refuse_outside(location: str) -> bytes:
    """A client must not make the server read files for it: registering is for the store's side."""
    name = Path(location).name
    raise StorageUnavailable(
        where=name,
        reason="a server registers no table for a client; use `headgate dataset register`",
    )
