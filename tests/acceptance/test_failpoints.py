"""Every named failpoint is reached by real work, and a real process is killed there."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.model.failpoints import Failpoint
from headgate.settings import Settings
from headgate.store.embedded import Store
from headgate.testing.failpoints import die_at, reached_points
from tests.acceptance.test_o01_killed_at_every_phase import OWNER_KILLED_AT
from tests.acceptance.test_o02_killed_inside_recovery import RECOVERY_KILLED_AT
from tests.support import lakefs_tasks
from tests.support.lakefs_tasks import NEW, lakefs_place
from tests.support.oracle import assert_rows_sound, assert_store_sound
from tests.support.processes import assert_killed
from tests.support.stores import (
    DATASET,
    content,
    expire_leases,
    files_branch,
    load,
    new_settings,
    put,
)

# Reached by other packages, whose own tests kill processes there.
_ELSEWHERE = {
    Failpoint.BUILD_JOB_ENDED,
    Failpoint.BUILD_HANDED_OVER,
    Failpoint.CLEANUP_CONDEMNED,
    Failpoint.CLEANUP_SWEPT,
    *(point for point in Failpoint if point.name.startswith(("TASK_", "MUTATION_"))),
}
# O01 and O02 kill processes there, and check the result of recovery too.
_LAKEFS = [p for p in Failpoint if p.name.startswith("INTENT_")]
_RECOVERY = [p for p in Failpoint if p.name.startswith("RECOVERY_")]
_FILES = [p for p in Failpoint if p not in {*_ELSEWHERE, *_LAKEFS, *_RECOVERY}]
_AFTER_COMMIT = (Failpoint.PUBLISH_COMMITTED, Failpoint.ABORT_APPLIED)


def _write(store: Store) -> None:
    """Commit one transaction, and abort another."""
    master = store.dataset(DATASET).branch("master")
    opened = master.transaction()
    opened.write("b", b"2")
    opened.commit()
    master.transaction().abort()


def _write_until(settings: Settings, point: Failpoint) -> None:
    with Store(settings) as store:
        die_at(point)
        _write(store)


def test_failpoint_at_which_no_process_is_killed_here_belongs_to_another_room() -> None:
    assert {p.name.partition("_")[0] for p in _ELSEWHERE} == {
        "BUILD",
        "CLEANUP",
        "MUTATION",
        "TASK",
    }
    killed = {*_FILES, *OWNER_KILLED_AT, *RECOVERY_KILLED_AT}
    assert killed | _ELSEWHERE == set(Failpoint)


def test_each_failpoint_is_reached_by_the_work_it_is_named_after(
    sqlite_url: str, tmp_path: Path
) -> None:
    with lakefs_place(sqlite_url, tmp_path) as place, place.open() as store:
        with reached_points() as points:
            _write(store)
        assert set(points) == {*_FILES}
        with reached_points() as points:
            place.work(store, NEW)
        assert set(points) >= {*_LAKEFS}
        assert_killed(lakefs_tasks.publish_until, place, Failpoint.INTENT_EFFECT_DONE)
        expire_leases(store)
        with reached_points() as points:
            store.recover()
        assert set(points) >= set(_RECOVERY)


@pytest.mark.parametrize("point", _FILES)
def test_killed_while_writing_leaves_the_state_before_or_after(
    catalog_url: str, tmp_path: Path, point: Failpoint
) -> None:
    settings = new_settings(catalog_url, tmp_path)
    with Store(settings) as store:
        before = put(files_branch(store), a="1")
    assert_killed(_write_until, settings, point)
    with Store(settings) as store:
        master = store.dataset(DATASET).branch("master")
        expected = {"a": "1", "b": "2"} if point in _AFTER_COMMIT else {"a": "1"}
        assert content(master) == expected
        assert_rows_sound(store)
        expire_leases(store)
        store.recover()
        assert (content(master), master.load().is_open) == (expected, False)
        assert point in _AFTER_COMMIT or master.load().view == before
        assert all(load(store, t.id).state != "OPEN" for t in master.history(aborted=True))
        assert_store_sound(store)
