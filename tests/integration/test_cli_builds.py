"""`headgate build` and `headgate builds logs` as a user types them, with jobs that write files."""

from __future__ import annotations

import pytest

import headgate
from tests.support.cli import EMBEDDED_ONLY, Cli
from tests.support.pipelines import FileJobs, files_spec, publish

pytestmark = EMBEDDED_ONLY


@pytest.fixture
def pipeline(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """A command line whose store has the jobs s.x and s.y on master."""
    with headgate.open() as store:
        publish(store, "master", files_spec("s.x"), files_spec("s.y", "s.x"))
        jobs = FileJobs(store=store)
        monkeypatch.setattr("headgate.builds.run.SparkJobs", lambda parts: jobs)
    return cli


def test_builds_logs_prints_the_logs_of_all_jobs_or_of_one(pipeline: Cli) -> None:
    build = pipeline.json("build", "s.y", "-b", "master", "--upstream")["build"]
    shown = pipeline.ok("builds", "logs", build)
    assert shown.out == "s.x was here\ns.y was here\n"
    assert "job 0, s.x: succeeded" in shown.err and "job 1, s.y: succeeded" in shown.err
    assert pipeline.ok("builds", "logs", build, "s.y").out == "s.y was here\n"
    [one] = pipeline.json("builds", "logs", build, "0")["jobs"]
    assert (one["outputs"], one["log"], one["cut"]) == (["s.x"], "s.x was here\n", False)
    assert pipeline.error("builds", "logs", build, "s.z", code=3) == "not_found"
    assert pipeline.error("builds", "logs", "build-none", code=3) == "not_found"


def test_build_on_a_new_branch_needs_create_and_then_builds_there(pipeline: Cli) -> None:
    words = ("build", "s.y", "-b", "feature", "--upstream")
    assert pipeline.error(*words, code=3) == "no_such_branch"
    done = pipeline.json(*words, "--create")
    assert (done["state"], done["branch"]) == ("succeeded", "feature")
    listed = pipeline.json("files", "ls", "s.y", "-b", "feature")
    assert len(listed) == 1
    assert pipeline.json(*words)["jobs"][0]["state"] == "skipped"
