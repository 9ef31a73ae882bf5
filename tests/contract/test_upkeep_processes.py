"""Cleanup in real processes: killed at its failpoints, and concurrent with many writers."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.model.failpoints import Failpoint
from headgate.settings import Settings
from headgate.store.embedded import Store
from tests.support.oracle import assert_rows_sound, assert_store_sound
from tests.support.processes import assert_killed, finish, running, start
from tests.support.stores import DATASET, content, files_branch, new_settings, put
from tests.support.upkeep import (
    is_expired,
    leave_orphans,
    let_days_pass,
    stored_keys,
    tidy,
    tidy_again_and_again,
    tidy_and_die,
    write_again_and_again,
)

_ORPHANS = 120


def _grown_old(catalog_url: str, root: Path) -> tuple[Settings, str, set[str]]:
    """Create a store with much to clean; return settings, an expired version, needed keys."""
    settings = new_settings(catalog_url, root)
    with Store(settings) as store:
        branch = files_branch(store)
        put(branch, a="new")
        needed = stored_keys(store)
        forgotten = put(branch, a="old")
        put(branch, a="new")
        leave_orphans(store, _ORPHANS)
        let_days_pass(store, 40)
    return settings, forgotten, needed


@pytest.mark.parametrize("nth", [1, 2])
def test_cleanup_killed_after_condemning_is_completed_by_the_next(
    catalog_url: str, tmp_path: Path, nth: int
) -> None:
    settings, forgotten, needed = _grown_old(catalog_url, tmp_path)
    assert_killed(tidy_and_die, settings, Failpoint.CLEANUP_CONDEMNED, nth)
    with Store(settings) as store:
        branch = store.dataset(DATASET).branch("master")
        assert_rows_sound(store)
        assert is_expired(branch, forgotten)
        assert tidy(store).condemned == (0 if nth == 2 else _ORPHANS + 3)
        let_days_pass(store, 1.1)
        assert tidy(store).deleted == _ORPHANS + 3
        assert stored_keys(store) == needed
        assert content(branch) == {"a": "new"}
        assert_store_sound(store)


def test_cleanup_killed_amid_its_sweep_is_completed_by_the_next(
    catalog_url: str, tmp_path: Path
) -> None:
    settings, forgotten, needed = _grown_old(catalog_url, tmp_path)
    with Store(settings) as store:
        tidy(store)
        let_days_pass(store, 1.1)
        before = stored_keys(store)
    assert_killed(tidy_and_die, settings, Failpoint.CLEANUP_SWEPT, 1)
    with Store(settings) as store:
        branch = store.dataset(DATASET).branch("master")
        assert needed < stored_keys(store) < before
        assert_rows_sound(store)
        tidy(store)
        assert stored_keys(store) == needed
        assert content(branch) == {"a": "new"} and is_expired(branch, forgotten)
        assert_store_sound(store)


def test_cleanups_in_a_crowd_of_writers_lose_nothing(catalog_url: str, tmp_path: Path) -> None:
    settings = new_settings(catalog_url, tmp_path)
    names = ("master", "b1", "b2")
    with Store(settings) as store:
        master = files_branch(store)
        for name in names[1:]:
            master.dataset.branch(name).create(parent="master")
    stop = tmp_path / "stop"
    with (
        running(tidy_again_and_again, settings, stop, 2.0) as first,
        running(tidy_again_and_again, settings, stop, 2.0) as second,
    ):
        writers = [start(write_again_and_again, settings, name, 5) for name in names]
        assert [finish(writer) for writer in writers] == [0, 0, 0]
        stop.touch()
        assert (finish(first), finish(second)) == (0, 0)
    with Store(settings) as store:
        for name in names:
            branch = store.dataset(DATASET).branch(name)
            assert content(branch) == {"put": "content 1", "staged": "content 1"}
        assert_store_sound(store)
