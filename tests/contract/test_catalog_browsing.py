"""Pagination of datasets, on both databases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, event

from headgate.catalog.overview import count_datasets, list_dataset_lines
from headgate.catalog.records import branches_named, list_branches, list_datasets
from headgate.catalog.resolve import find_all_shown
from headgate.errors import DatasetNotFound, InvalidName
from headgate.model.access import ReadPolicy, Role
from headgate.model.contexts import parse_context
from headgate.model.names import parse_dataset_name
from headgate.model.nouns import DatasetLine
from headgate.server.web.dataset_page import dataset_page
from headgate.server.web.datasets_page import datasets_page
from headgate.server.web.log_page import log_page
from headgate.store.diff import list_differing
from headgate.store.embedded import Store
from tests.support.pages import text_of, visit
from tests.support.pipelines import files_spec, publish
from tests.support.stores import expire_leases, files_branch, new_store, put


@pytest.fixture
def store(made_catalog_url: str, tmp_path: Path) -> Iterator[Store]:
    with new_store(made_catalog_url, tmp_path) as made:
        yield made


def _lines(store: Store, search: str = "", after: str | None = None) -> list[DatasetLine]:
    behind = parse_dataset_name(after) if after else None
    return store.database.read(
        lambda c: list_dataset_lines(c, primary="master", search=search, after=behind, limit=2)
    )


def test_dataset_lines_go_on_where_the_last_page_ended(store: Store) -> None:
    for name in ("a.x", "a.y", "b.c.d", "b.x"):
        files_branch(store, name)
    first = [str(line.dataset.name) for line in _lines(store)]
    second = [str(line.dataset.name) for line in _lines(store, after=first[-1])]
    assert (first, second) == (["a.x", "a.y"], ["b.x", "b.c.d"])
    assert _lines(store, after="b.c.d") == []


def test_dataset_lines_search_takes_signs_literally_and_ignores_case(store: Store) -> None:
    for name in ("a.plain", "a.o_o", "a.b.deep"):
        files_branch(store, name)
    assert [str(line.dataset.name) for line in _lines(store, "O_O")] == ["a.o_o"]
    assert [str(line.dataset.name) for line in _lines(store, "b.DE")] == ["a.b.deep"]
    assert _lines(store, "%") == []
    assert store.database.read(lambda c: count_datasets(c, "a.")) == 3


def test_dataset_lines_tell_branches_and_the_last_publication(store: Store) -> None:
    branch = files_branch(store)
    put(branch, a="1")
    branch.dataset.branch("feature").create(parent="master")
    [line] = _lines(store)
    assert line.branches == ("feature", "master")
    assert line.last is not None and (line.last.kind, line.last.actor) == ("create", "ana")
    assert not line.blue


def test_datasets_page_of_an_empty_store_says_how_to_begin(store: Store) -> None:
    assert "headgate dataset create" in text_of(datasets_page(visit(store)))


def test_pages_show_hostile_names_as_they_are_written(made_sqlite_url: str, tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script>"
    with new_store(made_sqlite_url, tmp_path, actor=hostile) as store:
        put(files_branch(store, "a.`<b>x`"), **{"<i>.csv": "1"})
        pages = [
            datasets_page(visit(store, q="'; drop table datasets; --")),
            datasets_page(visit(store)),
            dataset_page(visit(store, "a.`<b>x`")),
            dataset_page(visit(store, "a.`<b>x`", tab="history")),
            log_page(visit(store)),
        ]
        text = "".join(text_of(page) for page in pages)
    assert "&lt;script&gt;" in text
    assert not any(sign in text for sign in ("<script", "<b>x", "<i>"))


def test_log_page_shows_the_audit_of_recovery_by_actor_dataset_and_branch(store: Store) -> None:
    branch = files_branch(store)
    view = put(branch, a="1")
    opened = branch.transaction().id
    expire_leases(store)
    store.recover()
    title = "What recovery settled"
    matching: list[dict[str, Any]] = [
        {},
        {"actor": "ana"},
        {"actor": "headgate:recovery"},
        {"dataset": "raw.scans", "branch": "master"},
    ]
    for shown in matching:
        text = text_of(log_page(visit(store, **shown)))
        assert title in text and opened in text and "aborted at" in text and view in text, shown
    files_branch(store, "raw.other", "quiet")
    others: list[dict[str, Any]] = [{"actor": "bo"}, {"dataset": "raw.other"}, {"branch": "quiet"}]
    for hidden in others:
        assert title not in text_of(log_page(visit(store, **hidden)))


def test_dataset_page_of_what_is_only_declared_tells_how_it_is_made(store: Store) -> None:
    publish(store, "master", files_spec("s.b", "s.a"))
    page = dataset_page(visit(store, "s.b", branch="feature>master"))
    assert "headgate build s.b --upstream -b feature" in text_of(page)
    assert "pipeline.s_b" in text_of(page)
    with pytest.raises(DatasetNotFound):
        dataset_page(visit(store, "s.c"))


def test_dataset_page_of_a_chain_shows_the_branch_itself_where_it_has_content(
    store: Store,
) -> None:
    branch = files_branch(store)
    put(branch, a="1")
    falling_back = dataset_page(visit(store, "raw.scans", branch="feature>master", tab="history"))
    assert "no history of its own" in text_of(falling_back)
    branch.dataset.branch("feature").create(parent="master")
    itself = dataset_page(visit(store, "raw.scans", branch="feature>master", tab="history"))
    assert "COMMITTED" in text_of(itself)


# --- whole lists, page by page --------------------------------------------------------------

_ODD = ("a.x", "a.`x/y`", "a.`x@y`", "a.`x y`", "a.b.c", "b.`ü☃`", "b.`%_`")


def _all_pages(list_page: Callable[..., list[Any]], cursor: Callable[[Any], str]) -> list[Any]:
    """Return a list read in pages of two."""
    found: list[Any] = []
    after: str | None = None
    while page := list_page(limit=2, after=after):
        found += page
        after = cursor(page[-1])
    return found


def test_lists_read_page_by_page_are_the_whole_lists(store: Store) -> None:
    for name in _ODD:
        dataset = files_branch(store, name).dataset
        for branch in ("feature/x", "m.a", "z"):
            dataset.branch(branch).create(parent="master")
    every = store.datasets()
    assert {str(dataset.name) for dataset in every} == set(_ODD)
    assert _all_pages(store.datasets, lambda one: str(one.name)) == every
    branches = store.branches()
    assert len(branches) == 4 * len(_ODD)
    assert _all_pages(store.branches, lambda b: f"{b.dataset}@{b.name}") == branches
    of_one = partial(store.branches, "a.`x@y`")
    assert _all_pages(of_one, lambda b: f"{b.dataset}@{b.name}") == of_one()
    assert not store.datasets(limit=0) and not store.branches(limit=0)
    policy = ReadPolicy(actor="rea", role=Role.READER, branches=("m*",), datasets=("a.*",))
    limited = store.database.limited_to(policy)
    shown = limited.read(lambda c: list_branches(c, limit=3))
    last = (shown[-1].dataset, shown[-1].name)
    rest = limited.read(lambda c: list_branches(c, after=last))
    assert {b.name for b in shown + rest} == {"m.a", "master"} and len(shown + rest) == 10


@pytest.mark.parametrize("after", ["nothing", "a.b.c", "@master", "a..b@master"])
def test_branches_after_what_is_no_branch_are_refused(store: Store, after: str) -> None:
    with pytest.raises(InvalidName):
        store.branches(after=after)


def test_page_of_a_list_reads_the_index_from_its_place(tmp_path: Path) -> None:
    with new_store(f"sqlite:///{tmp_path}/catalog.db", tmp_path) as store:
        statements: list[tuple[str, Any]] = []

        def plan(connection: Connection, listed: Callable[[Connection], object]) -> str:
            def note(*args: Any) -> None:
                statements.append((args[2], args[3]))

            event.listen(connection, "before_cursor_execute", note)
            listed(connection)
            event.remove(connection, "before_cursor_execute", note)
            (statement, values), *_ = statements
            statements.clear()
            rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values)
            return " | ".join(row[3] for row in rows)

        name = parse_dataset_name("a.x")
        found = store.database.read(
            lambda c: [
                plan(c, lambda c: list_datasets(c, after=name, limit=2)),
                plan(c, lambda c: list_branches(c, after=(name, "master"), limit=2)),
                plan(c, lambda c: branches_named(c, ["feature"])),
            ]
        )
    assert all("SCAN" not in one and "TEMP B-TREE" not in one for one in found), found


def test_datasets_that_differ_between_two_chains_are_those_that_show_other_content(
    store: Store,
) -> None:
    names = ("master", "feature", "other")
    for number in range(16):
        first, *others = names if number % 2 else names[::-1]
        root = files_branch(store, f"a.t{number}", first)
        put(root, a=str(number))
        for at, name in enumerate(others):
            if number >> at + 1 & 1:
                child = root.dataset.branch(name)
                child.create(parent=first)
                if number >> 3:
                    put(child, b=str(at))
    contexts = ("master", "feature>master", "feature>other>master", "other>feature", "other>master")

    def shown(context: str) -> dict[str, object]:
        def read(connection: Connection) -> dict[str, object]:
            found = list_datasets(connection)
            views = find_all_shown(connection, parse_context(context), found)
            return {
                str(d.name): v.version.content_id
                for d in found
                if (v := views.get(d.id)) and v.version
            }

        return store.database.read(read)

    for before in contexts:
        for after in contexts:
            old, new = shown(before), shown(after)
            wanted = [name for name in sorted({*old, *new}) if old.get(name) != new.get(name)]
            found = [str(one.dataset.name) for one in list_differing(store, before, after)]
            assert sorted(found) == wanted, (before, after)
