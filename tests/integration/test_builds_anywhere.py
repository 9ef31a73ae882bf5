"""The same builds on a local store and on a served one: same results, views and events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import headgate
from headgate.builds.report import BuildInterrupted, BuildOutcome, JobStatus
from headgate.errors import AttemptSuperseded, Invalid, NotFound, OpenTransactionAlreadyExists
from headgate.model.access import Role
from headgate.model.nouns import BuildState
from headgate.store.embedded import Store
from tests.support.afar import until
from tests.support.api import Api
from tests.support.file_doing import FileWork, do_by_files
from tests.support.oracle import assert_store_sound
from tests.support.pipelines import FileJobs, files_spec, publish, shown, states


@dataclass(frozen=True, kw_only=True)
class Builder:
    """The store or client that builds, the jobs, and the store as its owner sees it."""

    hg: Store
    work: FileJobs | FileWork
    store: Store

    def build(self, **options: Any) -> BuildOutcome:
        return self.hg.build(["s.y"], **{"branch": "master", "upstream": True, **options})


@pytest.fixture(params=["embedded", "served"])
def builder(
    request: pytest.FixtureRequest,
    small_api: Api,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Iterator[Builder]:
    store = small_api.store
    publish(store, "master", files_spec("s.x"), files_spec("s.y", "s.x"))
    if request.param == "embedded":
        jobs = FileJobs(store=store)
        monkeypatch.setattr("headgate.builds.run.SparkJobs", lambda parts: jobs)
        yield Builder(hg=store, work=jobs, store=store)
        return
    # A client without a settings file keeps its logs below the working directory.
    own = tmp_path / "client"
    own.mkdir()
    monkeypatch.chdir(own)
    token, home = small_api.token("ana", Role.ADMIN), {"HOME": str(own)}
    with headgate.open(small_api.url, token=token, environ=home) as hg:
        yield Builder(hg=hg, work=do_by_files(monkeypatch), store=store)


def test_build_shows_its_jobs_as_they_go_and_what_they_made(builder: Builder) -> None:
    seen: list[list[str]] = []

    def watch(jobs: Sequence[JobStatus]) -> None:
        seen.append([job.state.value for job in jobs])

    outcome = builder.build(watch=watch)
    assert states(outcome) == {"s.x": "succeeded", "s.y": "succeeded"}
    assert [job.rows for job in outcome.jobs] == [1, 1]
    assert seen[-1] == ["succeeded", "succeeded"] and builder.work.expected[0] == 2
    assert shown(builder.store, "s.y") == {"s.y": "s.y1(s.x1())"}
    [record] = builder.hg.builds()
    assert (record["build"], record["actor"], record["state"]) == (outcome.id, "ana", "succeeded")
    # One publication for the branches, and one for each job.
    assert len(outcome.publications) == 3
    assert_store_sound(builder.store)


def test_plan_says_what_the_build_then_does_and_is_drawn_where_asked(builder: Builder) -> None:
    planned = builder.hg.plan(["s.y"], branch="master", upstream=True, graph="mermaid")
    assert [(job.outputs, job.state, job.reason) for job in planned.jobs] == [
        (["s.x"], "waiting", "never-built"),
        (["s.y"], "waiting", "never-built"),
    ]
    assert planned.jobs[1].inputs == [{"dataset": "s.x", "branch": "master", "transaction": None}]
    assert planned.graph and planned.graph["text"].startswith("flowchart")
    assert builder.hg.builds() == []
    outcome = builder.build()
    assert [job.outputs for job in outcome.jobs] == [job.outputs for job in planned.jobs]
    with pytest.raises(Invalid, match=r"mermaid.*svg"):
        builder.hg.plan(["s.y"], branch="master", graph="png")


def test_build_of_what_is_fresh_or_adopted_starts_no_engine(builder: Builder) -> None:
    builder.build()
    builder.work.expected.clear()
    publish(builder.store, "other", files_spec("s.x"), files_spec("s.y", "s.x"))
    fresh, adopted = builder.build(), builder.build(branch="other", fallback=[])
    assert states(fresh) == {"s.x": "skipped", "s.y": "skipped"}
    assert states(adopted) == {"s.x": "adopted", "s.y": "adopted"}
    assert (builder.work.expected, builder.work.ran) == ([], ["s.x", "s.y"])


def test_failure_is_tried_again_and_told_with_its_log(builder: Builder) -> None:
    builder.work.failing = {"s.x": 3}
    failed = builder.build(retries=1)
    assert (failed.state, failed.jobs[0].attempts) == (BuildState.FAILED, 2)
    assert states(failed) == {"s.x": "failed", "s.y": "aborted"}
    assert failed.to_json()["jobs"][1]["error"]["message"] == "aborted: s.x failed"
    assert (failed.jobs[0].error or {})["message"] == "s.x failed"
    assert (failed.jobs[0].log or "").endswith("job.log")
    assert builder.build(retries=1).jobs[0].attempts == 2


def test_logs_of_a_build_that_succeeded_are_kept_and_read_by_output_or_number(
    builder: Builder,
) -> None:
    build = builder.build().id
    found = builder.hg.build_logs(build)
    assert [(job["job"], job["log"], job["cut"]) for job in found["jobs"]] == [
        (0, "s.x was here\n", False),
        (1, "s.y was here\n", False),
    ]
    for job in ("s.y", "1"):
        assert builder.hg.build_logs(build, job)["jobs"] == found["jobs"][1:]
    for job in ("s.z", "2", "-1"):
        with pytest.raises(NotFound, match=r"s\.y") as refused:
            builder.hg.build_logs(build, job)
        assert refused.value.facts["job"] == job
    kept = builder.store.scratch / "builds" / build
    assert {path.name for path in kept.rglob("*") if path.is_file()} == {"job.log"}
    log = min(kept.rglob("job.log"))
    log.write_text("first\n" + "x" * 2**20 + "\nlast\n")
    [cut] = builder.hg.build_logs(build, "0")["jobs"]
    assert (cut["cut"], cut["log"][-5:], len(cut["log"]) < 2**20) == (True, "last\n", True)


def test_job_waits_for_spark_in_sight(builder: Builder) -> None:
    seen: list[tuple[Any, ...]] = []

    def watch(jobs: Sequence[JobStatus]) -> None:
        seen.append(tuple(job.to_live_json().get("phase") for job in jobs))

    outcome = builder.build(watch=watch)
    assert ("starting Spark", None) in seen
    assert seen[-1] == (None, None)
    assert all("phase" not in job for job in outcome.to_json()["jobs"])


def test_atomic_build_that_fails_shows_nothing_and_one_that_does_not_all_at_once(
    builder: Builder,
) -> None:
    builder.work.failing = {"s.y": 1}
    failed = builder.build(atomic=True)
    assert failed.state is BuildState.FAILED
    assert (failed.jobs[0].error or {})["message"] == "aborted: s.y failed"
    assert shown(builder.store, "s.x", "s.y") == {}
    # One publication for the branches, one for all outputs.
    assert len(builder.build(atomic=True).publications) == 2
    assert set(shown(builder.store, "s.x", "s.y")) == {"s.x", "s.y"}


def test_cancel_from_elsewhere_ends_the_job(builder: Builder) -> None:
    builder.work.endless = frozenset({"s.x"})
    with ThreadPoolExecutor() as pool:
        future = pool.submit(builder.build)
        until(lambda: "s.x" in builder.work.ran)
        builder.hg.cancel_build(builder.hg.builds()[0]["build"])
        outcome = future.result(60)
    assert outcome.state is BuildState.CANCELED
    assert states(outcome) == {"s.x": "aborted", "s.y": "aborted"}
    assert_store_sound(builder.store)


def test_newer_build_of_a_task_key_ends_the_older(builder: Builder) -> None:
    builder.work.endless = frozenset({"s.x"})
    with ThreadPoolExecutor() as pool:
        older = pool.submit(builder.build, task_key="nightly")
        until(lambda: "s.x" in builder.work.ran)
        builder.work.endless = frozenset()
        assert builder.build(task_key="nightly").state is BuildState.SUCCEEDED
        with pytest.raises(AttemptSuperseded):
            older.result(60)


def test_branch_that_another_build_holds_is_waited_for_if_asked(builder: Builder) -> None:
    builder.work.endless = frozenset({"s.x"})
    with ThreadPoolExecutor() as pool:
        holder = pool.submit(builder.build)
        until(lambda: "s.x" in builder.work.ran)
        with pytest.raises(OpenTransactionAlreadyExists) as refused:
            builder.build()
        running = builder.hg.builds()[0]["build"]
        assert refused.value.facts["build"] == running
        for hint in (f"held by build {running} of ", "--wait", f"headgate builds cancel {running}"):
            assert hint in refused.value.message
        builder.work.endless = frozenset()
        waiter = pool.submit(builder.build, wait_seconds=60)
        builder.hg.cancel_build(builder.hg.builds()[0]["build"])
        assert holder.result(60).state is BuildState.CANCELED
        assert waiter.result(60).state is BuildState.SUCCEEDED


def test_interrupt_cancels_and_is_still_an_interrupt(builder: Builder) -> None:
    builder.work.endless = frozenset({"s.x"})

    def interrupt(jobs: Sequence[JobStatus]) -> None:
        if jobs[0].state.value == "running":
            raise KeyboardInterrupt

    with pytest.raises(BuildInterrupted) as interrupted:
        builder.build(watch=interrupt)
    assert interrupted.value.outcome.state is BuildState.CANCELED
    assert builder.hg.builds()[0]["state"] == "canceled"
    builder.work.endless = frozenset()
    assert builder.build().state is BuildState.SUCCEEDED
