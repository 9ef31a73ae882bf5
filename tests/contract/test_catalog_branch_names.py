"""Branch names over all datasets, and their differences from their parents, on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.catalog.log import list_publications
from headgate.catalog.overview import (
    count_branch_names,
    list_branch_names,
    list_differing_datasets,
)
from headgate.model.names import parse_dataset_name
from headgate.model.nouns import BranchNameLine
from headgate.server.web.log_page import log_page
from headgate.store.embedded import Store
from tests.support.pages import text_of, visit
from tests.support.stores import files_branch, new_store, put


@pytest.fixture
def store(made_catalog_url: str, tmp_path: Path) -> Iterator[Store]:
    """Two datasets with `feature`, which has a commit on one; a third with `feature` as a root."""
    with new_store(made_catalog_url, tmp_path) as made:
        for name in ("a.x", "a.y"):
            master = files_branch(made, name)
            put(master, one="1")
            master.dataset.branch("feature").create(parent="master")
        put(made.dataset("a.x").branch("feature"), two="2")
        made.dataset("a.z").create(kind="files", branch="feature", create=True)
        yield made


def _lines(store: Store, search: str = "", after: str | None = None) -> dict[str, BranchNameLine]:
    found = store.database.read(
        lambda c: list_branch_names(c, limit=10, search=search, after=after)
    )
    return {line.name: line for line in found}


def test_branch_names_add_up_over_all_datasets(store: Store) -> None:
    lines = _lines(store)
    feature = lines["feature"]
    assert list(lines) == ["feature", "master"]
    assert (feature.dataset_count, feature.parent, feature.differing) == (3, "master", 1)
    assert (lines["master"].parent, lines["master"].differing) == (None, 0)
    assert feature.last is not None and feature.last.actor == "ana"


def test_branch_names_notice_a_parent_that_moved_on_and_an_open_head(store: Store) -> None:
    put(store.dataset("a.y").branch("master"), three="3")
    store.dataset("a.y").branch("feature").transaction("APPEND")
    feature = _lines(store)["feature"]
    assert (feature.differing, feature.open) == (2, 1)
    found = store.database.read(lambda c: list_differing_datasets(c, "feature"))
    assert [(str(d.dataset), d.is_changed) for d in found] == [("a.x", True), ("a.y", False)]


def test_branch_names_page_and_search(store: Store) -> None:
    assert list(_lines(store, after="feature")) == ["master"]
    assert list(_lines(store, search="URE feat")) == ["feature"]
    assert store.database.read(lambda c: count_branch_names(c, "%")) == 0
    after = parse_dataset_name("a.x")
    assert store.database.read(lambda c: list_differing_datasets(c, "feature", after=after)) == []


def test_publications_before_a_number_go_on_where_the_page_ended(store: Store) -> None:
    all_of_it = store.database.read(list_publications)
    first, *rest = [publication.number for publication in all_of_it]
    before = store.database.read(lambda c: list_publications(c, before=first))
    on_feature = store.database.read(
        lambda c: list_publications(c, branch="feature", before=first, limit=1)
    )
    assert [p.number for p in before] == rest
    assert on_feature[0].number < first


def test_log_page_filters_by_dataset_and_kind(store: Store) -> None:
    text = text_of(log_page(visit(store, dataset="a.x", kind="commit")))
    assert "a.x" in text and "a.y" not in text
    assert "Nothing was published that fits" in text_of(log_page(visit(store, actor="nobody")))
