"""The lineage page with five hundred datasets, in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.chromium import Window, opened_window
from tests.support.large_site import DATASETS, serving_large_site
from tests.support.pages import sign_in
from tests.support.site import Site

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with serving_large_site(tmp_path_factory.mktemp("large")) as served:
        yield served


@pytest.fixture
def graph(window: Window) -> Page:
    page = window.go("/lineage")
    page.wait_for_selector(".stage.far")
    return page


def _transform(page: Page) -> str:
    """Return the position of the drawing after the browser's next frames."""
    moved = page.evaluate(
        "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() =>"
        " done(document.querySelector('.sheet').style.transform))))"
    )
    return str(moved)


def test_lineage_of_five_hundred_datasets_is_whole_and_fits_the_window(graph: Page) -> None:
    expect(graph.locator("svg.lineage .node")).to_have_count(DATASETS)
    assert graph.locator(".node.fresh").count() == 40
    stage, sheet = (graph.locator(s).bounding_box() for s in (".stage", "svg.lineage"))
    assert stage is not None and sheet is not None
    assert sheet["x"] >= stage["x"] and sheet["y"] >= stage["y"]
    assert sheet["width"] <= stage["width"] and sheet["height"] <= stage["height"]
    # Not narrow: the drawing takes up most of the window.
    assert sheet["width"] > stage["width"] / 2 and sheet["height"] > stage["height"] / 2


def test_lineage_wheel_and_drag_move_the_drawing_and_a_click_opens_the_dataset(
    graph: Page,
) -> None:
    fitted = _transform(graph)
    node = graph.locator(".node.fresh").first
    node.hover()
    graph.mouse.wheel(0, -600)
    zoomed = _transform(graph)
    assert zoomed != fitted
    graph.mouse.down()
    graph.mouse.move(400, 500, steps=3)
    graph.mouse.up()
    assert _transform(graph) != zoomed
    assert graph.url.endswith("/lineage"), "the end of a drag is no click"
    name = (node.get_attribute("aria-label") or "").split()[0]
    node.click()
    graph.wait_for_url(f"**/datasets/{name}?branch=master")
    expect(graph.locator("h1")).to_contain_text(name)


def test_lineage_finds_a_dataset_by_name_and_lights_what_it_hangs_on(graph: Page) -> None:
    find = graph.get_by_label("Find in the graph")
    find.fill("_039 on")
    found = graph.locator(".node.found")
    many = found.count()
    assert 1 <= many <= 5
    find.press("Enter")
    expect(graph.locator(".tools output")).to_have_text(f"1 of {many}")
    expect(graph.locator(".stage")).not_to_have_class("stage far")
    expect(graph.locator(".told")).to_contain_text("_039 on master: ")
    assert graph.locator(".node.near").count() < DATASETS / 4
    assert graph.locator(".edge.lit").count() >= 1


def test_lineage_by_keyboard_walks_along_edges_and_opens_a_dataset(graph: Page) -> None:
    graph.locator(".stage").focus()
    graph.keyboard.press("Enter")
    here = graph.locator(".node:focus")
    first = here.get_attribute("aria-label")
    expect(graph.locator(".told")).to_have_text(first or "")
    graph.keyboard.press("ArrowLeft")
    second = here.get_attribute("aria-label") or ""
    assert second != first
    graph.keyboard.press("Enter")
    graph.wait_for_url("**/datasets/**")
    expect(graph.locator("h1")).to_contain_text(second.split()[0])


def test_lineage_under_a_finger_comes_near_before_it_opens_a_dataset(
    chromium: Browser, site: Site
) -> None:
    with opened_window(chromium, site.url, width=390, height=844, touch=True) as window:
        sign_in(window, site.token)
        page = window.go("/lineage")
        page.wait_for_selector(".stage.far")
        page.locator(".node.fresh").first.tap()
        expect(page.locator(".stage")).not_to_have_class("stage far")
        told = page.locator(".told").inner_text()
        assert page.url.endswith("/lineage")
        page.locator(".node.near", has_text=re.compile("fresh")).first.tap()
        page.wait_for_url("**/datasets/**")
        assert told.split()[0] in page.url
        assert window.complaints == [] and window.outside == []
