"""Steps of a simulation: how a seed chooses them, and their form in JSON."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SECOND_US = 1_000_000
DAY_US = 24 * 3600 * SECOND_US
ACTORS = 4
# More boundaries than any request passes.
TO_END = 1_000_000
# Weight of each verb: see `verbs.py`.
VERBS: Mapping[str, int] = {
    "put": 20,
    "remove": 4,
    "commit": 8,
    "unit": 8,
    "leave": 3,
    "fork": 4,
    "delete": 3,
    "restore": 2,
    "reset": 6,
    "tag": 2,
    "untag": 1,
    "read": 6,
    "moment": 3,
    "build": 10,
    "task": 10,
    "recover": 4,
    "clean": 8,
    "load": 2,
}
# Faults of a process while it runs.
FAULTS = ("cut", "cut before commit", "cut after commit", "unreachable", "full")
_SHARES: Mapping[str, float] = {
    "go": 62,
    "start": 26,
    "again": 4,
    "clock": 3,
    "kill": 3,
    "skew": 0.5,
    "crash": 1.2,
}
_KEPT_SHARE = 0.6
_FAULT_SHARE = 0.04
_LOST_SHARE = 0.05
_WRONG_CLOCK_SHARE = 0.1
# Boundaries that a process passes in one step.
_BOUNDARIES = (1, 1, 2, 5, 12, 40, 150)


@dataclass(frozen=True)
class Step:
    """One step. The meaning of `a`, `b` and `c` depends on its kind.

    `start`: a verb with choices a, b and c. `go`: a is the number of boundaries to pass. `again`:
    repeat a request; a counts back from the newest that has a key. `clock`: a is the time that
    passes and b a jump of the database's clock, both in microseconds. `crash`: a is the seed of
    what the disk forgets. `skew`: a is the offset of the process's own clock. `kill` has none.
    """

    kind: str
    actor: int = 0
    a: int = 0
    b: int = 0
    c: int = 0
    verb: str = ""
    # While this step runs; of a request, `lost` means that its reply never arrives.
    fault: str = ""

    def to_json(self) -> list[object]:
        return [self.kind, self.actor, self.a, self.b, self.c, self.verb, self.fault]


@dataclass(frozen=True, kw_only=True)
class Focus:
    """A part of the state space: few verbs, and few values of their choices."""

    verbs: tuple[str, ...]
    # Of the choices a, b and c.
    ranges: tuple[range, range, range] = (range(1000), range(1000), range(1000))
    # Share of the steps at which time passes.
    time_share: float = 3
    has_faults: bool = True
    prelude: tuple[Step, ...] = ()


def choose(seed: str, count: int, focus: Focus | None = None) -> Iterator[Step]:
    """Yield the steps of a seed.

    Without a focus, each seed leaves out some verbs, datasets and branches, so that the others
    meet more often.
    """
    chance = random.Random(seed)
    here = focus or _choose_focus(chance)
    yield from here.prelude
    shares = {**_SHARES, "clock": here.time_share}
    if not here.has_faults:
        shares |= dict.fromkeys(("clock", "kill", "skew", "crash"), 0.0)
    for _ in range(count - len(here.prelude)):
        [kind] = chance.choices(list(shares), list(shares.values()))
        yield _choose_one(chance, kind, chance.randrange(ACTORS), here)


def _choose_focus(chance: random.Random) -> Focus:
    kept = tuple(verb for verb in VERBS if chance.random() < _KEPT_SHARE)
    a, b, c = (chance.choice(most) for most in ((1, 2, 1000), (1, 2, 1000), (3, 1000, 1000)))
    return Focus(
        verbs=kept or tuple(VERBS),
        ranges=(range(a), range(b), range(c)),
        time_share=chance.choice((3, 3, 10)),
    )


def _choose_one(chance: random.Random, kind: str, actor: int, focus: Focus) -> Step:
    match kind:
        case "go":
            is_faulty = focus.has_faults and chance.random() < _FAULT_SHARE
            fault = chance.choice(FAULTS) if is_faulty else ""
            return Step(kind, actor, a=chance.choice(_BOUNDARIES), fault=fault)
        case "start":
            [verb] = chance.choices(focus.verbs, [VERBS[verb] for verb in focus.verbs])
            lost = "lost" if chance.random() < _LOST_SHARE else ""
            a, b, c = map(chance.choice, focus.ranges)
            return Step(kind, actor, a, b, c, verb, lost)
        case "again":
            return Step(kind, actor, a=chance.randrange(4))
        case "clock":
            return _choose_clock(chance)
        case "crash":
            return Step(kind, a=chance.randrange(1 << 30))
        case "skew":
            return Step(kind, actor, a=chance.choice((-240, -30, 0, 30, 240)) * SECOND_US)
    return Step(kind, actor)


def _choose_clock(chance: random.Random) -> Step:
    if chance.random() < _WRONG_CLOCK_SHARE:
        # A clock that was wrong, or that an administrator sets.
        return Step("clock", b=chance.choice((-600, -20, 20, 600)) * SECOND_US)
    passes = chance.choice((1, 30, 400, 1200, 4 * 3600, 26 * 3600, 5 * 24 * 3600))
    return Step("clock", a=passes * SECOND_US)


def write_steps(steps: Sequence[Step]) -> str:
    """Return steps as a JSON document with one step a line."""
    return "[\n" + ",\n".join(json.dumps(step.to_json()) for step in steps) + "\n]\n"


def read_steps(path: Path) -> list[Step]:
    return [Step(*fields) for fields in json.loads(path.read_text())]
