"""Operations of the simulation, each killed at every failpoint that it reaches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headgate.model.failpoints import Failpoint
from tests.support.simulation.steps import DAY_US, SECOND_US, TO_END, Step
from tests.support.simulation.world import Stage, Tally

_AGED = (
    Step("start", 0, verb="put"),
    Step("go", 0, a=TO_END),
    Step("start", 0, c=1, verb="put"),
    Step("go", 0, a=TO_END),
    Step("clock", a=5 * DAY_US),
)
_CONDEMNED = (
    *_AGED,
    Step("start", 0, verb="clean"),
    Step("go", 0, a=TO_END),
    Step("clock", a=26 * 3600 * SECOND_US),
)
_DELETED = (Step("start", 0, verb="delete"), Step("go", 0, a=TO_END))


@dataclass(frozen=True, kw_only=True)
class Operation:
    """A request of the simulation, and the steps before it."""

    request: Step
    before: tuple[Step, ...] = ()


OPERATIONS: Mapping[str, Operation] = {
    "files put": Operation(request=Step("start", 0, c=5, verb="put")),
    "transaction": Operation(request=Step("start", 0, c=9, verb="commit")),
    "abort": Operation(request=Step("start", 0, c=5, verb="commit")),
    "unit": Operation(request=Step("start", 0, c=9, verb="unit")),
    "branch create": Operation(request=Step("start", 0, a=1, b=1, verb="fork")),
    "branch delete": Operation(request=Step("start", 0, verb="delete")),
    "branch restore": Operation(request=Step("start", 0, verb="restore"), before=_DELETED),
    "branch reset": Operation(request=Step("start", 0, c=1, verb="reset"), before=_AGED),
    "build": Operation(request=Step("start", 0, a=1, c=1, verb="build")),
    "atomic build": Operation(request=Step("start", 0, a=3, c=1, verb="build")),
    "task": Operation(request=Step("start", 0, c=5, verb="task")),
    "load": Operation(request=Step("start", 0, b=1, verb="load")),
    "cleanup": Operation(request=Step("start", 0, verb="clean"), before=_AGED),
    "sweep": Operation(request=Step("start", 0, verb="clean"), before=_CONDEMNED),
}


def reached(stage: Stage, name: str) -> list[Failpoint]:
    """Return the failpoints that an operation reaches, in their order."""
    operation = OPERATIONS[name]
    with stage.world(seed=name, tally=Tally()) as world:
        world.run(operation.before)
        passed = world.run_until(operation.request, None)
    points = dict.fromkeys(passed)
    return [Failpoint(point) for point in points if point in set(Failpoint)]


def kill(stage: Stage, name: str, point: Failpoint) -> None:
    """Kill an operation at a failpoint, recover, and check every promise."""
    operation = OPERATIONS[name]
    with stage.world(seed=f"{name}/{point}", tally=Tally()) as world:
        world.run(operation.before)
        assert world.run_until(operation.request, point)[-1] == point
        world.run([Step("kill", operation.request.actor)])
        # The client repeats its request, at once and after the lease.
        world.run([Step("again", 1), Step("go", 1, a=TO_END)])
        world.run([Step("clock", a=3600 * SECOND_US), Step("start", 2, verb="recover")])
        world.run([Step("go", 2, a=TO_END), Step("again", 1), Step("go", 1, a=TO_END)])
        world.end()
