"""Where a transaction lies in a history, in O(log n): depth plus a skip pointer.

The skip pointers follow the skew-binary numbers: from any transaction an ancestor at a given
depth is reached in a logarithmic number of hops, and each new transaction needs only its
parent's two hops to set its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headgate.model.ids import TransactionId


@dataclass(frozen=True, kw_only=True)
class Step:
    """What the rules need to know of a transaction."""

    id: TransactionId
    parent: TransactionId | None
    depth: int
    jump: TransactionId | None


Lookup = Callable[[TransactionId], Step]


def next_step_pointers(parent: Step | None, lookup: Lookup) -> tuple[int, TransactionId | None]:
    """Depth and skip pointer of a transaction whose parent this is."""
    if parent is None:
        return 0, None
    if parent.jump is None:
        return parent.depth + 1, parent.id
    jump = lookup(parent.jump)
    if jump.jump is not None:
        far = lookup(jump.jump)
        if parent.depth - jump.depth == jump.depth - far.depth:
            return parent.depth + 1, far.id
    return parent.depth + 1, parent.id


def ancestor_at_depth(start: Step, depth: int, lookup: Lookup) -> Step | None:
    """The transaction at that depth on the way from `start` to the beginning."""
    if depth > start.depth or depth < 0:
        return None
    here = start
    while here.depth > depth:
        jump = lookup(here.jump) if here.jump is not None else None
        if jump is not None and jump.depth >= depth:
            here = jump
        elif here.parent is not None:
            here = lookup(here.parent)
        else:
            return None
    return here


def is_in_history(candidate: Step, newest: Step | None, lookup: Lookup) -> bool:
    """Whether `candidate` is `newest` or one of its ancestors."""
    if newest is None:
        return False
    found = ancestor_at_depth(newest, candidate.depth, lookup)
    return found is not None and found.id == candidate.id


def common_ancestor(one: Step, other: Step, lookup: Lookup) -> Step | None:
    """The newest transaction that is in both histories; None where they never met."""
    depth = min(one.depth, other.depth)
    left = ancestor_at_depth(one, depth, lookup)
    right = ancestor_at_depth(other, depth, lookup)
    while left is not None and right is not None and left.id != right.id:
        # At equal depths skip pointers lead to equal depths, so both sides stay level.
        if left.jump is not None and left.jump != right.jump and right.jump is not None:
            left, right = lookup(left.jump), lookup(right.jump)
        else:
            left = lookup(left.parent) if left.parent is not None else None
            right = lookup(right.parent) if right.parent is not None else None
    return left if left is not None and right is not None else None
