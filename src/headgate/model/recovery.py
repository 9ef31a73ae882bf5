"""What an unfinished operation's outside effects say, and what to do about them; pure.

The five classes are those of the seed: they compare where the outside stands with where the
operation found it and with the effect it made.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

RECOVERY_ACTOR = "headgate:recovery"


class Classification(enum.StrEnum):
    # The outside head is exactly our effect.
    ROLLED_PAST_EXPECTED = "RolledPastExpected"
    # The outside head is where it was before.
    NO_MOVEMENT = "NoMovement"
    # One step past what we expected, and it is not (provably) our effect.
    UNEXPECTED_AT_P1 = "UnexpectedAtP1"
    # Several steps past: somebody built on top, or on something else.
    UNEXPECTED_MULTISTEP = "UnexpectedMultistep"
    # What we expected is not even in the outside's history: something is deeply wrong.
    INVARIANT_VIOLATION = "InvariantViolation"


class Decision(enum.StrEnum):
    ROLL_FORWARD = "roll_forward"
    ROLL_BACK = "roll_back"
    STOP = "stop"


@dataclass(frozen=True, kw_only=True)
class OutsideState:
    """One outside target as recovery finds it."""

    expected: str
    # None until the effect was confirmed: then nothing there is provably ours.
    effect: str | None
    head: str | None
    # Steps from `expected` to the head; None where `expected` is not in its history.
    steps_past_expected: int | None


def classify(state: OutsideState) -> Classification:
    """Where one target stands."""
    if state.head is not None and state.head == state.expected:
        return Classification.NO_MOVEMENT
    if state.head is None or state.steps_past_expected is None:
        return Classification.INVARIANT_VIOLATION
    if state.effect is not None and state.head == state.effect:
        return Classification.ROLLED_PAST_EXPECTED
    if state.steps_past_expected == 1:
        return Classification.UNEXPECTED_AT_P1
    return Classification.UNEXPECTED_MULTISTEP


def decide(classes: Sequence[Classification]) -> Decision:
    """All or nothing: forward if every effect is there, back if each can be undone, else stop."""
    if all(c is Classification.ROLLED_PAST_EXPECTED for c in classes):
        return Decision.ROLL_FORWARD
    undoable = {Classification.ROLLED_PAST_EXPECTED, Classification.NO_MOVEMENT}
    if all(c in undoable for c in classes):
        return Decision.ROLL_BACK
    return Decision.STOP


class Landing(enum.StrEnum):
    """What became of a workspace's move: recovery only records it, and moves nothing."""

    LANDED = "landed"
    NOT_LANDED = "not landed"
    UNKNOWN = "unknown"


def landing_of(
    *, expected: str, planned: str | None, execution: str, head: str | None, mark: str | None
) -> Landing:
    """By the head alone: it is what the move was to make, or bears its mark, or never moved."""
    if head is not None and (head == planned or mark == execution):
        return Landing.LANDED
    return Landing.NOT_LANDED if head == expected else Landing.UNKNOWN
