"""Simulate clients of one store under faults, and check every promise after every step.

`make simulate ARGS="--seed N --steps M --database sqlite|postgres"` executes the code of the
product in processes of which one runs at a time, as the seed chooses. A run that breaks a promise
is reduced to few steps, and printed with the command that repeats it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.postgres import running_postgres
from tests.support.simulation.reduction import reduce_steps
from tests.support.simulation.steps import Step, choose, read_steps, write_steps
from tests.support.simulation.twins import TWINS
from tests.support.simulation.witness import Violation
from tests.support.simulation.world import LeaveOut, Stage, Tally, replay

# A new store for each so many steps: a check takes longer the more was published.
EPISODE_STEPS = 250
_REDUCING_RUNS = 120


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="make simulate", description="Simulate clients of one store under faults."
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--database", choices=["sqlite", "postgres"], default="sqlite")
    parser.add_argument("--episode", type=int, default=0, help="first episode of the seed")
    parser.add_argument("--replay", type=Path, help="file of steps, in place of a seed")
    parser.add_argument("--twin", choices=sorted(TWINS), help="leave out one rule of the product")
    parser.add_argument("--verbose", action="store_true", help="print what was executed")
    given = parser.parse_args(arguments)
    twin = TWINS[given.twin].leave_out if given.twin else None
    tally, began = Tally(), time.monotonic()
    with open_stage(given.database) as stage:
        failed = (
            _replay_file(stage, given.replay, tally, twin)
            if given.replay
            else _run(stage, given, tally, twin)
        )
    seconds = time.monotonic() - began
    print(
        f"{tally.steps} steps, {tally.publications} publications, {seconds:.0f} s: "
        f"{'a promise is broken' if failed else 'every promise holds'}"
    )
    if given.verbose:
        _print_tables(tally.kinds, tally.outcomes, tally.boundaries)
    return 1 if failed else 0


def _replay_file(stage: Stage, path: Path, tally: Tally, twin: LeaveOut | None) -> bool:
    violation = replay(stage, read_steps(path), seed=path.stem, tally=tally, twin=twin)
    if violation is not None:
        print(violation)
    return violation is not None


def _run(stage: Stage, given: argparse.Namespace, tally: Tally, twin: LeaveOut | None) -> bool:
    last = given.episode + -(-given.steps // EPISODE_STEPS)
    for episode in range(given.episode, last):
        seed = f"{given.seed}-{episode}"
        if given.twin:
            steps = TWINS[given.twin].episode(episode)
        else:
            steps = list(choose(seed, EPISODE_STEPS))
        violation = replay(stage, steps, seed=seed, tally=tally, twin=twin)
        if violation is not None:
            words = f"--seed {given.seed} --episode {episode} --steps {EPISODE_STEPS}"
            _report(stage, steps, violation, given, words, twin)
            return True
    return False


def _report(
    stage: Stage,
    steps: Sequence[Step],
    violation: Violation,
    given: argparse.Namespace,
    words: str,
    twin: LeaveOut | None,
) -> None:
    """Print a broken promise, and the commands that repeat the run and the reduced run."""
    common = f"--database {given.database}" + (f" --twin '{given.twin}'" if given.twin else "")
    print(f'{violation}\n\nmake simulate ARGS="{words} {common}"', flush=True)
    file = Path(tempfile.gettempdir()) / f"{given.database}-{given.seed}-{os.getpid()}.json"

    def fails(some: Sequence[Step]) -> bool:
        return replay(stage, some, seed=file.stem, tally=Tally(), twin=twin) is not None

    if not fails(steps):
        print("The run did not fail again.")
        return
    reduced = reduce_steps(steps, fails, tries=_REDUCING_RUNS)
    file.write_text(write_steps(reduced))
    print(f'Reduced to {len(reduced)} steps:\nmake simulate ARGS="--replay {file} {common}"')


def _print_tables(*tables: Mapping[str, int]) -> None:
    for table in tables:
        print("\n".join(f"  {count:>7}  {what}" for what, count in sorted(table.items())))
        print()


@contextmanager
def open_stage(database: str) -> Iterator[Stage]:
    """Yield a place for simulated stores: in memory, where the system has such a directory."""
    memory = Path("/dev/shm")
    where = memory if memory.is_dir() and os.access(memory, os.W_OK) else None
    root = Path(tempfile.mkdtemp(prefix="headgate-simulation-", dir=where))
    try:
        if database == "sqlite":
            yield Stage(root, None)
        else:
            with running_postgres() as server:
                yield Stage(root, server)
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    # Without the warnings that libraries print when the interpreter ends.
    os._exit(status)
