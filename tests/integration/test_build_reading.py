"""Input of jobs: values of parameters, and only versions that can still be read."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from headgate.builds.attempt import JobWork
from headgate.builds.bundle import make_bundle
from headgate.builds.project import bundle_key
from headgate.builds.spark_jobs import SparkJobs
from headgate.catalog.schema import versions
from headgate.errors import InvalidParameter
from headgate.model.jobspecs import ParameterSpec
from headgate.model.nouns import BuildState
from headgate.store.embedded import Store
from tests.support.pipelines import FileJobs, build, files_spec, publish, states
from tests.support.stores import files_branch, load, new_store, put

DAYS = ParameterSpec(name="days", kind="integer", default=30)


@dataclass(kw_only=True)
class SeenJobs(FileJobs):
    """Records the parameters of its jobs."""

    seen: list[dict[str, Any]] = field(default_factory=list)

    def start(self, work: JobWork) -> Any:
        self.seen.append(dict(work.request.parameters))
        return super().start(work)


def test_parameter_of_a_build_reaches_its_jobs_and_makes_their_outputs_stale(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        publish(store, "master", files_spec("s.x", parameters=(DAYS,)), files_spec("s.y", "s.x"))
        jobs = SeenJobs(store=store)
        build(store, "s.y", jobs=jobs)
        assert states(build(store, "s.y", jobs=jobs, parameters={"days": "30"})) == {
            "s.x": "skipped",
            "s.y": "skipped",
        }
        again = build(store, "s.x", jobs=jobs, parameters={"days": "7"})
        assert again.jobs[0].to_json()["reason"] == "stale-parameters"
        assert jobs.seen[-1] == {"days": "7"}


def test_parameter_that_no_job_declares_is_refused_before_anything_is_opened(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        publish(store, "master", files_spec("s.x", parameters=(DAYS,)))
        with pytest.raises(InvalidParameter, match="did you mean 'days'"):
            store.plan(["s.x"], branch="master", parameters={"day": 7})
        with pytest.raises(InvalidParameter, match="must be an integer, got 'soon'"):
            build(store, "s.x", parameters={"days": "soon"})
        assert not store.dataset("s.x").exists()


class WithoutJvm(SparkJobs):
    """Spark jobs that must fail before they need Spark."""

    def expect(self, count: int) -> None:
        assert count >= 0


def _condemn(store: Store, transaction: str) -> None:
    version = load(store, transaction).version
    assert version is not None
    store.database.write(
        lambda c: c.execute(
            update(versions).where(versions.c.id == version.id).values(condemned_at=1)
        )
    )


def test_input_that_cleanup_has_condemned_fails_the_job_as_expired(
    made_sqlite_url: str, tmp_path: Path
) -> None:
    with new_store(made_sqlite_url, tmp_path) as store:
        given = files_branch(store, "s.in")
        old = put(given, a="1")
        put(given, b="2")
        bundle = make_bundle(tmp_path / "code")
        store.objects.put(bundle_key(bundle.digest), bundle.data)
        publish(store, "master", replace(files_spec("s.out", f"s.in@{old}"), bundle=bundle.digest))
        _condemn(store, old)
        outcome = build(store, "s.out", jobs=WithoutJvm(store.build_parts))
        assert outcome.state is BuildState.FAILED
        error = outcome.jobs[0].error or {}
        assert (error["code"], old in error["message"]) == ("expired", True)
