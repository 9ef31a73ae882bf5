"""The simulator finds no broken promise, repeats its runs, and reduces those that fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.catalog import warehouse
from tests.support.postgres import PostgresServer
from tests.support.simulation.reduction import reduce_steps
from tests.support.simulation.steps import TO_END, Step, choose, read_steps, write_steps
from tests.support.simulation.twins import TWINS
from tests.support.simulation.world import Stage, Tally, replay
from tests.support.source import ROOT
from tools.simulate import open_stage

REGRESSIONS = sorted((ROOT / "tests" / "simulations").glob("*.json"))


@pytest.fixture(scope="module")
def sqlite_stage() -> Iterator[Stage]:
    with open_stage("sqlite") as stage:
        yield stage


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    with open_stage(request.param) as stage:
        yield stage


@pytest.mark.parametrize("path", REGRESSIONS, ids=lambda path: path.stem)
def test_steps_that_once_broke_a_promise_break_none(stage: Stage, path: Path) -> None:
    steps = read_steps(path)
    assert replay(stage, steps, seed=path.stem, tally=Tally()) is None


_PUT = (Step("start", 0, verb="put"), Step("go", 0, a=TO_END))


def test_thread_beside_the_turn_is_found(sqlite_stage: Stage) -> None:
    def leave_traces_at_once() -> None:
        warehouse._TRACE_SECONDS = 0.0

    steps = [*_PUT, *_PUT]
    assert replay(sqlite_stage, steps, seed="threads", tally=Tally()) is None
    violation = replay(
        sqlite_stage, steps, seed="threads", tally=Tally(), twin=leave_traces_at_once
    )
    assert violation is not None and "died" in str(violation)


@pytest.mark.parametrize("verb", ["put", "remove", "reset"])
def test_request_published_twice_is_found_although_its_first_reply_was_lost(
    stage: Stage, verb: str
) -> None:
    steps = [
        *_PUT,
        *_PUT,
        Step("start", 0, c=1, verb=verb, fault="lost"),
        Step("go", 0, a=TO_END),
        # The branch changes meanwhile.
        Step("start", 1, c=5, verb="put"),
        Step("go", 1, a=TO_END),
        Step("again", 0, a=1),
        Step("go", 0, a=TO_END),
    ]
    assert replay(stage, steps, seed=verb, tally=Tally()) is None
    twin = TWINS["operation looked up last"].leave_out
    violation = replay(stage, steps, seed=verb, tally=Tally(), twin=twin)
    assert violation is not None and "was published in" in str(violation)


def test_builds_of_a_simulation_run_on_other_branches_than_master(sqlite_stage: Stage) -> None:
    with sqlite_stage.world(seed="branches", tally=Tally()) as world:
        # Of the names of branches, the fourth is `dev`.
        world.run([Step("start", 0, a=1, b=3, c=1, verb="build"), Step("go", 0, a=TO_END)])
        moved = {name for name, view in world.witness.views().items() if view is not None}
        assert ("p.c", "dev") in moved and ("p.c", "master") not in moved
        world.end()


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_directory_that_another_writer_just_made_is_durable_at_the_reply(
    sqlite_stage: Stage, nth: int
) -> None:
    made = "disk.directory_made"
    for crash in range(6):
        with sqlite_stage.world(seed="directory", tally=Tally()) as world:
            world.run_until(Step("start", 0, verb="put"), made)
            for _ in range(nth - 1):
                world.run_until(Step("go", 0, a=1), made)
            # The same content, in another dataset.
            replied = world.witness.number
            world.run([Step("start", 1, a=1, verb="put"), Step("go", 1, a=500)])
            assert world.witness.number == replied + 1
            world.run([Step("crash", a=crash)])


def test_run_of_a_seed_is_repeated_step_by_step(sqlite_stage: Stage) -> None:
    steps = list(choose("again", 60))
    runs = [Tally(), Tally()]
    for tally in runs:
        assert replay(sqlite_stage, steps, seed="again", tally=tally) is None
    assert runs[0] == runs[1]
    assert runs[0].publications > 0


def test_simulation_on_postgresql_keeps_every_promise(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    tally = Tally()
    steps = list(choose("postgresql-1", 60))
    stage = Stage(tmp_path, postgres_server)
    assert replay(stage, steps, seed="postgresql-1", tally=tally) is None
    assert tally.publications > 0


def test_steps_read_back_are_the_steps_that_were_written(tmp_path: Path) -> None:
    steps = list(choose("1", 50))
    (tmp_path / "steps.json").write_text(write_steps(steps))
    assert read_steps(tmp_path / "steps.json") == steps


def test_failing_run_is_reduced_to_the_steps_that_it_needs() -> None:
    steps = [Step("go", a=number) for number in range(100)]
    needed = {steps[3], steps[50], steps[97]}
    reduced = reduce_steps(steps, lambda some: needed <= set(some), tries=200)
    assert set(reduced) == needed
