"""F05: a failed job aborts its dependents and no other job."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.catalog.builds import load_build
from headgate.catalog.records import open_transactions_of
from headgate.model.nouns import BuildState
from headgate.spark.engines import SharedJvm
from headgate.store.embedded import Store
from tests.support.oracle import assert_rows_sound, assert_store_sound
from tests.support.pipelines import FileJobs, build, files_spec, publish, shown, states
from tests.support.projects import new_project
from tests.support.stores import branches_by_name, new_store
from tests.support.tables import read_table

NAMES = ("s.x", "s.y", "s.z", "s.w")


def _publish(store: Store, branch: str = "master", logic: str = "1") -> None:
    """Publish JobSpecs for X to Y to Z, and for W alone."""
    publish(
        store,
        branch,
        files_spec("s.x", logic=logic),
        files_spec("s.y", "s.x", logic=logic),
        files_spec("s.z", "s.y", logic=logic),
        files_spec("s.w", logic=logic),
    )


def _history(store: Store, name: str, branch: str = "master") -> list[str]:
    """Return the states of all transactions ever opened on a branch, newest first."""
    handle = store.dataset(name).branch(branch)
    return [t.state.value for t in handle.history(aborted=True)]


def test_f05_failure_after_all_retries_aborts_its_dependants_and_keeps_the_others(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        _publish(store)
        build(store, "s.z s.w")
        _publish(store, logic="2")
        jobs = FileJobs(store=store, failing={"s.y": 3})
        outcome = build(store, "s.z s.w", jobs=jobs, retries=2)

        assert outcome.state is BuildState.FAILED
        assert states(outcome) == {
            "s.x": "succeeded",
            "s.y": "failed",
            "s.z": "aborted",
            "s.w": "succeeded",
        }
        assert [job.attempts for job in outcome.jobs if job.title in {"s.y", "s.z"}] == [3, 0]
        assert sorted(jobs.ran) == ["s.w", "s.x", "s.y", "s.y", "s.y"]
        assert {n: _history(store, n) for n in NAMES} == {
            "s.x": ["COMMITTED", "COMMITTED"],
            "s.y": ["ABORTED", "COMMITTED"],
            "s.z": ["ABORTED", "COMMITTED"],
            "s.w": ["COMMITTED", "COMMITTED"],
        }
        assert shown(store, "s.x", "s.y", "s.w") == {
            "s.x": "s.x2()",
            "s.y": "s.y1(s.x1())",
            "s.w": "s.w2()",
        }
        record = store.database.read(lambda c: load_build(c, outcome.id))
        assert (record.state, {j.state for j in record.jobs}) == (
            "failed",
            {"succeeded", "failed", "aborted"},
        )
        assert store.database.read(lambda c: open_transactions_of(c)) == []
        assert_store_sound(store)


def test_f05_every_job_of_a_chain_is_expected_before_it_takes_its_process(
    made_sqlite_url: str, tmp_path: Path
) -> None:
    with new_store(made_sqlite_url, tmp_path) as store:
        _publish(store)
        jobs = FileJobs(store=store)
        build(store, "s.z", jobs=jobs)
        assert (jobs.ran, jobs.expected) == (["s.x", "s.y", "s.z"], [3, 3, 2, 1])


def test_f05_building_again_runs_only_what_failed(made_catalog_url: str, tmp_path: Path) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        _publish(store)
        build(store, "s.z s.w", jobs=FileJobs(store=store, failing={"s.y": 1}))
        again = FileJobs(store=store)
        outcome = build(store, "s.z s.w", jobs=again)

        assert outcome.state is BuildState.SUCCEEDED
        assert again.ran == ["s.y", "s.z"]
        assert shown(store, "s.z") == {"s.z": "s.z1(s.y1(s.x1()))"}
        assert _history(store, "s.z") == ["COMMITTED"]
        assert_store_sound(store)


def test_f05_abort_on_failure_ends_the_jobs_that_run(made_catalog_url: str, tmp_path: Path) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        _publish(store)
        jobs = FileJobs(store=store, failing={"s.y": 1}, endless=frozenset({"s.w"}))
        outcome = build(store, "s.z s.w", jobs=jobs, abort_on_failure=True)

        assert states(outcome)["s.w"] == "aborted"
        assert outcome.jobs[[j.title for j in outcome.jobs].index("s.w")].error == {
            "message": "aborted: s.y failed"
        }
        assert shown(store, *NAMES) == {"s.x": "s.x1()"}
        assert_store_sound(store)


def test_f05_branch_made_in_vain_is_gone_and_hides_nothing(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        _publish(store)
        build(store, "s.z s.w")
        _publish(store, "feature", logic="2")
        jobs = FileJobs(store=store, failing={"s.y": 1})
        build(store, "s.z s.w", jobs=jobs, branch="feature", fallback=["master"])

        assert set(branches_by_name(store, "s.x")) == {"master", "feature"}
        assert set(branches_by_name(store, "s.y")) == {"master"}
        assert set(branches_by_name(store, "s.z")) == {"master"}
        _publish(store, "master", logic="3")
        build(store, "s.y")
        publish(store, "feature", files_spec("s.v", "s.y"))
        build(store, "s.v", branch="feature", fallback=["master"], upstream=False)
        assert shown(store, "s.v", branch="feature") == {"s.v": "s.v1(s.y3(s.x3()))"}
        assert_store_sound(store)


@pytest.mark.parametrize("atomic", [False, True])
def test_f05_job_that_publishes_nothing_lets_dependants_read_what_was_there(
    sqlite_url: str, tmp_path: Path, atomic: bool
) -> None:
    with new_store(sqlite_url, tmp_path) as store:
        _publish(store)
        build(store, "s.z")
        _publish(store, "feature", logic="2")
        jobs = FileJobs(store=store, aborting=frozenset({"s.y"}))
        outcome = build(
            store, "s.z", jobs=jobs, branch="feature", fallback=["master"], atomic=atomic
        )

        assert states(outcome) == {"s.x": "succeeded", "s.y": "succeeded", "s.z": "succeeded"}
        assert outcome.jobs[1].transactions == {}
        assert set(branches_by_name(store, "s.y")) == {"master"}
        assert shown(store, "s.z", branch="feature") == {"s.z": "s.z2(s.y1(s.x1()))"}
        assert_store_sound(store)


_SPARK = """\
from pathlib import Path
from headgate.transforms import Input, Output, transform_df

@transform_df(Output("shop.x"))
def x(ctx):
    return ctx.spark_session.range(3)

@transform_df(Output("shop.y"), x=Input("shop.x"))
def y(x):
    if not Path("{flag}").exists():
        raise ValueError("y is broken")
    return x.selectExpr("id + 10 as id")

@transform_df(Output("shop.z"), y=Input("shop.y"))
def z(y):
    return y

@transform_df(Output("shop.w"))
def w(ctx):
    return ctx.spark_session.range(1)
"""


@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(600)
def test_f05_on_spark_names_the_users_line_and_builds_the_rest_again(
    made_catalog_url: str, tmp_path: Path, jvm: SharedJvm
) -> None:
    project = new_project(made_catalog_url, tmp_path, jvm)
    flag = tmp_path / "mended"
    with project.store as store:
        project.publish(pipeline=_SPARK.format(flag=flag))
        failed = project.build("shop.z shop.w", retries=2)

        assert states(failed) == {
            "shop.x": "succeeded",
            "shop.y": "failed",
            "shop.z": "aborted",
            "shop.w": "succeeded",
        }
        broken = failed.jobs[[job.title for job in failed.jobs].index("shop.y")]
        assert broken.attempts == 3 and broken.error is not None
        assert (broken.error["file"], broken.error["line"]) == ("pipeline.py", 11)
        assert broken.error["message"] == "ValueError: y is broken"
        assert store.dataset("shop.y").branches() == []

        flag.touch()
        mended = project.build("shop.z shop.w")
        assert states(mended) == {
            "shop.x": "skipped",
            "shop.y": "succeeded",
            "shop.z": "succeeded",
            "shop.w": "skipped",
        }
        rows = read_table(store, "master", "shop.z")
        assert sorted(row["id"] for row in rows) == [10, 11, 12]
        assert_rows_sound(store)
