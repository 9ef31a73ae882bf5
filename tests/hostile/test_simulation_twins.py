"""The simulator finds each broken twin of the product: it could find such a fault."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.simulation.twins import TWINS
from tests.support.simulation.world import Stage, Tally, replay
from tools.simulate import open_stage

_EPISODES = 40


@pytest.fixture(scope="module")
def sqlite_stage() -> Iterator[Stage]:
    with open_stage("sqlite") as stage:
        yield stage


@pytest.mark.parametrize("name", TWINS)
def test_broken_twin_is_found_within_a_bounded_number_of_steps(
    sqlite_stage: Stage, name: str
) -> None:
    twin = TWINS[name]
    for number in range(_EPISODES):
        steps, seed = twin.episode(number), f"twin-{number}"
        if replay(sqlite_stage, steps, seed=seed, tally=Tally(), twin=twin.leave_out):
            return
    pytest.fail(f"{_EPISODES} episodes found nothing")
