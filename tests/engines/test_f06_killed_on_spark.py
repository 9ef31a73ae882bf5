"""F06 on Spark: a job's process, or the build's, is killed or stopped while it writes tables."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from headgate.catalog.records import views_on
from headgate.errors import AttemptSuperseded
from headgate.model.failpoints import Failpoint
from headgate.model.names import parse_dataset_name
from headgate.model.nouns import BuildState
from headgate.settings import Settings
from headgate.spark.engines import SharedJvm
from headgate.spark.jvm import GatewayAddress
from headgate.store.embedded import Store
from headgate.testing.failpoints import die_at
from tests.support.oracle import assert_rows_sound
from tests.support.processes import assert_killed, finish, running, stop_between_writes
from tests.support.projects import new_project, open_there
from tests.support.tables import read_table

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]

KEY = "nightly"
# Appends to P twice and writes Q once; a flag decides when the process dies or waits.
_PIPELINE = """\
import os, signal, time
from pathlib import Path
from headgate.transforms import Output, transform

FLAGS = Path("{flags}")

@transform(p=Output("shop.p"), q=Output("shop.q"))
def both(ctx, p, q):
    p.set_mode("append")
    p.write_dataframe(ctx.spark_session.range(2))
    if (FLAGS / "die").exists():
        (FLAGS / "die").unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    if (FLAGS / "wait").exists():
        (FLAGS / "wait").rename(FLAGS / "waiting")
        while not (FLAGS / "go").exists():
            time.sleep(0.02)
    p.write_dataframe(ctx.spark_session.range(2, 4))
    q.write_dataframe(ctx.spark_session.range(1))
"""
_KILLED_AT = [
    (Failpoint.STAGE_APPLIED, 1, False),
    (Failpoint.STAGE_APPLIED, 3, False),
    (Failpoint.PUBLISH_APPLIED, 1, False),
    (Failpoint.PUBLISH_COMMITTED, 1, False),
    (Failpoint.STAGE_APPLIED, 2, True),
    (Failpoint.BUILD_HANDED_OVER, 1, True),
    (Failpoint.PUBLISH_COMMITTED, 1, True),
]


def build_and_die(
    settings: Settings, address: GatewayAddress, point: Failpoint, nth: int, atomic: bool
) -> None:
    """Run a build that is killed at a failpoint; entry point of a process."""
    with open_there(settings, address) as store:
        die_at(point, nth=nth)
        store.build(["shop.p"], branch="master", force=True, atomic=atomic, task_key=KEY)


def build_there(settings: Settings, address: GatewayAddress, ended: Path) -> None:
    """Run a build, and write its outcome to a file."""
    with open_there(settings, address) as store:
        try:
            outcome = store.build(["shop.p"], branch="master", force=True, task_key=KEY)
            ended.write_text(outcome.state.value)
        except AttemptSuperseded as refused:
            ended.write_text(refused.code)


def _rows(store: Store) -> dict[str, list[Any]]:
    return {
        name: sorted(row["id"] for row in read_table(store, "master", f"shop.{name}"))
        for name in "pq"
    }


def _publications(store: Store) -> list[Any]:
    """Return the publications of P and Q."""
    names = [parse_dataset_name("shop.p"), parse_dataset_name("shop.q")]
    views = store.database.read(lambda c: views_on(c, names, "master"))
    return [view.publication for view in views.values()]


def test_f06_job_killed_between_its_two_appends_leaves_each_row_once(
    made_catalog_url: str, tmp_path: Path, jvm: SharedJvm
) -> None:
    project = new_project(made_catalog_url, tmp_path, jvm)
    (tmp_path / "die").touch()
    with project.store as store:
        project.publish(pipeline=_PIPELINE.format(flags=tmp_path))
        outcome = project.build("shop.q", retries=1)
        assert outcome.state is BuildState.SUCCEEDED
        assert [job.attempts for job in outcome.jobs] == [2]
        assert _rows(store) == {"p": [0, 1, 2, 3], "q": [0]}
        first, second = _publications(store)
        assert first == second == outcome.publications[-1]
        assert_rows_sound(store)


def test_f06_build_killed_while_tables_are_written_shows_both_or_neither(
    sqlite_url: str, tmp_path: Path, jvm: SharedJvm
) -> None:
    project = new_project(sqlite_url, tmp_path, jvm)
    with project.store as store:
        project.publish(pipeline=_PIPELINE.format(flags=tmp_path))
        assert project.build("shop.p").state is BuildState.SUCCEEDED
        for point, nth, atomic in _KILLED_AT:
            [before, _] = _publications(store)
            assert_killed(build_and_die, store.settings, jvm.address, point, nth, atomic)
            [p, q] = _publications(store)
            moved = point is Failpoint.PUBLISH_COMMITTED
            assert p == q and (p != before) == moved, f"killed at {point} {nth}"
            assert _rows(store) == {"p": [0, 1, 2, 3], "q": [0]}
            assert_rows_sound(store)
        assert project.build("shop.p", force=True, task_key=KEY).state is BuildState.SUCCEEDED
        assert _rows(store) == {"p": [0, 1, 2, 3], "q": [0]}


def test_f06_job_of_a_superseded_build_that_wakes_up_is_refused(
    made_catalog_url: str, tmp_path: Path, jvm: SharedJvm
) -> None:
    project = new_project(made_catalog_url, tmp_path, jvm)
    (tmp_path / "wait").touch()
    ended = tmp_path / "ended"
    with project.store as store:
        project.publish(pipeline=_PIPELINE.format(flags=tmp_path))
        with running(build_there, store.settings, jvm.address, ended) as older:
            _wait_for(tmp_path / "waiting")
            assert older.pid is not None
            stop_between_writes(older.pid, store.database)
            newer = project.build("shop.p", task_key=KEY)
            assert newer.state is BuildState.SUCCEEDED
            before = _publications(store)
            (tmp_path / "go").touch()
            os.kill(older.pid, signal.SIGCONT)
            assert finish(older) == 0
        assert ended.read_text() == "attempt_superseded"
        assert _publications(store) == before
        assert _rows(store) == {"p": [0, 1, 2, 3], "q": [0]}
        assert_rows_sound(store)


def _wait_for(file: Path) -> None:
    deadline = time.monotonic() + 120
    while not file.exists():
        assert time.monotonic() < deadline, f"nobody made {file.name}"
        time.sleep(0.02)
