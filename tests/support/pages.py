"""Fixtures of the tests of pages: one server, one browser, a window for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from headgate.model.access import Grant, Role
from headgate.server.web.page import Page, Visit
from headgate.store.embedded import Store
from tests.support.chromium import (
    NO_CHROMIUM,
    Window,
    find_chromium,
    opened_window,
    running_chromium,
)
from tests.support.site import Site, serving_site


# Scoped to a module and not to the session: while Playwright drives a browser the thread has a
# running event loop, and no later test could start one of its own.
@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    if find_chromium() is None:
        pytest.skip(NO_CHROMIUM)
    with running_chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The site that all tests of a module use."""
    with serving_site(tmp_path_factory.mktemp("site")) as served:
        yield served


@pytest.fixture
def window(chromium: Browser, site: Site) -> Iterator[Window]:
    """A window of a signed-in user; it must report no errors and send no requests elsewhere."""
    with opened_window(chromium, site.url) as opened:
        sign_in(opened, site.token)
        yield opened
        assert opened.complaints == []
        assert opened.outside == []


def sign_in(window: Window, token: str) -> None:
    window.go("/login")
    window.page.fill("#token", token)
    window.page.click("button[type=submit]")
    window.page.wait_for_selector("header.top")


def visit(store: Store, subject: str = "", *, role: Role = Role.ADMIN, **query: str) -> Visit:
    """Return a request for a page, without a server or a browser."""
    asked = {name.rstrip("_"): value for name, value in query.items()}
    grant = Grant(actor="ana", role=role)
    named = store.acting_for(grant)
    return Visit(store=named, grant=grant, subject=subject, query=asked)


def text_of(page: Page) -> str:
    """Render a page, and return its HTML."""
    return "".join(page.sections.values())
