"""Cleanup of mutated tables: their tables stay complete, and merges find their base."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.errors import VersionExpired
from headgate.upkeep.doctor import examine
from tests.support.rows import PERSON, graph_store, ids_of, insert_people
from tests.support.upkeep import let_days_pass, tidy_twice


def test_tables_that_mutations_wrote_are_whole_after_cleanup(
    made_sqlite_url: str, tmp_path: Path
) -> None:
    with graph_store(made_sqlite_url, tmp_path, "a", "b") as store:
        store.mutate("master", "update graph.person set age = 7 where id = 'a'")
        store.mutate("master", "delete from graph.person where id = 'b'")
        let_days_pass(store, 40)
        assert tidy_twice(store).deleted > 0
        assert ids_of(store, PERSON) == ["a"]
        store.mutate("master", insert_people("c"))
        assert ids_of(store, PERSON) == ["a", "c"]
        checks = {check.name: check for check in examine(store.settings, deep=True).checks}
        assert checks["tables"].findings == []


def test_merge_of_branches_that_parted_too_long_ago_says_so(
    made_sqlite_url: str, tmp_path: Path
) -> None:
    with graph_store(made_sqlite_url, tmp_path, "a") as store:
        store.dataset(PERSON).branch("feature").create(parent="master")
        for branch in ("master", "feature"):
            store.mutate(branch, insert_people(f"{branch}-1"))
            store.mutate(branch, insert_people(f"{branch}-2"))
        let_days_pass(store, 40)
        tidy_twice(store)
        with pytest.raises(VersionExpired, match="has expired"):
            store.merge("feature", into="master")
        assert ids_of(store, PERSON) == ["a", "master-1", "master-2"]
