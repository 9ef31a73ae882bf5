"""Cleanup of tables concurrent with writers, and killed: files that become visible stay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headgate.catalog.attempts import dispatch_attempt
from headgate.model.failpoints import Failpoint
from headgate.settings import Settings
from headgate.store.embedded import Store
from headgate.testing.failpoints import calling_at
from headgate.upkeep.cleanup import CleanupReport, clean_up
from tests.support.oracle import assert_rows_sound
from tests.support.processes import assert_killed, finish, running, start
from tests.support.stores import hold_for_years, load, new_settings, new_store
from tests.support.table_upkeep import (
    TABLE,
    TableClient,
    append_again_and_again,
    condemn_again_and_again,
    keys_of,
    leave_files,
    rows,
    shown_at,
)
from tests.support.upkeep import (
    interrupted,
    let_days_pass,
    policy,
    stored_keys,
    tidy,
    tidy_and_die,
    tidy_later,
    tidy_twice,
)

_LEASE_SECONDS = 10_000 * 24 * 3600
_ORPHANS = 120


@pytest.fixture
def store(made_catalog_url: str, tmp_path: Path) -> Iterator[Store]:
    with new_store(made_catalog_url, tmp_path) as store:
        yield store


@pytest.fixture
def client(store: Store) -> Iterator[TableClient]:
    with TableClient(store) as client:
        client.create(1)
        yield client


class Uploaded:
    """A write whose files are uploaded, and which is not committed yet."""

    def __init__(self, client: TableClient, *values: int) -> None:
        self._transaction = client.table().transaction()
        self._transaction.append(rows(*values))

    def commit(self) -> None:
        self._transaction.commit_transaction()


def tidy_interrupted(store: Store, action: Callable[[], object]) -> CleanupReport:
    """Run a cleanup that calls the function between its read of the catalog and of the storage."""
    return clean_up(store.database, interrupted(store, action), policy(), actor="ana")


def test_write_that_is_committed_while_cleanup_marks_is_whole(
    store: Store, client: TableClient
) -> None:
    written = Uploaded(client, 2)
    let_days_pass(store, 40)
    cleaned = tidy_interrupted(store, written.commit)
    let_days_pass(store, 1.1)
    tidy(store)
    assert cleaned.spared > 0
    assert shown_at(store, client.view()) == [1, 2]


def test_write_that_is_committed_after_it_was_condemned_is_spared(
    store: Store, client: TableClient
) -> None:
    written = Uploaded(client, 2)
    let_days_pass(store, 40)
    assert tidy(store).condemned > 0
    written.commit()
    let_days_pass(store, 1.1)
    assert tidy(store).spared > 0
    assert shown_at(store, client.view()) == [1, 2]


def test_write_that_is_committed_when_its_files_are_about_to_be_swept_is_whole(
    store: Store, client: TableClient
) -> None:
    written = Uploaded(client, 2)
    leave_files(store, "tables/d-staged/data/00000-0.parquet")
    let_days_pass(store, 40)
    tidy(store)
    let_days_pass(store, 1.1)
    leave_files(store, "tables/d-staged/data/00001-0.parquet")
    let_days_pass(store, 8)
    # Cleanup makes a new mark just before it sweeps earlier ones.
    with calling_at(Failpoint.CLEANUP_CONDEMNED, written.commit):
        tidy(store)
    assert "tables/d-staged/data/00000-0.parquet" not in stored_keys(store)
    assert shown_at(store, client.view()) == [1, 2]


def test_files_of_an_open_unit_without_a_transaction_are_kept(
    store: Store, client: TableClient
) -> None:
    unit = store.transaction(branch="master")
    hold_for_years(store, unit.id)
    leave_files(store, "tables/d-staged/data/00000-0.parquet")
    let_days_pass(store, 60)
    tidy_twice(store)
    assert "tables/d-staged/data/00000-0.parquet" in stored_keys(store)
    unit.abort()
    tidy_twice(store)
    assert "tables/d-staged/data/00000-0.parquet" not in stored_keys(store)


def test_working_version_of_an_open_unit_is_kept_and_can_be_committed(
    store: Store, client: TableClient
) -> None:
    unit = store.transaction(branch="master")
    hold_for_years(store, unit.id)
    client.append(2, context=unit.context)
    client.append(3, context=unit.context)
    client.forget()
    let_days_pass(store, 60)
    tidy_twice(store)
    unit.commit()
    assert shown_at(store, client.view()) == [1, 2, 3]


def test_files_that_a_live_attempt_has_staged_are_kept(store: Store, client: TableClient) -> None:
    dispatch_attempt(store.database, "nightly", actor="ana", lease_seconds=_LEASE_SECONDS, scope={})
    leave_files(store, "tables/d-staged/data/00000-0.parquet")
    let_days_pass(store, 60)
    tidy_twice(store)
    assert "tables/d-staged/data/00000-0.parquet" in stored_keys(store)


def test_reader_of_a_table_is_not_disturbed_by_the_marks(store: Store, client: TableClient) -> None:
    table = client.table()
    client.overwrite(2)
    let_days_pass(store, 40)
    tidy(store)
    # The version loaded before is condemned by now, and stays readable for at least a day.
    assert table.scan().to_arrow()["id"].to_pylist() == [1]


def _grown_old(catalog_url: str, root: Path) -> tuple[Settings, str, set[str]]:
    """Create a store with much to clean; return its settings, the view, and the view's keys."""
    settings = new_settings(catalog_url, root)
    with Store(settings) as store, TableClient(store) as client:
        client.create(1)
        view = client.overwrite(2)
        client.forget()
        leave_files(store, *(f"tables/d-staged/data/{n}.parquet" for n in range(_ORPHANS)))
        let_days_pass(store, 40)
        tidy(store)
        let_days_pass(store, 1.1)
        version = load(store, view).version
        assert version is not None
        return settings, view, keys_of(store, [version.location])


def test_cleanup_of_tables_killed_amid_its_sweep_is_completed_by_the_next(
    catalog_url: str, tmp_path: Path
) -> None:
    settings, view, needed = _grown_old(catalog_url, tmp_path)
    assert_killed(tidy_and_die, settings, Failpoint.CLEANUP_SWEPT, 1)
    with Store(settings) as store, TableClient(store) as client:
        assert needed < stored_keys(store)
        assert_rows_sound(store)
        tidy(store)
        assert stored_keys(store) == needed
        assert shown_at(store, view) == [2]
        assert shown_at(store, client.append(3, name=TABLE)) == [2, 3]


def test_cleanups_beside_writers_of_tables_lose_no_row(catalog_url: str, tmp_path: Path) -> None:
    settings, branches, stop = new_settings(catalog_url, tmp_path), ("master", "b"), tmp_path / "go"
    with Store(settings) as store, TableClient(store) as client:
        client.create(100)
        store.dataset(TABLE).branch("b").create(parent="master")
    with (
        running(condemn_again_and_again, settings, stop) as first,
        running(condemn_again_and_again, settings, stop) as second,
    ):
        writers = [start(append_again_and_again, settings, name, 6) for name in branches]
        assert [finish(writer) for writer in writers] == [0, 0]
        stop.touch()
        assert (finish(first), finish(second)) == (0, 0)
    with Store(settings) as store, TableClient(store) as client:
        assert tidy_later(store, 42).deleted > 0
        for name in branches:
            assert shown_at(store, client.view(context=name)) == [*range(6), 100]
        assert_rows_sound(store)
