"""F07: an incremental job continues from the history of its outputs, also across a branch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headgate.model.jobspecs import IncrementalSpec, JobSpec
from headgate.model.nouns import BuildState
from headgate.store.datasets import BranchHandle
from headgate.store.embedded import Store
from tests.support.copying import Copied, CopyJobs
from tests.support.oracle import assert_store_sound
from tests.support.pipelines import build, files_spec, publish, states
from tests.support.stores import content, files_branch, new_store, put

FEATURE: dict[str, Any] = {"branch": "feature", "fallback": ["master"]}


def spec(logic: str = "", outputs: str = "s.out", read: str = "s.in", **declared: Any) -> JobSpec:
    return files_spec(outputs, read, logic=logic, incremental=IncrementalSpec(**declared))


def built_up_to_three(store: Store) -> BranchHandle:
    """An input of five transactions with a file each; master was built at the third."""
    publish(store, "master", spec())
    given = files_branch(store, "s.in")
    for number in (1, 2, 3):
        put(given, **{f"f{number}": f"{number}"})
    assert copied(store) == [Copied("s.out", False, ("f1", "f2", "f3"))]
    for number in (4, 5):
        put(given, **{f"f{number}": f"{number}"})
    return given


def copied(store: Store, targets: str = "s.out", **options: Any) -> list[Copied]:
    jobs = CopyJobs(store=store)
    outcome = build(store, targets, jobs=jobs, **options)
    assert outcome.state is BuildState.SUCCEEDED
    return jobs.copied


def shown(store: Store, branch: str, name: str = "s.out") -> dict[str, str]:
    return content(store.dataset(name).branch(branch))


def test_f07_first_build_on_a_new_branch_reads_four_to_five_and_so_does_master(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        built_up_to_three(store)
        plan = store.decide(["s.out"], branch="feature", fallback=["master"])
        assert str(plan.decisions[0].incremental) == "incremental: reads s.in 4..5"

        assert copied(store, **FEATURE) == [Copied("s.out", True, ("f4", "f5"))]
        assert shown(store, "feature") == {f"f{n}": str(n) for n in range(1, 6)}
        assert shown(store, "master") == {f"f{n}": str(n) for n in range(1, 4)}
        assert copied(store, adopt="off") == [Copied("s.out", True, ("f4", "f5"))]
        assert shown(store, "master") == shown(store, "feature")
        assert store.dataset("s.out").branch("master").history()[0].type == "APPEND"
        assert_store_sound(store)


def test_f07_new_semantic_version_on_feature_is_built_in_full_only_there(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        built_up_to_three(store)
        publish(store, "feature", spec(logic="!", semantic_version=2))
        everything = tuple(f"f{n}" for n in range(1, 6))
        assert copied(store, **FEATURE) == [Copied("s.out", False, everything)]
        newest = store.dataset("s.out").branch("feature").history()[0]
        assert newest.type == "SNAPSHOT"
        reason = newest.provenance["incremental"]["reason"]
        assert reason == "semantic_version is 2, and the last build had 1"
        assert copied(store) == [Copied("s.out", True, ("f4", "f5"))]
        put(store.dataset("s.in").branch("master"), f6="6")
        assert copied(store, **FEATURE) == [Copied("s.out", True, ("f6",))]
        assert_store_sound(store)


def test_f07_master_adopts_what_feature_added_and_goes_on_from_there(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        given = built_up_to_three(store)
        copied(store, **FEATURE)
        assert states(build(store, "s.out")) == {"s.out": "adopted"}
        assert shown(store, "master") == shown(store, "feature")
        put(given, f6="6")
        assert copied(store) == [Copied("s.out", True, ("f6",))]
        assert shown(store, "master")["f1"] == "1"
        assert_store_sound(store)


@pytest.mark.parametrize("atomic", [False, True])
def test_f07_chain_of_incremental_jobs_is_incremental_and_then_adopted_as_a_whole(
    made_catalog_url: str, tmp_path: Path, atomic: bool
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        publish(store, "master", spec(), spec(outputs="s.end", read="s.out"))
        given = files_branch(store, "s.in")
        put(given, f1="1")
        copied(store, "s.end", atomic=atomic)
        put(given, f2="2")
        both = [Copied("s.out", True, ("f2",)), Copied("s.end", True, ("f2",))]
        assert copied(store, "s.end", atomic=atomic, **FEATURE) == both
        assert set(states(build(store, "s.end", atomic=atomic)).values()) == {"adopted"}
        assert shown(store, "master", "s.end") == {"f1": "1", "f2": "2"}
        put(given, f3="3")
        assert [one.paths for one in copied(store, "s.end", atomic=atomic)] == [("f3",), ("f3",)]
        assert_store_sound(store)


def test_f07_retry_starts_again_from_what_the_output_held(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        built_up_to_three(store)
        jobs = CopyJobs(store=store, failing={"s.out": 1})
        outcome = build(store, "s.out", jobs=jobs, retries=1)
        assert (outcome.state, outcome.jobs[0].attempts) == (BuildState.SUCCEEDED, 2)
        assert shown(store, "master") == {f"f{n}": str(n) for n in range(1, 6)}
        assert_store_sound(store)


@pytest.mark.parametrize("atomic", [False, True])
def test_f07_job_of_an_adopted_and_a_computed_input_is_incremental(
    made_catalog_url: str, tmp_path: Path, atomic: bool
) -> None:
    declared: dict[str, Any] = {"incremental": IncrementalSpec(require_incremental=True)}
    with new_store(made_catalog_url, tmp_path) as store:
        publish(
            store,
            "master",
            spec(),
            spec(outputs="s.other", read="s.more"),
            files_spec("s.end", "s.out", "s.other", logic="", **declared),
        )
        given, more = files_branch(store, "s.in"), files_branch(store, "s.more")
        put(given, f1="1")
        put(more, g1="1")
        copied(store, "s.end")
        put(given, f2="2")
        copied(store, **FEATURE)
        put(more, g2="2")
        found = copied(store, "s.end", atomic=atomic)
        assert sorted(found, key=lambda one: one.output) == [
            Copied("s.end", True, ("f2", "g2")),
            Copied("s.other", True, ("g2",)),
        ]
        assert shown(store, "master", "s.end").keys() == {"f1", "f2", "g1", "g2"}
        assert_store_sound(store)
