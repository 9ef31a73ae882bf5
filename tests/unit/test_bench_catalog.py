"""The benchmarked operations send the same number of statements for large and small input."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.catalog import ON_SQLITE
from bench.filling import fill
from bench.loading import load
from bench.measuring import count_statements
from bench.places import Place, store_trees
from headgate.model.ids import Instant
from tests.support.stores import new_store

_CASES = {case.name: case for case in ON_SQLITE.cases}


@pytest.fixture
def place(sqlite_url: str, tmp_path: Path) -> Iterator[Place]:
    with new_store(sqlite_url, tmp_path) as store:
        trees = store_trees(store.trees)
        until = Instant(time.time_ns() // 1_000)
        filled = load(store.database, lambda sink: fill(sink, 1_000, trees=trees, until=until))
        yield Place(database=store.database, filled=filled, trees=trees, floor=lambda: None)


def test_every_case_of_the_catalog_runs_on_a_filled_store(place: Place) -> None:
    for case in ON_SQLITE.cases:
        case.prepare(place)()


def test_publication_of_many_datasets_sends_no_more_statements_than_of_one(place: Place) -> None:
    counts = {
        name: count_statements(case, place)
        for name, case in _CASES.items()
        if name.startswith("publish")
    }
    assert len(counts) == 3
    assert len(set(counts.values())) == 1, counts


def test_question_about_an_old_transaction_is_one_query(place: Place) -> None:
    # Includes SQLite's BEGIN.
    assert count_statements(_CASES["is an old transaction in the history?"], place) == 2
