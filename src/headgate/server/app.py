"""The served store: the HTTP API, the Iceberg endpoint, and how an operator sees it is well."""

from __future__ import annotations

from http import HTTPMethod
from pathlib import Path

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Match, Route

from headgate import __version__
from headgate.catalog.migrate import find_version
from headgate.endpoint.app import create_app
from headgate.endpoint.service import Service
from headgate.endpoint.truth import SqlTableCatalog
from headgate.errors import HeadgateError, StorageUnavailable
from headgate.model.access import Role
from headgate.server.api import (
    branches,
    builds,
    contents,
    datasets,
    differences,
    files,
    handing,
    jobspecs,
    parcels,
    past,
    rows,
    tags,
    tasks,
    tokens,
    transactions,
    upkeep,
)
from headgate.server.api.describing import DescribedApp
from headgate.server.api.limits import Guard, Limits
from headgate.server.api.problems import handle_errors
from headgate.server.authorizing import Authority, ServedTokens
from headgate.server.building import ServerBuilds
from headgate.store import Store
from headgate.tables.s3 import client_properties

# Each module has the routes of one noun.
NOUNS = (
    *(upkeep, datasets, branches, tags, transactions, files, contents, parcels),
    *(past, differences, rows, jobspecs, builds, handing, tasks, tokens),
)


def create_server(
    store: Store,
    *,
    builds_on_server: ServerBuilds | None = None,
    limits: Limits | None = None,
    code_from: Role = Role.ADMIN,
) -> FastAPI:
    """One application for all contexts; a client's URL and token say what it means and may do."""
    app = DescribedApp(
        title="Headgate",
        version=__version__,
        summary="Branches, transactions and fenced publication for Spark data pipelines.",
        openapi_url="/api/openapi.json",
        # Their pages are loaded from elsewhere; nothing here makes a browser ask another host.
        docs_url=None,
        redoc_url=None,
    )
    authority = Authority(store.database, code_from=code_from)
    app.state.store = store
    app.state.authority = authority
    app.state.builds = builds_on_server or ServerBuilds(store)
    handle_errors(app)
    app.add_middleware(Guard, limits=limits or Limits())
    for noun in NOUNS:
        app.include_router(noun.routes)
    app.add_route(
        "/api/{rest:path}", _unrouted, methods=[str(m) for m in HTTPMethod], include_in_schema=False
    )
    _add_health(app, store)
    app.mount("/iceberg", create_app(_iceberg(store, authority)))
    # Pages are mounted after this: they answer below `/` whatever is not answered here.
    return app


async def _unrouted(request: Request) -> JSONResponse:
    """What no route of the API answers is answered here: the pages would say it to a person."""
    routes = [route for noun in NOUNS for route in noun.routes.routes if isinstance(route, Route)]
    allowed = {
        method
        for route in routes
        if route.matches(request.scope)[0] is Match.PARTIAL
        for method in route.methods or ()
    }
    if allowed:
        raise HTTPException(405, headers={"Allow": ", ".join(sorted(allowed))})
    raise HTTPException(404)


def _iceberg(store: Store, authority: Authority) -> Service:
    tokens = ServedTokens(store.database, authority)
    return Service(
        catalog=SqlTableCatalog(store.database),
        versions=store.tables,
        authorize=tokens,
        refused=tokens.refused,
        read_outside=_refuse_outside,
        # Clients are told where S3 is; credentials are their own.
        client_defaults=client_properties(store.settings.environ),
    )


def _add_health(app: FastAPI, store: Store) -> None:
    async def alive(_: Request) -> JSONResponse:
        return JSONResponse({"ok": True})

    async def ready(_: Request) -> JSONResponse:
        try:
            version = await run_in_threadpool(store.database.read, find_version)
        except HeadgateError as error:
            return JSONResponse({"ok": False, **error.to_json()}, status_code=503)
        return JSONResponse({"ok": True, "schema_version": version})

    app.add_route("/healthz", alive, include_in_schema=False)
    app.add_route("/readyz", ready, include_in_schema=False)


def _refuse_outside(location: str) -> bytes:
    """A client must not make the server read files for it: registering is for the store's side."""
    name = Path(location).name
    raise StorageUnavailable(
        where=name,
        reason="this entrance reads no files for a client; an admin uses `headgate dataset "
        "register`",
    )
