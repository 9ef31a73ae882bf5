"""The five classes and the decision, as a table: every case there is."""

from __future__ import annotations

from itertools import product

import pytest

from headgate.model.recovery import (
    Classification,
    Decision,
    OutsideState,
    classify,
    decide,
)

FORWARD = Classification.ROLLED_PAST_EXPECTED
NOTHING = Classification.NO_MOVEMENT
ONE = Classification.UNEXPECTED_AT_P1
MANY = Classification.UNEXPECTED_MULTISTEP
WRONG = Classification.INVARIANT_VIOLATION


@pytest.mark.parametrize(
    ("effect", "head", "steps", "expected"),
    [
        ("ours", "ours", 1, FORWARD),
        # An effect of several steps, as a merge may be, is still ours when it is the head.
        ("ours", "ours", 3, FORWARD),
        ("ours", "before", 0, NOTHING),
        (None, "before", 0, NOTHING),
        # Never confirmed: it may be ours, and nobody can prove it.
        (None, "ours", 1, ONE),
        ("ours", "theirs", 1, ONE),
        ("ours", "theirs", 2, MANY),
        (None, "theirs", 7, MANY),
        ("ours", "theirs", None, WRONG),
        ("ours", None, None, WRONG),
        (None, None, None, WRONG),
        # Our own effect, on a history that what we expected is no part of.
        ("ours", "ours", None, WRONG),
    ],
)
def test_classify_compares_head_expected_and_effect(
    effect: str | None, head: str | None, steps: int | None, expected: Classification
) -> None:
    state = OutsideState(expected="before", effect=effect, head=head, steps_past_expected=steps)
    assert classify(state) is expected


@pytest.mark.parametrize("classes", list(product(Classification, repeat=2)))
def test_decide_on_two_targets_is_all_or_nothing(classes: tuple[Classification, ...]) -> None:
    if set(classes) == {FORWARD}:
        expected = Decision.ROLL_FORWARD
    elif set(classes) <= {FORWARD, NOTHING}:
        expected = Decision.ROLL_BACK
    else:
        expected = Decision.STOP
    assert decide(classes) is expected


def test_decide_without_an_outside_target_only_publishes() -> None:
    assert decide(()) is Decision.ROLL_FORWARD
