"""Turns of writers: one at a time on a branch, with a timeout."""

from __future__ import annotations

import threading

from headgate.files.edits import Turns


def test_turn_of_a_branch_belongs_to_one_writer_at_a_time() -> None:
    turns, inside, most = Turns(), 0, 0
    counted = threading.Lock()

    def write() -> None:
        nonlocal inside, most
        for _ in range(50):
            with turns.take("master", timeout_seconds=60):
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


def test_turn_that_times_out_is_skipped_and_other_branches_are_free() -> None:
    turns = Turns()
    reached = []

    def write() -> None:
        for branch, patience in (("feature", 60.0), ("master", 0.01)):
            with turns.take(branch, timeout_seconds=patience):
                reached.append(branch)

    with turns.take("master", timeout_seconds=60):
        other = threading.Thread(target=write)
        other.start()
        other.join()
    assert reached == ["feature", "master"]


def test_turn_is_reentrant() -> None:
    turns = Turns()
    with (
        turns.take("master", timeout_seconds=60),
        turns.take("master", timeout_seconds=60),
    ):
        pass
