"""Read-only pages, in a real browser: one site for all of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import quote, urlencode

import httpx
import pytest
from playwright.sync_api import Browser, expect

from tests.support.chromium import Window, opened_window
from tests.support.pages import sign_in
from tests.support.shell import headgate_json
from tests.support.site import Site

PAGES = (
    *("/", "/datasets/shop.orders", "/datasets/raw.scans?tab=history", "/branches"),
    *("/datasets/shop.orders?branch=feature&tab=compare&key=id", "/lineage?branch=feature"),
    *("/lineage?branch=feature&view=list", "/builds", "/log", "/review?branch=feature"),
)
pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def phone(chromium: Browser, site: Site) -> Iterator[Window]:
    with opened_window(chromium, site.url, width=390, height=800) as window:
        sign_in(window, site.token)
        yield window


def test_pages_without_a_session_lead_to_the_form_and_back(chromium: Browser, site: Site) -> None:
    with opened_window(chromium, site.url) as window:
        page = window.go("/datasets/shop.orders?branch=feature")
        assert "/login?next=" in page.url
        page.fill("#token", "hg_nobody")
        page.click("button[type=submit]")
        expect(page.get_by_role("alert")).to_contain_text("not known")
        page.fill("#token", site.token)
        page.click("button[type=submit]")
        page.wait_for_url("**/datasets/shop.orders?branch=feature")
        expect(page.locator("h1")).to_contain_text("shop.orders")
        assert window.outside == []


def test_pages_session_cookie_is_out_of_reach_and_ends_with_its_token(
    chromium: Browser, site: Site
) -> None:
    made = headgate_json("token", "create", "--role", "reader", "--actor", "rita", cwd=site.root)
    with opened_window(chromium, site.url) as window:
        sign_in(window, made["token"])
        [cookie] = window.page.context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
        assert made["token"] not in cookie["value"]
        assert window.page.evaluate("document.cookie") == ""
        headgate_json("token", "revoke", made["id"], cwd=site.root)
        window.page.reload()
        expect(window.page.locator("h1")).to_have_text("Sign in")


def test_pages_form_sent_from_another_site_is_refused(site: Site) -> None:
    for headers in ({"sec-fetch-site": "cross-site"}, {"origin": "https://evil.example"}):
        answer = httpx.post(
            f"{site.url}/login", data={"token": site.token}, headers=headers, timeout=60
        )
        assert answer.status_code == 403
        assert "set-cookie" not in answer.headers


def test_pages_policy_lets_nothing_from_elsewhere_in(site: Site) -> None:
    headers = httpx.get(f"{site.url}/login", timeout=60).headers
    assert "default-src 'self'" in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"


def test_datasets_page_lists_them_and_slash_searches(window: Window) -> None:
    page = window.go("/")
    assert page.title() == "Datasets · Headgate"
    names = page.locator("tbody tr .named").all_inner_texts()
    assert names == ["raw.scans", "shop.customers", "shop.orders"]
    page.keyboard.press("/")
    page.keyboard.type("ORD")
    page.keyboard.press("Enter")
    page.wait_for_url("**/?q=ORD")
    expect(page.locator("tbody tr")).to_have_count(1)
    row = page.locator("tbody tr").inner_text()
    assert "shop.orders" in row and "feature" in row and "table" in row
    window.go("/?q=nothing-like-it")
    expect(page.locator(".empty")).to_contain_text("No dataset has “nothing-like-it”")


def test_dataset_page_of_a_table_shows_rows_and_schema_of_the_chosen_branch(window: Window) -> None:
    page = window.go("/datasets/shop.orders")
    rows = page.get_by_role("region", name="Rows")
    assert "the first 20 of 40 rows" in window.text()
    expect(rows.locator("tbody tr")).to_have_count(20)
    assert page.get_by_role("region", name="Columns").locator("tbody tr").count() == 3
    page.select_option("select[name=branch]", "feature")
    page.wait_for_url("**branch=feature**")
    expect(page.locator("main.page")).to_contain_text("of 41 rows")
    expect(page.locator("dl.facts").first).to_contain_text("master")


def test_dataset_page_of_files_opens_directories(window: Window) -> None:
    page = window.go("/datasets/raw.scans")
    assert "4 files" in window.text()
    page.click("text=2026/")
    page.wait_for_url("**path=2026**")
    names = page.locator("tbody tr td:first-child").all_inner_texts()
    assert names == ["a.csv", "b.csv", "c.csv"]


def test_dataset_page_compares_a_transaction_with_the_one_before(window: Window) -> None:
    page = window.go("/datasets/raw.scans?tab=history")
    expect(page.locator("tbody tr")).to_have_count(2)
    page.click("text=Compare >> nth=1")
    page.wait_for_url("**from=t-**")
    table = page.get_by_role("region", name="Files")
    assert table.locator("tbody tr").all_inner_texts() == ["+\t2026/c.csv\t4 B"]


def test_dataset_page_compares_branches_by_a_named_key(window: Window) -> None:
    page = window.go("/datasets/shop.orders?branch=feature&tab=compare&key=id")
    assert "40 → 41 rows" in window.text()
    added = page.get_by_role("region", name="Added rows").locator("tbody tr")
    assert added.all_inner_texts() == ["+\t100\tc1\t2.5"]


def test_pages_unknown_dataset_is_a_friendly_404(chromium: Browser, site: Site) -> None:
    with opened_window(chromium, site.url) as window:
        sign_in(window, site.token)
        answer = window.page.goto(f"{site.url}/datasets/no.such")
        assert answer is not None and answer.status == 404
        expect(window.page.get_by_role("alert")).to_contain_text("no.such")
        answer = window.page.goto(f"{site.url}/no/such/page")
        assert answer is not None and answer.status == 404
        expect(window.page.locator("h1")).to_have_text("Not found")


def test_pages_with_the_keyboard_and_a_dark_system_work(chromium: Browser, site: Site) -> None:
    with opened_window(chromium, site.url, width=390, height=800, scheme="dark") as window:
        sign_in(window, site.token)
        page = window.go("/")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to content"
        page.keyboard.press("Tab")
        ground = "getComputedStyle(document.body).backgroundColor"
        assert page.evaluate(ground) == "rgb(16, 22, 21)"
        page.click("[data-theme-switch]")
        assert page.evaluate(ground) == "rgb(247, 248, 248)"
        page.reload()
        page.wait_for_selector("h1")
        assert page.evaluate(ground) == "rgb(247, 248, 248)"
        assert page.evaluate("document.documentElement.lang") == "en-US"


@pytest.mark.parametrize("path", PAGES)
def test_page_on_a_phone_need_not_be_scrolled_sideways(phone: Window, path: str) -> None:
    page = phone.go(path)
    assert page.locator("h1").is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_branches_page_shows_the_tree_and_what_differs(window: Window) -> None:
    page = window.go("/branches")
    rows = page.get_by_role("region", name="Branches").locator("tbody tr").all_inner_texts()
    assert rows[0].startswith("master") and "a root" in rows[0]
    assert rows[1].startswith("feature") and "1 with other content" in rows[1]
    page.click("text=feature")
    page.wait_for_url("**branch=feature")
    expect(page.locator("dl.facts")).to_contain_text("stale")
    page.get_by_role("region", name="Datasets that differ").get_by_text("Compare").click()
    page.wait_for_url("**/datasets/shop.orders**")
    expect(page.get_by_role("region", name="Added rows")).to_contain_text("100")


def test_log_page_filters_by_branch_and_actor(window: Window) -> None:
    page = window.go("/log")
    every = page.get_by_role("region", name="Publications").locator("tbody tr")
    assert every.count() > 5
    page.fill("input[name=branch]", "feature")
    page.click("text=Filter")
    page.wait_for_url("**/log?branch=feature")
    chips = page.locator(".moves .chip").all_inner_texts()
    assert chips and set(chips) == {"feature"}
    window.go("/log?actor=nobody")
    expect(page.locator(".empty")).to_contain_text("Nothing was published that fits")


def test_lineage_page_draws_states_and_branches_and_leads_to_datasets(window: Window) -> None:
    page = window.go("/lineage?branch=feature")
    nodes = page.locator("svg.lineage .node")
    names = page.locator("svg.lineage text.name").all_text_contents()
    labels = [node.get_attribute("aria-label") or "" for node in nodes.all()]
    assert sorted(names) == ["shop.broken", "shop.clean", "shop.daily", "shop.orders"]
    assert any(label.startswith("shop.orders on feature: source") for label in labels)
    assert any("shop.daily on feature: stale" in label for label in labels)
    sheet = page.locator(".stage .sheet")
    expect(sheet).to_have_attribute("style", re.compile(r"scale\(1\)"))
    page.get_by_role("button", name="Zoom in").click()
    expect(sheet).to_have_attribute("style", re.compile(r"scale\(1\.33\)"))
    page.locator("a.node", has_text="shop.clean").hover()
    expect(page.locator(".edge.lit")).to_have_count(2)
    page.locator("a.node", has_text="shop.orders").click()
    page.wait_for_url("**/datasets/shop.orders?branch=feature")


def test_lineage_page_around_a_dataset_and_as_a_list(window: Window) -> None:
    page = window.go("/lineage?branch=feature&dataset=shop.daily&view=list")
    rows = page.get_by_role("region", name="Datasets in dependency order").locator("tbody tr")
    assert [text.split("\t")[0] for text in rows.all_inner_texts()] == [
        "shop.orders",
        "shop.clean",
        "shop.daily",
    ]


def test_dataset_page_shows_the_logic_that_makes_it(window: Window) -> None:
    window.go("/lineage")
    page = window.go("/datasets/shop.orders?tab=logic")
    expect(page.locator(".empty")).to_contain_text("No transform makes this dataset")


_HURT = "</title></script><img src=x onerror='document.hurt=1'><script>document.hurt=1</script>"


def test_pages_asked_for_markup_show_it_as_text(chromium: Browser, site: Site) -> None:
    """Markup in an address, valid or rejected, is shown as text and not interpreted."""
    asked = {
        "/": "q",
        "/branches": "branch",
        "/lineage": "dataset",
        "/log": "actor",
        "/review": "branch",
        "/datasets/shop.orders": "branch",
        f"/datasets/{quote(_HURT, safe='')}": "tab",
    }
    with opened_window(chromium, site.url) as window:
        sign_in(window, site.token)
        for path, name in asked.items():
            page = window.go(f"{path}?{urlencode({name: _HURT, 'base': 'master'})}")
            assert page.evaluate("document.hurt") is None, path
            assert page.locator("img").count() == 0, path


def test_pages_drawn_anew_keep_focus_and_scrolling(chromium: Browser, site: Site) -> None:
    """Pages reload builds every two seconds, which must keep focus and scroll position."""
    with opened_window(chromium, site.url, width=390, height=800) as window:
        sign_in(window, site.token)
        page = window.go("/log")
        table = page.get_by_role("region", name="Publications")
        table.evaluate("one => new Promise(done => { one.onscroll = done; one.scrollLeft = 60 })")
        name = table.locator("tbody a").nth(1)
        name.focus()
        table.evaluate("one => { one.parentElement.innerHTML = one.parentElement.innerHTML }")
        page.wait_for_function("document.activeElement.matches('tbody a')")
        assert name.evaluate("one => one === document.activeElement")
        assert table.evaluate("one => one.scrollLeft") == 60
