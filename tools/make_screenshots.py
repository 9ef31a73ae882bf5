"""`make screenshots`: take pictures of a small shop's pages for the docs, from a real server."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.support.chromium import Window, find_chromium, opened_window, running_chromium
from tests.support.pages import sign_in
from tests.support.shell import run_headgate
from tests.support.site import Site, serving_site

_IMAGES = Path(__file__).parents[1] / "docs" / "images"
_MOST_BYTES = 150_000
# Name, address, height.
_SHOTS: Sequence[tuple[str, str, int]] = (
    ("datasets", "/", 460),
    ("dataset", "/datasets/shop.orders", 760),
    ("branches", "/branches", 360),
    ("lineage", "/lineage?branch=feature", 760),
    ("log", "/log", 700),
    ("review", "/review?branch=feature", 900),
)


def main() -> None:
    """Build once on Spark, so that the pages have content, then take every picture."""
    if find_chromium() is None:
        sys.exit("make screenshots: no Chromium on this machine; `make test` says how to get one")
    _IMAGES.mkdir(exist_ok=True)
    os.environ["HEADGATE_ACTOR"] = "ana"
    with (
        tempfile.TemporaryDirectory(prefix="headgate-shots-") as home,
        serving_site(Path(home)) as site,
    ):
        _build(site)
        with running_chromium() as browser:
            with opened_window(browser, site.url) as window:
                sign_in(window, site.token)
                _take_all(window)
            with opened_window(browser, site.url, scheme="dark") as window:
                sign_in(window, site.token)
                _take(window, "lineage-dark", "/lineage?branch=feature", 760)


def _build(site: Site) -> None:
    print("screenshots: building the shop on Spark")
    run_headgate("build", "shop.daily", "--upstream", "-b", "master", cwd=site.root)
    targets = ("shop.daily", "shop.broken")
    run_headgate("build", *targets, "--upstream", "-b", "feature", cwd=site.root)


def _take_all(window: Window) -> None:
    for name, path, height in _SHOTS:
        _take(window, name, path, height)
    page = window.go("/builds")
    page.get_by_role("region", name="Builds").locator("tbody a").first.click()
    page.wait_for_url("**/builds/build-*")
    page.get_by_role("region", name="Jobs").get_by_text("shop.broken", exact=True).click()
    page.wait_for_url("**job=**")
    _take(window, "build", page.url.removeprefix(window.url), 710)


def _take(window: Window, name: str, path: str, height: int) -> None:
    window.page.set_viewport_size({"width": 1200, "height": height})
    window.go(path)
    window.page.wait_for_timeout(500)
    target = _IMAGES / f"{name}.png"
    window.page.screenshot(path=target)
    size = target.stat().st_size
    print(f"screenshots: {target.relative_to(_IMAGES.parents[1])}, {size // 1024} KiB")
    if size > _MOST_BYTES:
        sys.exit(f"make screenshots: {target.name} is larger than {_MOST_BYTES:,} bytes")


if __name__ == "__main__":
    main()
