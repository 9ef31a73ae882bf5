"""Chromium for tests: its location on this machine, and windows that record errors."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from playwright.sync_api import (
    Browser,
    BrowserContext,
    Page,
    Route,
    expect,
    sync_playwright,
)

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
# A busy machine must not fail a test by its speed alone.
_PATIENCE_MS = 120_000
NO_CHROMIUM = (
    "Chromium: no browser on this machine; `make test` tries to install it, so look at what it "
    "printed"
)


def find_chromium() -> str | None:
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


@contextmanager
def running_chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # A container has no namespaces for the browser's own sandbox.
        browser = playwright.chromium.launch(
            executable_path=find_chromium(), args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield browser
        browser.close()


@dataclass(kw_only=True)
class Window:
    """A browser window on one site; records its errors, and its requests to other hosts."""

    page: Page
    url: str
    complaints: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)

    def go(self, path: str) -> Page:
        """Open a page of the site, and wait until it is drawn."""
        self.page.goto(self.url + path)
        self.page.wait_for_selector("h1")
        return self.page

    def text(self, selector: str = "main.page") -> str:
        return self.page.inner_text(selector)


@contextmanager
def opened_window(
    browser: Browser,
    url: str,
    *,
    width: int = 1280,
    height: int = 800,
    scheme: str = "light",
    touch: bool = False,
) -> Iterator[Window]:
    """Open a window with its own cookies that reaches nothing outside of the site."""
    context: BrowserContext = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if scheme == "dark" else "light",
        reduced_motion="reduce",
        has_touch=touch,
    )
    page = context.new_page()
    page.set_default_timeout(_PATIENCE_MS)
    expect.set_options(timeout=_PATIENCE_MS)
    window = Window(page=page, url=url)

    def look(route: Route) -> None:
        if route.request.url.startswith((url, "data:")):
            route.continue_()
        else:
            window.outside.append(route.request.url)
            route.abort()

    context.route("**/*", look)
    page.on("pageerror", lambda error: window.complaints.append(str(error)))
    page.on(
        "console",
        lambda said: window.complaints.append(said.text) if said.type == "error" else None,
    )
    page.on(
        "websocket",
        lambda socket: (
            window.outside.append(socket.url)
            if not socket.url.startswith(url.replace("http", "ws", 1))
            else None
        ),
    )
    yield window
    context.close()
