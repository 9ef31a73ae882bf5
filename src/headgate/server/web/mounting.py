"""The pages on the server's application."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from fastapi import FastAPI
from nicegui import app as nicegui_app
from nicegui import ui
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.staticfiles import StaticFiles

from headgate import __version__
from headgate.server.web import addresses, frame
from headgate.server.web.branches_page import branches_page
from headgate.server.web.build_page import Again, acting, build_page
from headgate.server.web.builds_page import builds_page
from headgate.server.web.dataset_page import dataset_page
from headgate.server.web.datasets_page import datasets_page
from headgate.server.web.guarding import PageHeaders
from headgate.server.web.hosting import Host
from headgate.server.web.lineage_page import lineage_page
from headgate.server.web.log_page import log_page
from headgate.server.web.review_page import review_page
from headgate.server.web.sessions import Sessions, load_key
from headgate.server.web.signing_in import Door
from headgate.server.web.visiting import Act, PageMaker
from headgate.store import Store

_ASSETS = Path(__file__).with_name("assets")
# A comparison of large tables may take its time; the browser shows that it waits.
_RESPONSE_SECONDS = 60.0


def mount_pages(app: FastAPI, store: Store, *, again: Again | None = None) -> None:
    """Adds the pages to an application; last, since they answer every path that is still free."""
    key = load_key(store.settings.root / ".headgate" / "pages.key")
    door = Door(store, Sessions(key), __version__)
    app.add_api_route(addresses.SIGN_IN, door.show, methods=["GET"], include_in_schema=False)
    app.add_api_route(addresses.SIGN_IN, door.enter, methods=["POST"], include_in_schema=False)
    app.add_api_route(addresses.SIGN_OUT, door.leave, methods=["POST"], include_in_schema=False)
    app.mount(addresses.ASSETS, StaticFiles(directory=_ASSETS))
    host = Host(store=store, door=door, note=app.state.authority.note)
    _page(host, addresses.DATASETS, datasets_page)
    _page(host, "/datasets/{subject}", dataset_page)
    _page(host, addresses.BRANCHES, branches_page)
    _page(host, addresses.LINEAGE, lineage_page)
    _page(host, addresses.BUILDS, builds_page)
    one_build = partial(build_page, can_retry=again is not None)
    _page(host, "/builds/{subject}", one_build, acting(again))
    _page(host, addresses.LOG, log_page)
    _page(host, addresses.REVIEW, review_page)
    nicegui_app.add_exception_handler(404, _not_found)
    nicegui_app.add_middleware(PageHeaders)
    ui.add_head_html(frame.head(__version__), shared=True)
    ui.run_with(
        app,
        title="Headgate",
        language="en-US",
        dark=None,
        tailwind=False,
        binding_refresh_interval=None,
        show_welcome_message=False,
    )


def _page(host: Host, path: str, make: PageMaker, act: Act | None = None) -> None:
    async def draw(request: Request, subject: str = "") -> Response | None:
        return await host.serve(request, make, subject, act)

    async def draw_one(request: Request) -> Response | None:
        return await host.serve(request, make, "", act)

    chosen: Callable[..., Awaitable[Response | None]] = draw if "{subject}" in path else draw_one
    ui.page(path, response_timeout=_RESPONSE_SECONDS)(chosen)


async def _not_found(_: Request, __: Exception) -> Response:
    body = frame.trouble(404, "There is no page at this address.")
    return HTMLResponse(frame.document("Not found", body, __version__), status_code=404)
