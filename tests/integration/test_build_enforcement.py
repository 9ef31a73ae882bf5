"""Operations that are forbidden to user code in a job, and their errors from the endpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.builds.report import JobStatus
from headgate.spark.engines import SharedJvm
from tests.support.oracle import assert_rows_sound
from tests.support.pipelines import states
from tests.support.projects import new_project
from tests.support.tables import create_tables, read_table

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]

_PIPELINE = """\
import threading
import time
from headgate.transforms import Input, Output, configure, transform, transform_df

@transform(out=Output("job.writer"), victim=Input("shop.victim"))
def writes_another_dataset(ctx, out, victim):
    out.write_dataframe(ctx.spark_session.range(1))
    ctx.spark_session.sql("insert into headgate.shop.victim values (666)")

@transform_df(Output("job.reader"))
def reads_what_it_did_not_declare(ctx):
    return ctx.spark_session.table("headgate.shop.secret")

@transform_df(Output("job.wanderer"), victim=Input("shop.victim"))
def writes_another_branch(ctx, victim):
    conf = ctx.spark_session.conf
    for option in ("", ".type", ".uri", ".token"):
        conf.set("spark.sql.catalog.out" + option, conf.get("spark.sql.catalog.headgate" + option))
    conf.set("spark.sql.catalog.out.warehouse", "master")
    ctx.spark_session.sql("insert into out.shop.victim values (666)")
    return victim

@transform_df(Output("job.dropper"), victim=Input("shop.victim"))
def drops_its_input(ctx, victim):
    ctx.spark_session.sql("drop table headgate.shop.victim")
    return victim

@configure(allowed_run_duration=2)
@transform_df(Output("job.slow"))
def works_too_long(ctx):
    def wait(rows):
        time.sleep(600)
        return rows
    frame = ctx.spark_session.range(2).mapInPandas(wait, "id long")
    threading.Thread(target=frame.collect, daemon=True).start()
    frame.collect()
    return frame

@transform(out=Output("job.idle"))
def writes_nothing(out):
    pass

@transform_df(Output("job.quiet"))
def publishes_nothing(ctx):
    ctx.abort_job()
    return ctx.spark_session.range(1)

@transform_df(Output("job.after"), victim=Input("shop.victim"))
def works(victim):
    return victim
"""
_ALL = ("writer", "reader", "wanderer", "dropper", "slow", "idle", "quiet", "after")


def _line_of(text: str) -> int:
    return next(n for n, line in enumerate(_PIPELINE.splitlines(), 1) if text in line)


def test_user_code_that_leaves_its_job_is_refused_at_its_own_line(
    sqlite_url: str, tmp_path: Path, jvm: SharedJvm
) -> None:
    project = new_project(sqlite_url, tmp_path, jvm)
    with project.store as store:
        create_tables(store, "master", victim=[{"id": 1}], secret=[{"id": 7}])
        before = store.dataset("shop.victim").branch("master").load()
        project.work.git("checkout", "--quiet", "-b", "feature")
        project.publish(pipeline=_PIPELINE)
        targets = " ".join(f"job.{name}" for name in _ALL)
        outcome = project.build(targets, branch="feature", fallback=["master"])

        assert states(outcome) == {
            **{f"job.{name}": "failed" for name in _ALL[:6]},
            "job.quiet": "succeeded",
            "job.after": "succeeded",
        }
        jobs = {job.title.partition(".")[2]: job for job in outcome.jobs}
        _check(jobs["writer"], "may not write 'shop.victim'", "insert into headgate")
        _check(jobs["reader"], "did not declare 'shop.secret'", 'table("headgate.shop.secret')
        _check(jobs["wanderer"], "it is for another context", "insert into out.shop")
        _check(jobs["dropper"], "DROP is not possible", "drop table")
        assert "2 s" in (jobs["slow"].error or {})["message"]
        assert "without writing job.idle" in (jobs["idle"].error or {})["message"]
        assert jobs["quiet"].transactions == {}

        assert store.dataset("shop.victim").branch("master").load() == before
        assert [b.name for b in store.dataset("shop.victim").branches()] == ["master"]
        assert read_table(store, "feature", "job.after") == [{"id": 1}]
        assert {name for name in _ALL if store.dataset(f"job.{name}").branches()} == {"after"}
        assert not jvm._context.statusTracker().getActiveJobIds()
        assert_rows_sound(store)


def _check(job: JobStatus, message: str, line: str) -> None:
    error = job.error or {}
    assert message in error["message"], error
    assert (error["file"], error["line"]) == ("pipeline.py", _line_of(line)), error
