"""P04: two attempts pass the head check together and resume in either order."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from headgate.model.failpoints import Failpoint
from headgate.testing.failpoints import pause_at
from tests.support.oracle import assert_store_sound
from tests.support.processes import finish, let_go, running, wait_until_at
from tests.support.tasks import (
    Workshop,
    attempt,
    defined,
    input_of,
    new_workshop,
    put_files,
    shown,
    writes,
)

_NAMES = ("one", "two")
_HERE = Failpoint.TASK_HEAD_READ


def _attempt(workshop: Workshop, given: str, name: str) -> None:
    """Run an attempt that pauses between the head check and the move; entry point of a process."""
    flags = workshop.directory / name
    pause_at(_HERE, flags=flags)
    with workshop.open() as store:
        mine = attempt(workshop, store, key=name)
        done = mine.run(defined(writes(**{name: "x", "both": name})), input_of(given))
    (flags / "outcome").write_text(f"{done.status.value} {done.code}")


@pytest.mark.parametrize("order", [_NAMES, _NAMES[::-1]], ids=["in turn", "reversed"])
def test_p04_attempts_paused_before_the_move_move_the_branch_once(
    made_catalog_url: str, tmp_path: Path, order: tuple[str, str]
) -> None:
    workshop = new_workshop(made_catalog_url, tmp_path)
    with workshop.open() as store, ExitStack() as started:
        given = put_files(store, a="1")
        processes = {}
        for name in _NAMES:
            (tmp_path / name).mkdir()
            processes[name] = started.enter_context(running(_attempt, workshop, given, name))
            wait_until_at(_HERE, tmp_path / name)
        for name in order:
            let_go(_HERE, tmp_path / name)
            assert finish(processes[name]) == 0
        first, second = ((tmp_path / name / "outcome").read_text() for name in order)
        assert (first, second) == ("COMPLETED None", "FAILED publish_fence")
        assert shown(store) == {"a": "1", order[0]: "x", "both": order[0]}
        assert workshop.attempts_left() == []
        assert_store_sound(store)
