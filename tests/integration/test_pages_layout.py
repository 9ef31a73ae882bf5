"""Every page of a rich store at three widths: layout, words, and what axe reports."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page

from headgate.connection import open as open_store
from tests.integration.test_pages_links import fill
from tests.support.chromium import Window, opened_window
from tests.support.pages import sign_in
from tests.support.pipelines import files_spec, publish
from tests.support.repositories import new_repository
from tests.support.shell import headgate_json
from tests.support.site import Site, serving

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.timeout(300)]

LONG = "finance_joined.campaigns_and_their_daily_results_by_region"
PAGES = (
    *("/", "/?q=feature", "/?q=bo+failed", "/branches", "/branches?branch=feature/x.y", "/builds"),
    *("/datasets/shop.orders", "/datasets/shop.all_types", "/datasets/raw.scans"),
    *("/datasets/shop.orders?tab=history", "/datasets/raw.scans?branch=feature/x.y&tab=compare"),
    *("/datasets/shop.orders?branch=feature/x.y&tab=compare&key=id", "/datasets/s.made"),
    *("/lineage", "/lineage?view=list", "/log", "/review", "/review?branch=feature/x.y"),
)
# Words that are cut in two lines although their line has room for them.
_BROKEN_WORDS = """() => {
  const broken = [], range = document.createRange();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode, box = node.parentElement.closest("td, th, dd, li, p, div");
    if (!box || node.parentElement.closest("pre, .unseen, svg")) continue;
    for (const word of node.textContent.matchAll(/[^\\s\\/.-]+/g)) {
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      const lines = [...range.getClientRects()].filter((one) => one.width > 0);
      const tops = new Set(lines.map((one) => Math.round(one.top)));
      const width = lines.reduce((sum, one) => sum + one.width, 0);
      if (tops.size > 1 && width <= box.clientWidth) broken.push(word[0]);
    }
  }
  return broken;
}"""
_SQUEEZED = "cells => cells.filter(c => c.clientHeight > 120).map(c => c.textContent.slice(0, 40))"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    root = tmp_path_factory.mktemp("rich")
    work = new_repository(root)
    headgate_json("init", cwd=root)
    with open_store(root) as store:
        fill(store)
        publish(store, "feature/x.y", files_spec(LONG, "raw.scans"))
    made = headgate_json("token", "create", "--role", "admin", "--actor", "ana", cwd=root)
    with serving(root) as (url, _, _):
        yield Site(url=url, token=made["token"], root=root, work=work)


@pytest.fixture(scope="module", params=[1024, 390])
def narrow(chromium: Browser, site: Site, request: pytest.FixtureRequest) -> Iterator[Window]:
    with opened_window(chromium, site.url, width=request.param, height=900) as window:
        sign_in(window, site.token)
        yield window


def _failed_build(site: Site) -> str:
    with site.open() as store:
        return str(next(b["build"] for b in store.builds() if b["state"] == "failed"))


def _pages(site: Site) -> list[str]:
    build = _failed_build(site)
    return [*PAGES, f"/builds/{build}", f"/builds/{build}?job=1"]


def test_pages_on_narrow_screens_fit_and_break_no_word(narrow: Window, site: Site) -> None:
    for path in _pages(site):
        page = narrow.go(path)
        width = page.evaluate("innerWidth")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        assert page.evaluate(_BROKEN_WORDS) == [], f"{path} at {width}"


def test_build_page_with_a_long_error_keeps_its_rows_low(narrow: Window, site: Site) -> None:
    page = narrow.go(f"/builds/{_failed_build(site)}")
    cells = page.get_by_role("region", name="Jobs").locator("td")
    assert cells.evaluate_all(_SQUEEZED) == []


def test_build_page_of_a_job_shows_its_detail_in_sight(narrow: Window, site: Site) -> None:
    page = narrow.go(f"/builds/{_failed_build(site)}")
    page.get_by_role("region", name="Jobs").get_by_text("s.made").first.click()
    page.wait_for_url("**job=**")
    top = page.locator(".card h2", has_text="s.made").evaluate("e => e.getBoundingClientRect().y")
    assert 0 < top < page.evaluate("innerHeight")


def test_lineage_page_covers_no_box_and_shows_whole_names(narrow: Window) -> None:
    page = narrow.go("/lineage?branch=feature/x.y")
    tools, stage = (page.locator(s).bounding_box() for s in (".tools", ".stage"))
    assert tools is not None and stage is not None
    assert tools["y"] + tools["height"] <= stage["y"]
    assert LONG in page.locator("text.name").all_text_contents()


def _violations(page: Page) -> list[tuple[Any, ...]]:
    found = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    return [(one["id"], one["impact"], one["nodes"][0]["html"][:200]) for one in found]


def test_pages_give_axe_nothing_to_report(window: Window, site: Site) -> None:
    for path in [*_pages(site), "/login"]:
        assert _violations(window.go(path)) == [], path


def test_pages_in_the_dark_theme_give_axe_nothing_to_report(chromium: Browser, site: Site) -> None:
    with opened_window(chromium, site.url, scheme="dark") as window:
        sign_in(window, site.token)
        build = f"/builds/{_failed_build(site)}?job=1"
        for path in (*PAGES[::3], "/lineage", "/review?branch=feature/x.y", build):
            assert _violations(window.go(path)) == [], path
        log = window.page.get_by_role("region", name="Log")
        assert log.evaluate("e => e.scrollHeight > e.clientHeight && e.tabIndex === 0")
        ground = window.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert all(int(share) < 64 for share in re.findall(r"\d+", ground)[:3]), ground


def test_search_takes_words_and_finds_branches_and_builds(window: Window) -> None:
    page = window.go("/?q=X.Y+feat")
    assert "No dataset has" in window.text()
    assert page.locator(".others .chip").all_inner_texts() == ["feature/x.y"]
    page = window.go("/?q=failed+bo")
    assert page.get_by_role("region", name="Builds").locator("tbody tr").count() == 1


def test_lists_lead_back_to_the_page_before(window: Window) -> None:
    page = window.go("/?after=raw.scans&trail=raw.nothing")
    page.get_by_role("link", name="Previous page").click()
    page.wait_for_url("**/?after=raw.nothing")
    assert page.locator("tbody .named").first.inner_text() == "raw.scans"
    page.get_by_role("link", name="Previous page").click()
    page.wait_for_url(window.url + "/")
