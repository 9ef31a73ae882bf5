"""Summaries for the pages, each from one read, and the actions of a build's page."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest

from headgate.builds.plan import BuildOptions
from headgate.catalog.attempts import dispatch_attempt
from headgate.catalog.builds import record_build_in
from headgate.catalog.transactions import Opener, Opening, open_transactions
from headgate.errors import NotFound, RoleDenied
from headgate.model.access import Grant, Role
from headgate.model.changes import Caller
from headgate.model.checks import CheckResult, CheckStage
from headgate.model.ids import BuildId, instant_text, mint_build
from headgate.model.nouns import BuildState, TransactionType
from headgate.server.web.branches_page import branches_page
from headgate.server.web.build_page import build_actions, build_page, builds_page
from headgate.server.web.dataset_page import dataset_page
from headgate.server.web.datasets_page import datasets_page
from headgate.server.web.log_page import log_page
from headgate.server.web.page import Visit
from headgate.server.web.review_page import review_page
from headgate.store.embedded import Store
from headgate.store.overview import Overview
from tests.support.pages import text_of, visit
from tests.support.pipelines import FileJobs, build, files_spec, publish
from tests.support.stores import files_branch, load, new_store, put


@pytest.fixture
def store(made_catalog_url: str, tmp_path: Path) -> Iterator[Store]:
    """A dataset with a branch that differs from its parent, and transforms on both branches."""
    with new_store(made_catalog_url, tmp_path, actor="bo") as made:
        master = files_branch(made, "s.a")
        put(master, one="1")
        master.dataset.branch("feature").create(parent="master")
        put(master.dataset.branch("feature"), two="2")
        publish(made, "master", files_spec("s.b", "s.a"))
        publish(made, "feature", files_spec("s.b", "s.a", logic="2"), files_spec("s.c", "s.a"))
        yield made


def _running_build(store: Store, **options: Any) -> BuildId:
    id = mint_build()
    attempt = dispatch_attempt(store.database, id, actor="bo", lease_seconds=600).ref
    feature = store.dataset("s.a").branch("feature").load()
    open_transactions(
        store.database,
        [Opening(branch=feature.id, type=TransactionType.APPEND)],
        Opener(caller=Caller(actor="bo", attempt=attempt), lease_seconds=600),
    )
    body = {"targets": ["s.b"], "fallback": ["master"], **options}
    store.database.write(
        lambda c: record_build_in(
            c, id=id, branch="feature", actor="bo", attempt=attempt, body=body, planned=[]
        )
    )
    return id


@pytest.mark.parametrize(
    "summarize",
    [
        lambda o: o.datasets(limit=9),
        lambda o: o.branches(limit=9),
        lambda o: o.find_branch("feature"),
        lambda o: o.branch("feature", limit=9),
        lambda o: o.dataset("s.a", "feature>master"),
        lambda o: o.jobspecs("s.b"),
        lambda o: o.jobspecs_on(("master", "feature")),
    ],
)
def test_overview_reads_the_catalog_once(
    store: Store, summarize: Callable[[Overview], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[Any] = []
    read = store.database.read

    def count(work: Any) -> Any:
        reads.append(work)
        return read(work)

    monkeypatch.setattr(store.database, "read", count)
    assert summarize(store.overview)
    assert len(reads) == 1


def test_overview_of_a_branch_has_its_protection_and_its_differences(store: Store) -> None:
    store.protect("master")
    total, lines = store.overview.branches(limit=9)
    assert (total, [(line.name, line.protected) for line in lines]) == (
        2,
        [("feature", ()), ("master", ("*",))],
    )
    line, differing = store.overview.branch("feature", limit=9)
    assert (line.differing, [str(found.dataset) for found in differing]) == (1, ["s.a"])
    with pytest.raises(NotFound):
        store.overview.branch("none", limit=9)


def test_overview_of_a_dataset_has_the_open_transaction_of_the_branch_shown(store: Store) -> None:
    opened = store.dataset("s.a").branch("master").transaction("APPEND")
    on_master = store.overview.dataset("s.a").opened
    assert on_master is not None and on_master.id == opened.id
    assert store.overview.dataset("s.a", "feature").opened is None


def test_overview_history_starts_at_a_transaction_of_this_dataset_only(store: Store) -> None:
    branch = store.dataset("s.a").branch("feature").load()
    newest, *_, oldest = store.overview.history(branch, limit=9)
    assert store.overview.history(branch, before=oldest.id, limit=9) == [oldest]
    other = put(files_branch(store, "s.other"), one="1")
    assert store.overview.history(branch, before=other, limit=9) == []
    assert store.overview.history(branch, limit=1) == [newest]


def test_pages_agree_on_the_time_and_actor_of_the_last_publication_after_a_reset(
    store: Store,
) -> None:
    branch = store.dataset("s.a").branch("feature")
    before = branch.load().view
    put(branch, three="3")
    assert before is not None
    reset = store.acting_for(Grant(actor="rita", role=Role.ADMIN))
    receipt = reset.dataset("s.a").branch("feature").reset(to=before)
    published = f'datetime="{instant_text(receipt.at)}"'
    for page in (
        datasets_page(visit(store)),
        branches_page(visit(store)),
        branches_page(visit(store, branch="feature")),
        dataset_page(visit(store, "s.a", branch="feature")),
        log_page(visit(store)),
    ):
        text = text_of(page)
        assert published in text and "rita" in text, page.title
    shown = text_of(dataset_page(visit(store, "s.a", branch="feature")))
    # The view is as old as it was: who wrote it, and when, stands beside it.
    written = load(store, before).closed_at
    assert written is not None and f'datetime="{instant_text(written)}"' in shown


def test_pages_agree_on_which_datasets_of_a_branch_differ_and_how_many(store: Store) -> None:
    """Datasets with other content, with equal content written twice, and moved on the parent."""
    for name in ("s.same", "s.twice", "s.moved", "s.more"):
        master = files_branch(store, name)
        put(master, one="1")
        master.dataset.branch("feature").create(parent="master")
    for branch in ("feature", "master"):
        put(store.dataset("s.twice").branch(branch), two="2")
    put(store.dataset("s.moved").branch("master"), two="2")
    put(store.dataset("s.more").branch("feature"), two="2")
    differ = {"s.a", "s.moved", "s.more"}
    merged = differ - {"s.moved"}
    every = text_of(branches_page(visit(store)))
    choose = text_of(review_page(visit(store)))
    one = branches_page(visit(store, branch="feature"))
    for text in (every, choose, text_of(one)):
        assert f"{len(differ)} with other content" in text
    for name in ("s.a", "s.same", "s.twice", "s.moved", "s.more"):
        assert (f">{name}<" in str(one.sections["differing"])) is (name in differ), name
        compared = visit(store, name, branch="feature", tab="compare")
        same = "Both sides show the same." in text_of(dataset_page(compared))
        assert same is (name not in differ), name
    review = review_page(visit(store, branch="feature"))
    assert f"a merge changes {len(merged)} datasets" in text_of(review)
    for name in differ:
        assert (name in str(review.sections["data"])) is (name in merged), name


def test_build_page_of_a_failed_job_shows_all_of_its_checks(store: Store) -> None:
    checks = [_check("key", passed=True), _check("some", passed=False)]
    jobs = FileJobs(store=store, failing={"s.b": 1}, checks={"s.b": checks})
    outcome = build(store, "s.b", jobs=jobs)
    text = text_of(build_page(visit(store, outcome.id, job="0")))
    assert outcome.state is BuildState.FAILED and 'aria-label="Checks"' in text
    assert "passed" in text and "reason of some" in text


@pytest.mark.parametrize(("on_error", "tone"), [("FAIL", "bad"), ("WARN", "warn")])
def test_build_page_counts_failed_checks_beside_the_state_of_their_job(
    store: Store, on_error: str, tone: str
) -> None:
    checks = [_check("key", passed=True), _check("some", passed=False, on_error=on_error)]
    jobs = FileJobs(store=store, failing={"s.b": 1}, checks={"s.b": checks})
    jobs_card = build_page(visit(store, build(store, "s.b", jobs=jobs).id)).sections["jobs"]
    assert f'<span class="badge {tone}">1 of 2 failed</span>' in jobs_card
    assert "of 2" not in build_page(visit(store, build(store, "s.b").id)).sections["jobs"]


def _check(name: str, *, passed: bool, on_error: str = "FAIL") -> dict[str, Any]:
    result = CheckResult(
        name=name,
        dataset="s.b",
        stage=CheckStage.POST,
        expectation="count > 0",
        on_error=on_error,
        passed=passed,
        reason=f"reason of {name}",
    )
    return result.to_json()


def test_branches_page_of_one_branch_lists_what_differs(store: Store) -> None:
    store.protect("master")
    assert "protected" in text_of(branches_page(visit(store)))
    text = text_of(branches_page(visit(store, branch="feature")))
    assert "1 with other content" in text and "s.a" in text and "protected" not in text


def test_review_page_shows_logic_and_data_that_differ(store: Store) -> None:
    text = text_of(review_page(visit(store, branch="feature")))
    assert "a merge changes 1 dataset " in text and "2 transforms changed" in text
    with pytest.raises(NotFound):
        review_page(visit(store, branch="none"))


def test_review_page_lists_branches_of_data_and_those_with_jobspecs_alone(store: Store) -> None:
    publish(store, "logic", files_spec("s.a", logic="2"))
    shown = "".join(review_page(visit(store)).sections.values())
    links = re.findall(r'href="/review\?branch=(\w+)">', shown)
    assert links == ["feature", "logic"]
    assert "1 transform changed" in text_of(review_page(visit(store, branch="logic")))


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
def test_review_page_lists_every_name_once_on_its_pages(
    store: Store, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr("headgate.server.web.review_page._BRANCHES", size)
    for name in ("b", "d"):
        store.dataset("s.a").branch(name).create(parent="master")
    for name in ("a", "c", "z"):
        publish(store, name, files_spec("s.a", logic="2"))
    query, pages = dict[str, str](), list[list[str]]()
    while not pages or query:
        here = Visit(store=store, grant=Grant(actor="ana", role=Role.ADMIN), query=query)
        shown = text_of(review_page(here))
        pages.append(re.findall(r'href="/review\?branch=(\w+)">', shown))
        onward = re.search(r'href="/review\?([^"]*)"[^>]*>Next page', shown)
        query = dict(parse_qsl(unescape(onward[1]))) if onward else {}
        assert len(pages) < 9
    # The primary branch is on a page, and not listed.
    assert [name for page in pages for name in page] == ["b", "d", "feature", "a", "c", "z"]
    assert max(map(len, pages)) <= size


def test_build_page_cancels_in_the_name_of_the_visitor(store: Store) -> None:
    id = _running_build(store)
    assert "running" in text_of(builds_page(visit(store)))
    with pytest.raises(RoleDenied):
        build_actions(None)(visit(store, id, role=Role.READER), "cancel", {})
    build_actions(None)(visit(store, id), "cancel", {})
    assert "canceled" in text_of(build_page(visit(store, id)))
    [event] = store.events(kind="canceled")
    assert event["actor"] == "ana"


def test_build_page_retries_with_the_options_of_the_build(store: Store) -> None:
    id = _running_build(store, upstream=True, parameters={"day": 3})
    started: list[Any] = []

    def retry(_: Visit, targets: Sequence[str], options: BuildOptions) -> str:
        started.append((targets, options))
        return "build-2"

    assert build_actions(retry)(visit(store, id), "retry", {}) == "/builds/build-2"
    assert started == [
        (
            ["s.b"],
            {
                "branch": "feature",
                "fallback": ["master"],
                "create": True,
                "upstream": True,
                "atomic": False,
                "parameters": {"day": 3},
            },
        )
    ]


@pytest.mark.parametrize("text", ["a " * 3_000, "a" * 60_000, "%_\\'" * 1_000])
def test_search_page_of_a_long_text_is_answered(store: Store, text: str) -> None:
    assert datasets_page(visit(store, q=text)).status == 200
