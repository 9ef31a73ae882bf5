"""Reduction of a failing run to few steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

S = TypeVar("S")


def reduce_steps(
    steps: Sequence[S], fails: Callable[[Sequence[S]], bool], *, tries: int
) -> list[S]:
    """Remove steps as long as the run fails: first halves, then ever smaller parts.

    :param tries: runs to make at most.
    """
    kept, size = list(steps), max(1, len(steps) // 2)
    while True:
        is_smaller, at = False, 0
        while at < len(kept):
            if tries == 0:
                return kept
            tries -= 1
            without = kept[:at] + kept[at + size :]
            if fails(without):
                kept, is_smaller = without, True
            else:
                at += size
        if size == 1 and not is_smaller:
            return kept
        size = max(1, size // 2)
