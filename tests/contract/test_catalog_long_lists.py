"""Histories and lists of objects that exceed the parameters of one statement."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import insert, select, update

from headgate.catalog.log import list_history
from headgate.catalog.schema import condemned_objects, transactions
from headgate.errors import Invalid, VersionExpired
from headgate.store.datasets import BranchHandle
from headgate.store.embedded import Store
from tests.support.door import addition, knock
from tests.support.stores import files_branch, new_store, put


def test_publication_of_very_many_objects_passes_the_door_unless_one_is_condemned(
    catalog_url: str, tmp_path: Path
) -> None:
    # PostgreSQL's protocol takes 65,535 parameters in a statement.
    objects = frozenset(f"object-{number}" for number in range(70_000))
    with new_store(catalog_url, tmp_path) as store:
        master = files_branch(store)
        knock(store, addition(master, "x", objects=objects))
        row = {"location": "object-69999", "condemned_at": 1, "bytes": 6}
        store.database.write(lambda c: c.execute(insert(condemned_objects), [row]))
        with pytest.raises(VersionExpired):
            knock(store, addition(master, "y", objects=objects))


def test_reset_far_back_takes_off_what_lies_between_on_its_own_branch_alone(
    catalog_url: str, tmp_path: Path
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master = files_branch(store)
        first, *rest = [put(master, a=str(number)) for number in range(12)]
        feature = store.dataset("raw.scans").branch("feature")
        feature.create(parent="master")
        own = [put(feature, b=str(number)) for number in range(3)]
        _make_adoptable(store)
        feature.reset(to=first)
        assert _adoptable(store) == {first, *rest}
        feature.reset(to=own[1])
        master.reset(to=rest[4])
        assert _adoptable(store) == {first, *rest[:5]}


def test_history_of_many_pages_is_complete_and_newest_first(
    catalog_url: str, tmp_path: Path
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master = files_branch(store)
        written = [_add(store, master, f"content-{number}") for number in range(90)]
        branch = master.load()
        history = store.database.read(lambda c: list_history(c, branch))
        assert [t.id for t in history] == written[::-1]
        newest = store.database.read(lambda c: list_history(c, branch, limit=20))
        assert newest == history[:20]


def _add(store: Store, branch: BranchHandle, content: str) -> str | None:
    knock(store, addition(branch, content))
    return branch.load().view


def _make_adoptable(store: Store) -> None:
    store.database.write(lambda c: c.execute(update(transactions).values(adoptable=1)))


def _adoptable(store: Store) -> set[str]:
    query = select(transactions.c.id).where(transactions.c.adoptable == 1)
    return set(store.database.read(lambda c: c.execute(query).scalars().all()))


def test_number_beyond_what_a_database_counts_to_is_invalid(
    catalog_url: str, tmp_path: Path
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        with pytest.raises(Invalid, match="too large"):
            store.publications(before=10**30)
        assert len(store.publications()) == 0
