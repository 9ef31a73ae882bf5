"""Findings of the doctor on tables: each kind of file, lost or damaged, with its location."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.store.embedded import Store
from headgate.upkeep.doctor import examine
from tests.support.stores import new_store
from tests.support.table_upkeep import TableClient
from tests.support.upkeep import stored_keys

WHERE = "shop.orders@master"


@pytest.fixture
def store(made_sqlite_url: str, tmp_path: Path) -> Iterator[Store]:
    with new_store(made_sqlite_url, tmp_path) as store, TableClient(store) as client:
        client.create(1)
        yield store


def said(store: Store, *, deep: bool = False) -> list[tuple[str, str]]:
    checks = {check.name: check for check in examine(store.settings, deep=deep).checks}
    return [(finding.where, finding.what) for finding in checks["tables"].findings]


def key_of(store: Store, part: str) -> str:
    return next(key for key in sorted(stored_keys(store), reverse=True) if part in key)


@pytest.mark.parametrize(
    ("part", "what"),
    [
        ("metadata.json", "does not exist: it was never written"),
        ("/snap-", "manifest list: object"),
        ("-m0.avro", "manifest: object"),
        (".parquet", "does not exist"),
    ],
)
def test_lost_file_of_a_table_is_named_with_the_branch_that_needs_it(
    store: Store, part: str, what: str
) -> None:
    assert said(store) == []
    lost = key_of(store, part)
    store.objects.delete([lost])
    [(where, words)] = said(store)
    assert where == WHERE and what in words and lost in words


@pytest.mark.parametrize(
    ("part", "what"),
    [
        ("metadata.json", "it is not JSON"),
        ("/snap-", "not a complete Avro file"),
        ("-m0.avro", "bytes instead of"),
        (".parquet", "is damaged: it has"),
    ],
)
def test_damaged_file_of_a_table_is_named(store: Store, part: str, what: str) -> None:
    damaged = key_of(store, part)
    store.objects.replace(damaged, store.objects.get(damaged)[:-3])
    [(where, words)] = said(store)
    assert where == WHERE and what in words and damaged in words


def test_past_of_a_table_is_looked_at_only_deeply(store: Store) -> None:
    before = stored_keys(store)
    with TableClient(store) as client:
        client.overwrite(2)
    first = next(key for key in before if key.endswith(".parquet"))
    store.objects.delete([first])
    assert said(store) == []
    assert [where for where, _ in said(store, deep=True)] == [WHERE]


def test_foreign_file_of_a_registered_table_is_looked_for_deeply(
    store: Store, tmp_path: Path
) -> None:
    with (
        new_store(f"sqlite:///{tmp_path}/theirs.db", tmp_path / "theirs") as theirs,
        TableClient(theirs) as client,
    ):
        client.create(1, 2)
        file = client.table().metadata_location
        lost = key_of(theirs, ".parquet")
        store.dataset("shop.taken").register(file, branch="master")
        assert said(store, deep=True) == []
        theirs.objects.delete([lost])
    assert said(store) == []
    [(where, what)] = said(store, deep=True)
    assert where == "shop.taken@master" and lost in what


def test_store_that_was_moved_is_told_so(store: Store, tmp_path: Path) -> None:
    (tmp_path / "warehouse").rename(tmp_path / "moved")
    (tmp_path / "warehouse").symlink_to(tmp_path / "moved")
    [(where, what)] = said(store)
    assert where == WHERE and "is not below" in what
