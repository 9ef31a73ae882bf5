"""Turns of the writers of files: one queue for each branch."""

from __future__ import annotations

import gc
import weakref

from headgate.catalog.database import Turns


def test_writers_of_a_branch_share_a_queue_and_those_of_others_do_not() -> None:
    turns = Turns()
    master, feature = turns.of("master"), turns.of("feature")
    assert turns.of("master") is master
    assert master is not feature


def test_queue_goes_with_its_last_writer() -> None:
    turns = Turns()
    queue = turns.of("master")
    left = weakref.ref(queue)
    with queue.slot(timeout_seconds=60):
        del queue
        assert turns.of("master") is left()
    gc.collect()
    assert left() is None
