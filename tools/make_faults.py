"""Write docs/faults.md from runs of the simulation: `python -m tools.make_faults`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from headgate.model.failpoints import Failpoint
from tests.support.simulation.kills import OPERATIONS, reached
from tools.simulate import open_stage

TARGET = Path(__file__).resolve().parents[1] / "docs" / "faults.md"
KILLS = "tests/hostile/test_faults.py"
# Reached only with a lakeFS server, by tests with a double of one.
ELSEWHERE: Mapping[Failpoint, str] = {
    Failpoint.INTENT_RECORDED: "tests/acceptance/test_o01_killed_at_every_phase.py",
    Failpoint.INTENT_EFFECT_DONE: "tests/acceptance/test_o01_killed_at_every_phase.py",
    Failpoint.INTENT_CLEARED: "tests/acceptance/test_o01_killed_at_every_phase.py",
    Failpoint.RECOVERY_TAKEN_OVER: "tests/acceptance/test_o02_killed_inside_recovery.py",
    Failpoint.RECOVERY_CLASSIFIED: "tests/acceptance/test_o02_killed_inside_recovery.py",
    Failpoint.RECOVERY_SETTLED: "tests/acceptance/test_o02_killed_inside_recovery.py",
}
_PREFACE = f"""\
# Coverage of faults

Written by `make faults` from runs of the operations; do not edit it by hand.

A failpoint is a named place in the source (`headgate.model.failpoints`). The table says which
operation reaches which failpoint. In each cell with a `K`, `{KILLS}` kills a real
process at that place, on SQLite and on PostgreSQL. Then the client repeats its request, the leases
expire, recovery and cleanup run, and the [simulator](guarantees.md#simulation) compares the store
with its model: the publication is whole or absent, nothing acknowledged is lost, every content is
readable, and every branch can be written. An operation with a `·` does not reach the failpoint.
"""


def make_faults(points: Mapping[str, Sequence[Failpoint]]) -> str:
    """Return the document for the failpoints that each operation reaches."""
    used = [point for point in Failpoint if any(point in found for found in points.values())]
    lines = [
        _PREFACE,
        "| failpoint | " + " | ".join(points) + " |",
        "| --- |" + " --- |" * len(points),
    ]
    for point in used:
        cells = ("K" if point in found else "·" for found in points.values())
        lines.append(f"| `{point}` | " + " | ".join(cells) + " |")
    lines += [
        "",
        "These are reached only by publications to a lakeFS server, and by their recovery. Tests",
        "with a double of a server kill processes there:",
        "",
        "| failpoint | test |",
        "| --- | --- |",
        *(f"| `{point}` | `{test}` |" for point, test in ELSEWHERE.items()),
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    with open_stage("sqlite") as stage:
        TARGET.write_text(make_faults({name: reached(stage, name) for name in OPERATIONS}))
    print(f"wrote {TARGET.name}")


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)
