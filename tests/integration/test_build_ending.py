"""Builds that end early: canceled by another process, interrupted, or waiting for other builds."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headgate.builds.report import BuildInterrupted, BuildOutcome
from headgate.catalog.builds import BuildRecord, list_builds, load_build
from headgate.catalog.recovery import cancel_build
from headgate.errors import BuildNotRunning, DatasetNotFound, OpenTransactionAlreadyExists
from headgate.model.failpoints import Failpoint
from headgate.model.nouns import BuildState
from headgate.settings import Settings
from headgate.store.embedded import Store
from headgate.testing.failpoints import die_at
from tests.support.oracle import assert_store_sound
from tests.support.pipelines import FileJobs, build, files_spec, publish, shown, states
from tests.support.processes import assert_killed, finish, running
from tests.support.stores import branches_by_name, new_settings, new_store

ENDLESS = frozenset({"s.x"})


def _publish(store: Store) -> None:
    publish(store, "master", files_spec("s.x"), files_spec("s.y", "s.x"), files_spec("s.w"))


@contextmanager
def _endless_build(
    store: Store, targets: str = "s.y s.w", **options: Any
) -> Iterator[Future[BuildOutcome]]:
    """Build W, and Y over an X that never ends, in another thread."""
    jobs = FileJobs(store=store, endless=ENDLESS)
    with ThreadPoolExecutor() as pool:
        future = pool.submit(build, store, targets, jobs=jobs, **options)
        _wait(lambda: "s.x" in jobs.ran)
        try:
            yield future
        finally:
            for record in store.database.read(list_builds):
                if record.state == "running":
                    cancel_build(store.database, record.id, actor="end of the test")


def _wait(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def _newest(store: Store) -> BuildRecord:
    return store.database.read(list_builds)[0]


def _newest_jobs(store: Store) -> dict[str, str]:
    record = store.database.read(lambda c: load_build(c, _newest(store).id))
    return {job.body["outputs"][0]: job.state for job in record.jobs}


def test_cancel_from_elsewhere_ends_the_jobs_and_keeps_what_was_committed(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        _publish(store)
        with _endless_build(store) as future:
            _wait(lambda: bool(shown(store, "s.w")))
            canceled = cancel_build(store.database, _newest(store).id, actor="bob")
            assert canceled.state == "canceled"
            outcome = future.result(30)
        assert outcome.state is BuildState.CANCELED
        assert states(outcome) == {"s.x": "aborted", "s.y": "aborted", "s.w": "succeeded"}
        assert branches_by_name(store, "s.y") == {}
        assert _newest(store).state == "canceled"
        assert states(build(store, "s.y")) == {"s.x": "succeeded", "s.y": "succeeded"}
        assert_store_sound(store)


def test_cancel_of_an_atomic_build_leaves_nothing_of_it(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        _publish(store)
        with _endless_build(store, atomic=True) as future:
            _wait(lambda: _newest_jobs(store)["s.w"] == "succeeded")
            cancel_build(store.database, _newest(store).id, actor="bob")
            assert states(future.result(30)) == dict.fromkeys(("s.x", "s.y", "s.w"), "aborted")
        assert shown(store, "s.x", "s.y", "s.w") == {}
        assert_store_sound(store)


def test_cancel_twice_is_canceled_and_of_a_finished_build_refused(
    made_sqlite_url: str, tmp_path: Path
) -> None:
    with new_store(made_sqlite_url, tmp_path) as store:
        _publish(store)
        with _endless_build(store):
            id = _newest(store).id
            first = cancel_build(store.database, id, actor="bob")
            again = cancel_build(store.database, id, actor="bob")
            # Its jobs may have stopped by now; the build is unchanged.
            assert (again.id, again.state) == (first.id, first.state)
        done = build(store, "s.w")
        with pytest.raises(BuildNotRunning, match="succeeded"):
            cancel_build(store.database, done.id, actor="bob")


def build_and_die(settings: Settings) -> None:
    """Run a build that is killed once it is open; entry point of a process."""
    with Store(settings) as store:
        die_at(Failpoint.OPEN_COMMITTED)
        build(store, "s.y s.w")


def test_cancel_of_a_dead_build_frees_its_outputs_at_once(
    made_catalog_url: str, tmp_path: Path
) -> None:
    settings = new_settings(made_catalog_url, tmp_path)
    with Store(settings) as store:
        _publish(store)
        assert_killed(build_and_die, settings)
        with pytest.raises(OpenTransactionAlreadyExists):
            build(store, "s.y s.w")
        record = cancel_build(store.database, store.database.read(list_builds)[-1].id, actor="bob")
        assert (record.state, {job.state for job in record.jobs}) == ("canceled", {"aborted"})
        assert build(store, "s.y s.w").state is BuildState.SUCCEEDED
        assert_store_sound(store)


def test_opening_of_a_held_output_names_the_holder_and_wait_outlasts_it(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        publish(store, "master", files_spec("s.x"), files_spec("s.v"))
        with _endless_build(store, "s.x"):
            with pytest.raises(OpenTransactionAlreadyExists) as refused:
                build(store, "s.x s.v")
            assert (refused.value.facts["dataset"], refused.value.facts["holder"]) == ("s.x", "ana")
            with pytest.raises(DatasetNotFound):
                store.dataset("s.v").load()

            def free() -> None:
                cancel_build(store.database, _newest(store).id, actor="bob")

            threading.Timer(1, free).start()
            waited = build(store, "s.x s.v", wait_seconds=60)
            assert waited.state is BuildState.SUCCEEDED
        assert_store_sound(store)


def build_until_interrupted(settings: Settings, started: Path, ended: Path) -> None:
    """Run an endless build, and write the result of the interrupt to a file."""
    # A child of a test runner may have inherited an ignored SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with Store(settings) as store:
        jobs = FileJobs(store=store, endless=ENDLESS)

        def tell() -> None:
            _wait(lambda: "s.x" in jobs.ran)
            started.touch()

        threading.Thread(target=tell).start()
        try:
            build(store, "s.y", jobs=jobs)
        except BuildInterrupted as interrupted:
            ended.write_text(f"{interrupted.outcome.state} {states(interrupted.outcome)}")


def test_interrupt_aborts_what_was_not_committed_and_is_still_an_interrupt(
    made_catalog_url: str, tmp_path: Path
) -> None:
    settings = new_settings(made_catalog_url, tmp_path / "store")
    started, ended = tmp_path / "started", tmp_path / "ended"
    with Store(settings) as store:
        _publish(store)
        with running(build_until_interrupted, settings, started, ended) as process:
            _wait(started.exists)
            assert process.pid is not None
            os.kill(process.pid, signal.SIGINT)
            assert finish(process) == 0
        assert ended.read_text() == "canceled {'s.x': 'aborted', 's.y': 'aborted'}"
        assert _newest(store).state == "canceled"
        assert branches_by_name(store, "s.x") == {}
        assert_store_sound(store)
