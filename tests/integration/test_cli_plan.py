"""`plan --explain`, held jobs, and targets by pattern, on the command line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import headgate
from headgate.store.embedded import Store
from tests.support.cli import Cli, new_store_cli
from tests.support.pipelines import build, files_spec, publish
from tests.support.stores import files_branch, put


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    return new_store_cli(tmp_path, monkeypatch, capsys)


@pytest.fixture
def store(cli: Cli) -> Iterator[Store]:
    """A store in which `gold.a` and `gold.b` are built from `raw.in`, and `silver.c` is not."""
    with headgate.open(cli.directory) as store:
        put(files_branch(store, "raw.in"), made="1")
        _publish(store)
        build(store, "gold.b")
        yield store


def _publish(store: Store, branch: str = "master", logic: str = "1" * 64) -> None:
    a, b = files_spec("gold.a", "raw.in", logic=logic), files_spec("gold.b", "gold.a")
    publish(store, branch, a, b, files_spec("silver.c"))


def _view(store: Store, name: str, branch: str = "master") -> str:
    return str(store.dataset(name).branch(branch).load().view)


def test_plan_explain_names_the_part_of_the_key_that_differs(cli: Cli, store: Store) -> None:
    before = _view(store, "raw.in")
    after = put(store.dataset("raw.in").branch("master"), made="2")
    _publish(store, logic="2" * 64)
    words = ("plan", "--all", "-b", "master", "--explain")
    jobs = {job["outputs"][0]: job for job in cli.json(*words)["jobs"]}
    assert jobs["gold.a"]["differences"] == [
        {"part": "logic", "dataset": None, "from": "1" * 64, "to": "2" * 64},
        {"part": "input", "dataset": "raw.in", "from": before, "to": after},
    ]
    [moved] = jobs["gold.b"]["differences"]
    assert moved == {
        "part": "input",
        "dataset": "gold.a",
        "from": _view(store, "gold.a"),
        "to": None,
    }
    told = " ".join(cli.ok(*words).out.split())
    assert f"logic changed: {'1' * 12} → {'2' * 12}" in told
    assert f"input raw.in moved: {before} → {after}" in told
    assert f"input gold.a moved: {_view(store, 'gold.a')} → (made by this build)" in told
    assert "it has no version on the chain" in told
    assert "logic changed" not in cli.ok(*words[:-1]).out


def test_plan_explain_names_where_a_result_is_adopted_from(cli: Cli, store: Store) -> None:
    _publish(store, "feature", logic="2" * 64)
    build(store, "gold.a", branch="feature", fallback=["master"])
    _publish(store, logic="2" * 64)
    told = cli.ok("plan", "gold.a", "-b", "master", "--explain").out
    assert f"adopted from feature: gold.a {_view(store, 'gold.a', 'feature')}" in told


def test_plan_and_build_name_the_reset_that_holds_a_job(cli: Cli, store: Store) -> None:
    before = _view(store, "gold.a")
    _publish(store, logic="2" * 64)
    build(store, "gold.a", upstream=False)
    reset = store.dataset("gold.a").branch("master").reset(to=before)
    sentence = f"reset {reset.publication} by {store.settings.actor} at "
    for words in (("plan",), ("plan", "--explain"), ("build",)):
        told = " ".join(cli.ok(*words, "gold.a", "-b", "master").out.split())
        assert "gold.a skipped (held): " in told, words
        assert sentence in told, words
        assert "removed this result of gold.a from master" in told, words
    [job] = cli.json("build", "gold.a", "-b", "master")["jobs"]
    assert (job["state"], job["reason"]) == ("skipped", "held")
    assert job["held"]["publication"] == reset.publication
    last = cli.json("builds", "list")[0]["build"]
    [shown] = cli.json("builds", "show", last)["jobs"]
    assert shown["held"] == job["held"]
    assert f"held (reset {reset.publication})" in cli.ok("builds", "show", last).out


def test_pattern_matches_the_jobspecs_of_the_chain(cli: Cli, store: Store) -> None:
    def planned(*words: str) -> list[str]:
        found = cli.json("plan", *words, "-b", "feature", "--fallback", "master")
        return sorted(name for job in found["jobs"] for name in job["outputs"])

    assert planned("gold.*") == ["gold.a", "gold.b"]
    assert planned("*.c", "gold.a") == ["gold.a", "silver.c"]
    assert planned("--all") == ["gold.a", "gold.b", "silver.c"]
    # A removed mark on the branch ends the fallback.
    publish(store, "feature", files_spec("gold.a", "raw.in"), files_spec("gold.b", "gold.a"))
    publish(store, "feature", files_spec("gold.a", "raw.in"))
    assert planned("gold.?") == ["gold.a"]
    assert store.plan(["gold.*"], branch="master").jobs[0].outputs == ["gold.a"]


def test_pattern_that_matches_nothing_is_an_error(cli: Cli, store: Store) -> None:
    assert cli.error("plan", "gld.*", "-b", "master", code=3) == "jobspec_not_found"
    assert cli.error("build", "gold.*", "gld.*", "-b", "master", code=3) == "jobspec_not_found"
    assert cli.error("plan", "--all", "gold.a", "-b", "master", code=2) == "invalid"
    assert cli.error("build", "-b", "master", code=2) == "invalid"
