"""F08: changes that keep a job incremental, changes that force a full read, and the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headgate.model.ids import TransactionId
from headgate.model.jobspecs import IncrementalSpec
from headgate.model.nouns import BuildState
from headgate.store.datasets import BranchHandle
from headgate.store.embedded import Store
from tests.support.copying import Copied, CopyJobs
from tests.support.oracle import assert_store_sound
from tests.support.pipelines import build, files_spec, publish
from tests.support.stores import content, files_branch, new_store, put


def built(store: Store, **declared: Any) -> BranchHandle:
    """An input with two files, from which `s.out` was built."""
    publish(store, "master", files_spec("s.out", "s.in", incremental=IncrementalSpec(**declared)))
    given = files_branch(store, "s.in")
    put(given, a="1", b="2")
    run(store)
    return given


def run(store: Store, **options: Any) -> tuple[list[Copied], dict[str, Any]]:
    """Return the reads of the jobs, and the report of the only one."""
    jobs = CopyJobs(store=store)
    outcome = build(store, "s.out", jobs=jobs, **options)
    return jobs.copied, outcome.jobs[0].to_json()


def change(given: BranchHandle, type: str, *removed: str, **files: str) -> TransactionId:
    with given.transaction(type) as transaction:
        for path, text in files.items():
            transaction.write(path, text.encode())
        if removed:
            transaction.remove(*removed)
    view = given.load().view
    assert view is not None
    return view


@pytest.mark.parametrize("type", ["APPEND", "UPDATE"])
def test_f08_append_and_additive_update_are_incremental(
    made_catalog_url: str, tmp_path: Path, type: str
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        given = built(store, require_incremental=True)
        change(given, type, c="3")
        assert run(store)[0] == [Copied("s.out", True, ("c",))]
        assert content(store.dataset("s.out").branch("master")).keys() == {"a", "b", "c"}
        assert_store_sound(store)


@pytest.mark.parametrize(
    ("type", "removed", "files", "reason"),
    [
        ("UPDATE", (), {"a": "changed"}, "{by} overwrote part of s.in"),
        ("DELETE", ("a",), {}, "{by} deleted from s.in"),
        ("SNAPSHOT", (), {"a": "1", "z": "26"}, "{by} replaced all of s.in"),
    ],
)
def test_f08_what_takes_away_is_read_in_full_and_named(
    made_catalog_url: str,
    tmp_path: Path,
    type: str,
    removed: tuple[str, ...],
    files: dict[str, str],
    reason: str,
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        given = built(store)
        by = change(given, type, *removed, **files)
        put(given, after="4")
        [copied], report = run(store)
        assert not copied.incremental
        assert report["incremental"]["broken_by"] == by
        assert report["incremental"]["reason"] == reason.format(by=by)
        assert content(store.dataset("s.out").branch("master")).keys() == content(given).keys()
        put(given, more="5")
        assert run(store)[0] == [Copied("s.out", True, ("more",))]
        assert_store_sound(store)


def test_f08_required_incremental_fails_instead_and_leaves_the_output_alone(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        given = built(store, require_incremental=True)
        before = store.dataset("s.out").branch("master").load()
        by = change(given, "UPDATE", a="changed")
        plan = store.decide(["s.out"], branch="master")
        assert plan.decisions[0].incremental is not None
        assert plan.decisions[0].incremental.refused
        jobs = CopyJobs(store=store)
        outcome = build(store, "s.out", jobs=jobs)
        assert (outcome.state, jobs.copied) == (BuildState.FAILED, [])
        error = outcome.jobs[0].error or {}
        assert (error["code"], by in error["message"]) == ("not_incremental", True)
        assert store.dataset("s.out").branch("master").load() == before
        assert_store_sound(store)


def test_f08_snapshot_of_a_declared_snapshot_input_is_incremental(
    made_catalog_url: str, tmp_path: Path
) -> None:
    declared = IncrementalSpec(snapshot_inputs=("s_in",), require_incremental=True)
    with new_store(made_catalog_url, tmp_path) as store:
        publish(store, "master", files_spec("s.out", "s.in", "s.more", incremental=declared))
        given, more = files_branch(store, "s.in"), files_branch(store, "s.more")
        put(given, a="1")
        put(more, b="2")
        run(store)
        change(given, "SNAPSHOT", x="24")
        put(more, c="3")
        assert run(store)[0] == [Copied("s.out", True, ("c", "x"))]


def test_f08_last_read_that_a_reset_took_off_is_read_in_full(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        given = built(store)
        first = given.load().view
        assert first is not None
        gone = put(given, c="3")
        run(store)
        given.reset(to=first)
        put(given, d="4")
        [copied], report = run(store)
        assert copied == Copied("s.out", False, ("a", "b", "d"))
        assert report["incremental"]["broken_by"] == gone


def test_f08_deletes_pass_where_retention_is_allowed(made_catalog_url: str, tmp_path: Path) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        given = built(store, require_incremental=True, allow_retention=True)
        change(given, "DELETE", "a")
        assert run(store)[1]["incremental"]["extent"] == "incremental"
        assert content(store.dataset("s.out").branch("master")).keys() == {"a", "b"}
        change(given, "DELETE", "b")
        by = put(given, b="other")
        _, report = run(store)
        assert report["error"]["code"] == "not_incremental"
        assert report["incremental"]["broken_by"] == by


def test_f08_output_that_a_person_changed_is_built_in_full(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        given = built(store)
        by = put(store.dataset("s.out").branch("master"), mine="!")
        put(given, c="3")
        [copied], report = run(store)
        assert (copied.incremental, report["incremental"]["broken_by"]) == (False, by)


def test_f08_full_build_can_be_asked_for_and_also_runs_what_is_fresh(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        built(store, require_incremental=True)
        assert run(store)[0] == []
        [copied], report = run(store, full=True)
        assert copied == Copied("s.out", False, ("a", "b"))
        assert (report["reason"], report["incremental"]["extent"]) == ("forced", "full")


def test_f08_transaction_on_the_output_that_changes_nothing_does_not_matter(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        given = built(store, require_incremental=True)
        out = store.dataset("s.out").branch("master")
        change(out, "UPDATE", **content(out))
        put(given, c="3")
        assert run(store)[0] == [Copied("s.out", True, ("c",))]
