"""Turns of writers: one at a time on a branch, never a reason to wait for ever."""

from __future__ import annotations

import threading

from headgate.files.publication import Turns


def test_turn_of_one_branch_is_one_writers_at_a_time() -> None:
    turns, inside, most = Turns(), 0, 0
    counted = threading.Lock()

    def write() -> None:
        nonlocal inside, most
        for _ in range(50):
            with turns.taken("master", patience_seconds=60):
                with counted:
                    inside += 1
                    most = max(most, inside)
                with counted:
                    inside -= 1

    writers = [threading.Thread(target=write) for _ in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert most == 1


def test_turn_that_does_not_come_is_not_waited_for_and_others_are_free() -> None:
    turns = Turns()
    reached = []

    def write() -> None:
        for branch, patience in (("feature", 60.0), ("master", 0.01)):
            with turns.taken(branch, patience_seconds=patience):
                reached.append(branch)

    with turns.taken("master", patience_seconds=60):
        other = threading.Thread(target=write)
        other.start()
        other.join()
    assert reached == ["feature", "master"]


def test_turn_of_a_writer_within_its_own_turn_is_its_own() -> None:
    turns = Turns()
    with (
        turns.taken("master", patience_seconds=60),
        turns.taken("master", patience_seconds=60),
    ):
        pass
