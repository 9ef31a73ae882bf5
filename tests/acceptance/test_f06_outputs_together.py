"""F06: all outputs of a job, or of an atomic build, or none, at any kill."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headgate.catalog.builds import list_builds
from headgate.catalog.records import views_on
from headgate.errors import AttemptSuperseded
from headgate.model.failpoints import Failpoint
from headgate.model.names import parse_dataset_name
from headgate.model.nouns import BuildState
from headgate.settings import Settings
from headgate.store.embedded import Store
from headgate.testing.failpoints import die_at, pause_at
from tests.support.oracle import assert_rows_sound, assert_store_sound
from tests.support.pipelines import FileJobs, build, files_spec, publish, shown, states
from tests.support.processes import assert_killed, finish, let_go, running, wait_until_at
from tests.support.stores import branches_by_name, expire_leases, new_settings

KEY = "nightly"
# One job produces P and Q; R reads both.
NAMES = ("s.p", "s.q", "s.r")
OLD = {"s.p": "s.p1()", "s.q": "s.q1()", "s.r": "s.r1(s.p1(),s.q1())"}
NEW = {"s.p": "s.p2()", "s.q": "s.q2()", "s.r": "s.r2(s.p2(),s.q2())"}

# Failpoint at which a build dies, and the visible result: nothing new, P and Q, or all. A new
# build passes the door once to create its branches, on an empty store.
_JOB_COMMITS = [
    (Failpoint.OPEN_APPLIED, 1, 0),
    (Failpoint.OPEN_COMMITTED, 1, 0),
    (Failpoint.STAGE_APPLIED, 1, 0),
    (Failpoint.STAGE_COMMITTED, 1, 0),
    (Failpoint.STAGE_APPLIED, 2, 0),
    (Failpoint.BUILD_JOB_ENDED, 1, 0),
    (Failpoint.PUBLISH_LOCKED, 1, 0),
    (Failpoint.PUBLISH_APPLIED, 1, 0),
    (Failpoint.PUBLISH_COMMITTED, 1, 2),
    (Failpoint.STAGE_APPLIED, 3, 2),
    (Failpoint.PUBLISH_APPLIED, 2, 2),
    (Failpoint.PUBLISH_COMMITTED, 2, 3),
]
_ATOMIC_COMMITS = [
    (Failpoint.OPEN_COMMITTED, 1, 0),
    (Failpoint.STAGE_APPLIED, 2, 0),
    (Failpoint.BUILD_JOB_ENDED, 1, 0),
    (Failpoint.BUILD_HANDED_OVER, 1, 0),
    (Failpoint.STAGE_APPLIED, 3, 0),
    (Failpoint.BUILD_HANDED_OVER, 2, 0),
    (Failpoint.PUBLISH_LOCKED, 1, 0),
    (Failpoint.PUBLISH_APPLIED, 1, 0),
    (Failpoint.PUBLISH_COMMITTED, 1, 3),
]


def _publish(store: Store, logic: str, branch: str = "master") -> None:
    publish(
        store,
        branch,
        files_spec("s.p,s.q", logic=logic),
        files_spec("s.r", "s.p", "s.q", logic=logic),
    )


def _built_once(catalog_url: str, root: Path) -> Settings:
    """Return a store that shows the old state, with JobSpecs for the new one."""
    settings = new_settings(catalog_url, root)
    with Store(settings) as store:
        _publish(store, "1")
        build(store, "s.r")
        assert shown(store, *NAMES) == OLD
        _publish(store, "2")
    return settings


def build_and_die(
    settings: Settings, point: Failpoint, nth: int, atomic: bool, key: str | None = KEY
) -> None:
    """Run a build that is killed at a failpoint; entry point of a process."""
    with Store(settings) as store:
        die_at(point, nth=nth)
        build(store, "s.r", atomic=atomic, task_key=key)


def build_slowly(settings: Settings, flags: Path, point: Failpoint, atomic: bool) -> None:
    """Run a build that pauses at a failpoint, and write its outcome to a file."""
    with Store(settings) as store:
        pause_at(point, flags=flags)
        try:
            outcome = build(store, "s.r", atomic=atomic, task_key=KEY)
            (flags / "ended").write_text(outcome.state.value)
        except AttemptSuperseded as refused:
            (flags / "ended").write_text(refused.code)


@contextmanager
def _reader(store: Store, *names: str) -> Iterator[list[frozenset[int | None]]]:
    """Read datasets continuously, and collect the publications of their views."""
    seen: list[frozenset[int | None]] = []
    ended = threading.Event()
    wanted = [parse_dataset_name(name) for name in names]

    def look() -> None:
        while not ended.wait(0.002):
            views = store.database.read(lambda c: views_on(c, wanted, "master"))
            found = [views[name].publication if name in views else None for name in wanted]
            if not seen or seen[-1] != frozenset(found):
                seen.append(frozenset(found))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize(("point", "nth", "visible"), _JOB_COMMITS)
def test_f06_build_killed_at_any_step_shows_all_outputs_of_a_job_or_none(
    made_catalog_url: str, tmp_path: Path, point: Failpoint, nth: int, visible: int
) -> None:
    settings = _built_once(made_catalog_url, tmp_path)
    assert_killed(build_and_die, settings, point, nth, False)
    with Store(settings) as store:
        assert_rows_sound(store)
        new = {name: NEW[name] for name in NAMES[:visible]}
        assert shown(store, *NAMES) == OLD | new
        again = FileJobs(store=store)
        outcome = build(store, "s.r", jobs=again, task_key=KEY)
        assert outcome.state is BuildState.SUCCEEDED
        assert again.ran == [job for job, need in (("s.p", 2), ("s.r", 3)) if visible < need]
        assert shown(store, *NAMES) == NEW
        assert {b.state for b in store.database.read(list_builds)} <= {"succeeded", "canceled"}
        assert_store_sound(store)


@pytest.mark.parametrize(("point", "nth", "visible"), _ATOMIC_COMMITS)
def test_f06_atomic_build_killed_at_any_step_shows_everything_or_nothing(
    made_catalog_url: str, tmp_path: Path, point: Failpoint, nth: int, visible: int
) -> None:
    settings = _built_once(made_catalog_url, tmp_path)
    assert_killed(build_and_die, settings, point, nth, True)
    with Store(settings) as store:
        assert_rows_sound(store)
        assert shown(store, *NAMES) == (NEW if visible else OLD)
        assert build(store, "s.r", atomic=True, task_key=KEY).state is BuildState.SUCCEEDED
        assert shown(store, *NAMES) == NEW
        assert_store_sound(store)


@pytest.mark.parametrize("atomic", [False, True])
def test_f06_reader_never_sees_one_output_without_the_other(
    made_catalog_url: str, tmp_path: Path, atomic: bool
) -> None:
    settings = _built_once(made_catalog_url, tmp_path)
    together = NAMES if atomic else NAMES[:2]
    with Store(settings) as store, _reader(store, *together) as seen:
        for logic in ("2", "3", "4"):
            _publish(store, logic)
            build(store, "s.r", atomic=atomic)
    assert len(seen) == 4
    assert all(len(publications) == 1 for publications in seen[1:])


@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.parametrize("point", [Failpoint.OPEN_COMMITTED, Failpoint.BUILD_JOB_ENDED])
def test_f06_older_build_of_a_task_key_is_refused_and_the_newer_does_not_wait(
    made_catalog_url: str, tmp_path: Path, atomic: bool, point: Failpoint
) -> None:
    settings = _built_once(made_catalog_url, tmp_path / "store")
    with running(build_slowly, settings, tmp_path, point, atomic) as older:
        wait_until_at(point, tmp_path)
        with Store(settings) as store:
            newer = build(store, "s.r", task_key=KEY, atomic=atomic)
            assert newer.state is BuildState.SUCCEEDED
            before = store.database.read(
                lambda c: views_on(c, [parse_dataset_name(n) for n in NAMES], "master")
            )
            let_go(point, tmp_path)
            assert finish(older) == 0
            assert (tmp_path / "ended").read_text() == "attempt_superseded"
            after = store.database.read(
                lambda c: views_on(c, [parse_dataset_name(n) for n in NAMES], "master")
            )
            assert after == before and shown(store, *NAMES) == NEW
            assert [b.state for b in store.database.read(list_builds)][:2] == [
                "succeeded",
                "canceled",
            ]
            assert_store_sound(store)


def test_f06_dead_build_without_a_key_is_settled_by_recovery(
    made_catalog_url: str, tmp_path: Path
) -> None:
    settings = new_settings(made_catalog_url, tmp_path)
    with Store(settings) as store:
        _publish(store, "1")
    assert_killed(build_and_die, settings, Failpoint.BUILD_JOB_ENDED, 1, False, None)
    with Store(settings) as store:
        assert {b.state for b in store.database.read(list_builds)} == {"running"}
        assert set(branches_by_name(store, "s.r")) == {"master"}
        expire_leases(store)
        assert len(store.recover().aborted_transactions) == 3
        assert {b.state for b in store.database.read(list_builds)} == {"failed"}
        assert branches_by_name(store, "s.r") == {}
        assert states(build(store, "s.r")) == {"s.p, s.q": "succeeded", "s.r": "succeeded"}
        assert_store_sound(store)


def test_f06_failed_atomic_build_shows_nothing_of_what_succeeded_or_was_adopted(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with Store(new_settings(made_catalog_url, tmp_path)) as store:
        _publish(store, "1")
        _publish(store, "1", "elsewhere")
        build(store, "s.p", branch="elsewhere")
        jobs = FileJobs(store=store, failing={"s.r": 1})
        failed = build(store, "s.r", jobs=jobs, atomic=True)
        assert failed.state is BuildState.FAILED
        assert states(failed) == {"s.p, s.q": "aborted", "s.r": "failed"}
        assert failed.jobs[0].to_json()["adopted_from"]["branch"] == "elsewhere"
        assert set(branches_by_name(store, "s.p")) == {"elsewhere"}

        passed = build(store, "s.r", atomic=True)
        assert states(passed) == {"s.p, s.q": "adopted", "s.r": "succeeded"}
        assert shown(store, *NAMES) == OLD
        moved = store.database.read(
            lambda c: views_on(c, [parse_dataset_name(n) for n in NAMES], "master")
        )
        assert {view.publication for view in moved.values()} == {passed.publications[-1]}
        assert_store_sound(store)
