"""Each operation is killed at every failpoint that it reaches, and docs/faults.md lists them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.model.failpoints import Failpoint
from tests.support.postgres import PostgresServer
from tests.support.simulation.kills import OPERATIONS, kill, reached
from tests.support.simulation.world import Stage
from tests.support.source import ROOT
from tools.make_faults import ELSEWHERE, KILLS, TARGET, make_faults
from tools.simulate import open_stage


@pytest.fixture(scope="module")
def sqlite_stage() -> Iterator[Stage]:
    with open_stage("sqlite") as stage:
        yield stage


@pytest.fixture(scope="module")
def postgres_stage(
    postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Stage:
    return Stage(tmp_path_factory.mktemp("simulation"), postgres_server)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_operation_killed_at_each_failpoint_keeps_every_promise(
    request: pytest.FixtureRequest, database: str, operation: str
) -> None:
    stage: Stage = request.getfixturevalue(f"{database}_stage")
    points = reached(stage, operation)
    assert points
    for point in points:
        kill(stage, operation, point)


def test_page_lists_the_failpoints_that_each_operation_reaches(sqlite_stage: Stage) -> None:
    points = {name: reached(sqlite_stage, name) for name in OPERATIONS}
    assert TARGET.read_text() == make_faults(points), "run `make faults`"
    killed = {point for found in points.values() for point in found}
    assert killed | set(ELSEWHERE) == set(Failpoint), "a failpoint at which nothing is killed"
    assert not killed & set(ELSEWHERE)


def test_tests_that_the_page_names_exist() -> None:
    assert Path(__file__) == ROOT / KILLS
    assert all((ROOT / test).is_file() for test in ELSEWHERE.values())
