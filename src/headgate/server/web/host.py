"""Mounts the pages on the server's application, and serves them with NiceGUI.

Sections are drawn as HTML. NiceGUI's socket refreshes them and receives the actions of buttons.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from nicegui import app as nicegui_app
from nicegui import core, ui
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.staticfiles import StaticFiles

from headgate.errors import Denied, HeadgateError, Invalid, NotFound, Unavailable, find_known_error
from headgate.model.access import Grant
from headgate.server.authorization import Authority
from headgate.server.threads import Threads
from headgate.server.web import markup
from headgate.server.web import page as frame
from headgate.server.web.branches_page import branches_page
from headgate.server.web.build_page import Retry, build_actions, build_page, builds_page
from headgate.server.web.dataset_page import dataset_page
from headgate.server.web.datasets_page import datasets_page
from headgate.server.web.lineage_page import lineage_page
from headgate.server.web.log_page import log_page
from headgate.server.web.page import Act, Page, PageHeaders, PageMaker, Visit
from headgate.server.web.review_page import review_page
from headgate.server.web.sessions import COOKIE, Sessions, SignedIn, SignIn, is_own_origin, load_key
from headgate.store.embedded import Store

_LOG = logging.getLogger("headgate.pages")
_STATUSES = ((NotFound, 404), (Denied, 403), (Invalid, 400), (Unavailable, 503))


@dataclass(frozen=True, kw_only=True)
class Host:
    """Serves pages of one store to visitors that are signed in."""

    store: Store
    sign_in: SignIn
    # Records a denial: rights of the visitor, action, error.
    note: Callable[[Grant, str, Denied], None]
    threads: Threads

    async def serve(
        self, request: Request, make: PageMaker, act: Act | None = None
    ) -> Response | None:
        """Draw a page, or redirect a visitor without a valid token to the sign-in form."""
        find_visit = partial(
            self.find_visit,
            request.cookies.get(COOKIE),
            query=dict(request.query_params),
            subject=request.path_params.get("subject", ""),
            path=request.url.path,
        )
        try:
            visit = await run_in_threadpool(find_visit)
        except HeadgateError as error:
            # Without the catalog, every visitor is a stranger.
            _LOG.warning("%s: %s", error.code, error.message)
            body = frame.error_body(503, str(error.without_addresses()))
            return HTMLResponse(frame.document("Error", body), status_code=503)
        if visit is None:
            return self.sign_in.redirect(request)
        # For the access log.
        request.state.actor = visit.grant.actor
        page = await run_in_threadpool(make_safely, make, visit)
        shown = _Shown(self, find_visit, make)
        shown.draw(page, visit)
        if act is not None:
            ui.on("act", lambda event: shown.act(act, event.args))
        if page.status != 200:
            return ui.context.client.build_response(request, page.status)
        return None

    def find_visit(
        self, cookie: str | None, *, query: Mapping[str, str], subject: str, path: str
    ) -> Visit | None:
        """Return the visit of a page; None if the visitor has no valid token."""
        grant = self.sign_in.find_grant(cookie)
        if grant is None:
            return None
        return Visit(
            store=self.store.acting_for(grant), grant=grant, query=query, subject=subject, path=path
        )


class _Shown:
    """One page in one browser."""

    def __init__(self, host: Host, find_visit: Callable[[], Visit | None], make: PageMaker) -> None:
        self._host = host
        self._find_visit = find_visit
        self._make = make
        self._drawn: dict[str, ui.html] = {}
        self._timer: ui.timer | None = None

    def draw(self, page: Page, visit: Visit) -> None:
        client = ui.context.client
        ui.page_title(f"{page.title} · Headgate")
        top = frame.top(page.place, visit.grant.actor, visit.query.get("q", ""))
        # Beside NiceGUI's `main`, so that screen readers jump to a `main` without the navigation.
        with client.layout:
            ui.html(top, sanitize=False).move(target_index=0)
        if (slot := client.content.parent_slot) is not None:
            slot.parent.classes("page")
        for key, body in page.sections.items():
            self._drawn[key] = ui.html(body, sanitize=False)
        if page.refresh_seconds is not None:
            self._timer = ui.timer(page.refresh_seconds, self._refresh, immediate=False)

    async def _refresh(self) -> None:
        try:
            visit = await run_in_threadpool(self._find_visit)
        except HeadgateError:
            # The next refresh tries again.
            return
        if visit is None:
            ui.navigate.reload()
            return
        page = await run_in_threadpool(make_safely, self._make, visit)
        for key, body in page.sections.items():
            drawn = self._drawn.get(key)
            if drawn is not None and drawn.content != body:
                drawn.set_content(body)
        if self._timer is not None and page.refresh_seconds is None:
            self._timer.deactivate()

    async def act(self, act: Act, sent: Any) -> None:
        """Perform the action of a button, with the present rights of the token."""
        try:
            visit = await run_in_threadpool(self._find_visit)
        except HeadgateError as error:
            ui.notify(str(error.without_addresses()), type="negative", multi_line=True)
            return
        if visit is None:
            ui.navigate.reload()
            return
        given = {str(k): str(v) for k, v in sent.items()} if isinstance(sent, dict) else {}
        action = given.pop("act", "")
        try:
            result = await self._host.threads.run_in_turn(partial(act, visit, action, given))
        except Denied as refused:
            await run_in_threadpool(self._host.note, visit.grant, f"page:{action}", refused)
            ui.notify(str(refused), type="negative", multi_line=True, timeout=10_000)
            return
        except HeadgateError as error:
            ui.notify(visit.explain(error), type="negative", multi_line=True, timeout=10_000)
            return
        if result.startswith("/"):
            ui.navigate.to(result)
            return
        ui.notify(result, type="positive")
        await self._refresh()


def make_safely(make: PageMaker, visit: Visit) -> Page:
    """Return the page, or an error page with the next step."""
    try:
        return make(visit)
    except HeadgateError as error:
        status = next((code for kind, code in _STATUSES if isinstance(error, kind)), 409)
        return _error_page(status, visit.explain(error), visit)
    except Exception as error:
        if (failure := find_known_error(error)) is not None:
            return _error_page(503, visit.explain(failure), visit)
        # The last handler before the browser: internals go to the log, never to the page.
        _LOG.exception("a page failed")
        return _error_page(500, "The server could not make this page. See its log.", visit)


def _error_page(status: int, message: str, visit: Visit) -> Page:
    # The query may be the cause, such as a mistyped branch: offer the page without it.
    body = frame.error_body(status, message, again=visit.path if visit.query else None)
    return Page(title="Error", sections={"error": body}, place="", status=status)


_ASSETS = Path(__file__).with_name("assets")
# Long, because large tables take time to compare; the browser shows that it is loading.
_RESPONSE_SECONDS = 60.0
_PAGES: Mapping[str, PageMaker] = {
    markup.DATASETS: datasets_page,
    "/datasets/{subject:dataset}": dataset_page,
    markup.BRANCHES: branches_page,
    markup.LINEAGE: lineage_page,
    markup.BUILDS: builds_page,
    markup.LOG: log_page,
    markup.REVIEW: review_page,
}


def mount_pages(
    app: FastAPI, store: Store, *, retry: Retry | None = None, public_url: str | None = None
) -> None:
    """Add the pages to an application, as its last routes: they match every remaining path.

    `public_url` is the address of the pages in a browser, if a proxy changes it.
    """
    key = load_key(store.settings.root / ".headgate" / "pages.key")
    authority: Authority = app.state.authority
    forms = SignIn(authority, Sessions(key), public_url)
    # NiceGUI's default is every origin: pages of another port or subdomain could then connect in
    # the name of a visitor, since the browser adds the cookie.
    core.sio.eio.cors_allowed_origins = partial(_is_allowed, public_url)
    app.add_api_route(markup.SIGN_IN, forms.show_form, methods=["GET"], include_in_schema=False)
    app.add_api_route(markup.SIGN_IN, forms.sign_in, methods=["POST"], include_in_schema=False)
    app.add_api_route(markup.SIGN_OUT, forms.sign_out, methods=["POST"], include_in_schema=False)
    app.mount(markup.ASSETS, StaticFiles(directory=_ASSETS))
    host = Host(store=store, sign_in=forms, note=authority.note, threads=app.state.threads)
    for path, make in _PAGES.items():
        _page(host, path, make)
    one_build = partial(build_page, can_retry=retry is not None)
    _page(host, "/builds/{subject}", one_build, build_actions(retry))
    nicegui_app.add_exception_handler(404, _not_found)
    # NiceGUI's sockets too; its scripts and styles are public.
    nicegui_app.add_middleware(SignedIn, sign_in=forms, paths=[*_PAGES, "/_nicegui_ws"])
    nicegui_app.add_middleware(PageHeaders)
    ui.add_head_html(frame.head(), shared=True)
    ui.run_with(
        app,
        title="Headgate",
        language="en-US",
        dark=None,
        tailwind=False,
        binding_refresh_interval=None,
        show_welcome_message=False,
    )


def _is_allowed(public_url: str | None, origin: str | None, environ: Mapping[str, Any]) -> bool:
    """Return whether a page of this origin may connect to the socket."""
    return origin is None or is_own_origin(origin, environ.get("HTTP_HOST"), public_url)


def _page(host: Host, path: str, make: PageMaker, act: Act | None = None) -> None:
    async def draw(request: Request) -> Response | None:
        return await host.serve(request, make, act)

    ui.page(path, response_timeout=_RESPONSE_SECONDS)(draw)


async def _not_found(_: Request, __: Exception) -> Response:
    body = frame.error_body(404, "There is no page at this address.")
    return HTMLResponse(frame.document("Not found", body), status_code=404)
