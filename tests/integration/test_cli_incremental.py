"""Output of `plan`, `build`, `builds show` and `history` for incremental jobs, and `--param`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import headgate
from headgate.model.jobspecs import IncrementalSpec, ParameterSpec
from headgate.store.embedded import Store
from tests.support.cli import Cli, new_store_cli
from tests.support.copying import CopyJobs
from tests.support.pipelines import build, files_spec, publish
from tests.support.stores import files_branch, put


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    return new_store_cli(tmp_path, monkeypatch, capsys)


@pytest.fixture
def store(cli: Cli) -> Iterator[Store]:
    """A store whose `s.out` was built in full, then incrementally from the second of `s.in`."""
    made = files_spec(
        "s.out",
        "s.in",
        incremental=IncrementalSpec(),
        parameters=(ParameterSpec(name="days", kind="integer", default=1),),
    )
    with headgate.open(cli.directory) as store:
        publish(store, "master", made)
        given = files_branch(store, "s.in")
        for name in ("a", "b"):
            put(given, **{name: "1"})
            build(store, "s.out", jobs=CopyJobs(store=store))
        yield store


def test_history_numbers_transactions_and_says_how_much_each_build_read(
    cli: Cli, store: Store
) -> None:
    second, first = cli.json("history", "s.out")
    assert (first["number"], second["number"]) == (1, 2)
    assert first["incremental"]["reason"] == "s.out was never built here"
    [read] = second["incremental"]["reads"]
    assert (read["dataset"], read["numbers"]) == ("s.in", [2, 2])
    told = cli.ok("history", "s.out").out
    assert "incremental: reads s.in 2" in told
    assert "full: s.out was never built here" in told


def test_plan_says_what_would_be_read_or_what_broke_it(cli: Cli, store: Store) -> None:
    put(store.dataset("s.in").branch("master"), c="1")
    assert "incremental: reads s.in 3" in cli.ok("plan", "s.out", "-b", "master").out
    by = put(store.dataset("s.in").branch("master"), a="changed")
    [job] = cli.json("plan", "s.out", "-b", "master")["jobs"]
    assert (job["incremental"]["extent"], job["incremental"]["broken_by"]) == ("full", by)
    assert f"full: {by} overwrote part of s.in" in cli.ok("plan", "s.out", "-b", "master").out


def test_builds_show_carries_the_reason(cli: Cli, store: Store) -> None:
    newest, oldest = cli.json("builds", "list")
    [job] = cli.json("builds", "show", oldest["build"])["jobs"]
    assert job["incremental"]["reason"] == "s.out was never built here"
    assert "incremental: reads s.in 2" in cli.ok("builds", "show", newest["build"]).out


def test_full_and_parameters_are_planned_from_the_command_line(cli: Cli, store: Store) -> None:
    [job] = cli.json("plan", "s.out", "-b", "master", "--full")["jobs"]
    assert (job["reason"], job["incremental"]["reason"]) == ("forced", "a full build was requested")
    [job] = cli.json("plan", "s.out", "-b", "master", "--param", "days=2")["jobs"]
    assert job["reason"] == "stale-parameters"
    wrong = ("plan", "s.out", "-b", "master", "--param")
    assert cli.error(*wrong, "days=soon", code=2) == "invalid_parameter"
    assert cli.error(*wrong, "weeks=2", code=2) == "invalid_parameter"
    assert cli.error(*wrong, "days", code=2) == "invalid"
