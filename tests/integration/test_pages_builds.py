"""Builds and review in a real browser: a real build on Spark, watched to its end."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from headgate.catalog.attempts import dispatch_attempt
from headgate.catalog.builds import record_build_in
from headgate.model.ids import BuildId, mint_build
from tests.support.chromium import Window, opened_window
from tests.support.pages import sign_in
from tests.support.shell import headgate_json
from tests.support.site import Site

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.timeout(600)]


@dataclass(frozen=True, kw_only=True)
class Watched:
    """A build of which two jobs succeed and one fails, and the states that a page showed."""

    document: dict[str, Any]
    states: list[str]
    # Beside the state of the build, while it runs.
    phases: set[str]
    last: str


@pytest.fixture(scope="module")
def watched(chromium: Browser, site: Site) -> Iterator[Watched]:
    """Build on `feature` from a shell, with the build's page open as soon as it is listed."""
    words = ("build", "shop.daily", "shop.broken", "--upstream", "-b", "feature", "--json")
    process = subprocess.Popen(
        [sys.executable, "-m", "headgate", *words],
        cwd=site.root,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with opened_window(chromium, site.url) as window:
        sign_in(window, site.token)
        page = window.go("/builds")
        page.get_by_role("region", name="Builds").locator("tbody a").first.click()
        page.wait_for_url("**/builds/build-*")
        state = page.locator(".heading .badge").first
        seen, phases = [state.inner_text()], set[str]()
        while (now := state.inner_text()) == "running" or process.poll() is None:
            seen += [now] if now != seen[-1] else []
            phases |= set(page.locator(".heading .badge").all_inner_texts()) - {*seen, "failed"}
            page.wait_for_timeout(200)
        seen += [now] if now != seen[-1] else []
        told, _ = process.communicate(timeout=60)
        last = window.text()
        assert window.complaints == [] and window.outside == []
    yield Watched(document=json.loads(told), states=seen, phases=phases, last=last)


def test_build_page_open_while_it_runs_follows_it_to_its_end(watched: Watched) -> None:
    assert watched.document["state"] == "failed"
    assert watched.states == ["running", "failed"]
    assert watched.phases == {"starting Spark"}
    for told in ("shop.clean", "succeeded", "40 rows", "no such customer: 42"):
        assert told in watched.last
    assert "pipeline/broken.py:5" in watched.last


def test_build_page_of_a_failed_job_shows_the_line_the_trace_and_the_log(
    watched: Watched, window: Window
) -> None:
    page = window.go(f"/builds/{watched.document['build']}")
    page.get_by_role("region", name="Jobs").get_by_text("shop.broken", exact=True).click()
    page.wait_for_url("**job=**")
    expect(page.locator(".card.failed h2")).to_have_text("Error in pipeline/broken.py:5")
    expect(page.locator(".card.failed pre")).to_contain_text("ValueError: no such customer: 42")
    assert page.get_by_role("region", name="Attempts").locator("tbody tr").count() == 1
    assert (
        page.get_by_role("region", name="Inputs")
        .locator("tbody")
        .inner_text()
        .startswith("shop.orders\tfeature")
    )


def test_dataset_page_after_a_build_tells_why_and_what_was_checked(
    watched: Watched, window: Window
) -> None:
    page = window.go("/datasets/shop.clean?branch=feature&tab=history")
    row = page.get_by_role("region", name="Transactions").locator("tbody tr").first.inner_text()
    assert "pipeline.clean.clean" in row and "1 of 2 failed" in row
    page.click("text=Checks >> nth=0")
    page.wait_for_url("**tab=checks")
    checks = page.get_by_role("region", name="Checks").locator("tbody tr")
    told = checks.all_inner_texts()
    assert any("no large orders\tfailed" in text for text in told)
    assert any("one row for each order\tpassed" in text for text in told)


def test_review_page_of_a_real_branch_shows_logic_rows_and_checks(
    watched: Watched, window: Window
) -> None:
    page = window.go("/review?branch=feature")
    expect(page.locator("h1")).to_have_text("Review feature → master")
    logic = page.get_by_role("region", name="Logic changes").locator("tbody tr").all_inner_texts()
    assert len(logic) == 1 and "shop.broken" in logic[0]
    assert "a merge changes 3 datasets" in window.text("dl.facts")
    assert (
        page.get_by_role("region", name=re.compile("Added rows")).filter(has_text="100").count()
        >= 1
    )
    expect(page.get_by_text("Checks that failed")).to_have_count(1)
    expect(page.locator("main.page")).to_contain_text("headgate merge feature --into master")


def test_lineage_page_after_a_build_shows_what_is_fresh(watched: Watched, window: Window) -> None:
    page = window.go("/lineage?branch=feature")
    fresh = page.locator("svg.lineage .node.fresh text.name").all_text_contents()
    assert sorted(fresh) == ["shop.clean", "shop.daily"]
    stale = page.locator("svg.lineage .node.stale text.name").all_text_contents()
    assert stale == ["shop.broken"]


def _running_build(site: Site) -> BuildId:
    """Record a build that appears to run in another process."""
    with site.open() as store:
        id = mint_build()
        attempt = dispatch_attempt(store.database, id, actor="bo", lease_seconds=600).ref
        body = {"targets": ["shop.daily"], "fallback": ["master"]}
        store.database.write(
            lambda c: record_build_in(
                c, id=id, branch="feature", actor="bo", attempt=attempt, body=body, planned=[]
            )
        )
        return id


def test_build_page_cancels_a_build_after_asking(site: Site, window: Window) -> None:
    id = _running_build(site)
    page = window.go(f"/builds/{id}")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Yes").click()
    expect(page.locator(".heading .badge")).to_have_text("canceled")
    assert headgate_json("builds", "show", id, cwd=site.root)["state"] == "canceled"


def test_build_page_retries_on_the_server_and_does_only_what_is_left(
    watched: Watched, site: Site, window: Window
) -> None:
    id = _running_build(site)
    headgate_json("builds", "cancel", id, cwd=site.root)
    page = window.go(f"/builds/{id}")
    page.get_by_role("button", name="Retry").click()
    page.wait_for_url(lambda url: "/builds/build-" in url and id not in url)
    expect(page.locator(".heading .badge")).to_have_text("succeeded")
    row = page.get_by_role("region", name="Jobs").locator("tbody tr").inner_text()
    assert row.startswith("shop.daily\tskipped\tfresh")


def test_build_page_offers_nothing_to_a_reader(chromium: Browser, site: Site) -> None:
    id = _running_build(site)
    made = headgate_json("token", "create", "--role", "reader", "--actor", "rita", cwd=site.root)
    with opened_window(chromium, site.url) as window:
        sign_in(window, made["token"])
        page = window.go(f"/builds/{id}")
        expect(page.locator(".heading .badge")).to_have_text("running")
        assert page.get_by_role("button", name="Cancel").count() == 0
        page.evaluate("emitEvent('act', {act: 'cancel'})")
        expect(page.get_by_role("alert").filter(has_text="rita is a reader")).to_be_visible()
        expect(page.locator(".heading .badge")).to_have_text("running")
