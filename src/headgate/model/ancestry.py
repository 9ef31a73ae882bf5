"""Which chains of fallbacks fit the ancestry of a dataset's branches; pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from headgate.errors import AncestryViolated, InvalidChain
from headgate.model.ids import TransactionId
from headgate.model.names import DatasetName

# Where a transaction lies in a history, in O(log n): depth plus a skip pointer.
#
# The skip pointers follow the skew-binary numbers: from any transaction an ancestor at a given
# depth is reached in a logarithmic number of hops, and each new transaction needs only its
# parent's two hops to set its own.


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


class BranchRecord(Protocol):
    """What the rule needs to know of one branch; `nouns.Branch` is one."""

    @property
    def name(self) -> str: ...

    @property
    def parent(self) -> str | None: ...

    @property
    def remembered_chain(self) -> tuple[str, ...]: ...


@dataclass(frozen=True, kw_only=True)
class Lineage:
    """The ancestry record of one branch, without the rest of it."""

    name: str
    parent: str | None = None
    remembered_chain: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class OutputPlace:
    """Where a build writes an output: on a branch that exists, off a parent, or as a new root.

    A new root remembers the fallbacks that the build wanted and did not find.
    """

    branch: str
    exists: bool
    parent: str | None
    remembered_chain: tuple[str, ...] = ()


def make_chain(branch: str, fallbacks: Sequence[str]) -> tuple[str, ...]:
    """The build branch and its fallbacks, each named once."""
    chain = (branch, *fallbacks)
    for position, name in enumerate(chain):
        if name in chain[:position]:
            raise InvalidChain(chain=chain, repeated=name)
    return chain


def by_name(branches: Iterable[BranchRecord]) -> dict[str, BranchRecord]:
    return {branch.name: branch for branch in branches}


def ancestors_of(name: str, branches: Mapping[str, BranchRecord]) -> list[str]:
    """All proper ancestors, nearest first.

    They are found by parent; at a root that a build made, the branches of its remembered chain
    stand for the parent it would have had, however they came to be.
    """
    found: list[str] = []
    waiting = [name]
    while waiting:
        for above in _directly_above(waiting.pop(0), branches):
            if above != name and above not in found:
                found.append(above)
                waiting.append(above)
    return found


def first_bad_pair(
    chain: Sequence[str], branches: Mapping[str, BranchRecord]
) -> tuple[str, str] | None:
    """Of the chain's branches that exist, the first two of which the later is no ancestor."""
    existing = [name for name in chain if name in branches]
    for nearer, farther in pairwise(existing):
        if branches[nearer].parent != farther and farther not in ancestors_of(nearer, branches):
            return nearer, farther
    return None


def require_compatible(
    dataset: DatasetName, chain: Sequence[str], branches: Mapping[str, BranchRecord]
) -> None:
    """Raises where the chain does not follow the dataset's ancestry, naming the pair."""
    pair = first_bad_pair(chain, branches)
    if pair is not None:
        ancestry = [pair[0], *ancestors_of(pair[0], branches)]
        raise AncestryViolated(
            dataset=str(dataset),
            chain=chain,
            ancestry=ancestry,
            pair=pair,
            below=pair[0] in ancestors_of(pair[1], branches),
        )


def output_place(chain: Sequence[str], branches: Mapping[str, BranchRecord]) -> OutputPlace:
    """The build branch if it is there, else a new one off the first fallback that is."""
    branch, *fallbacks = chain
    if branch in branches:
        return OutputPlace(branch=branch, exists=True, parent=branches[branch].parent)
    parent = next((name for name in fallbacks if name in branches), None)
    return OutputPlace(
        branch=branch,
        exists=False,
        parent=parent,
        remembered_chain=tuple(fallbacks) if parent is None else (),
    )


def without(deleted: str, branches: Mapping[str, BranchRecord]) -> dict[str, Lineage]:
    """The records after a branch is deleted: every ancestry that led through it still holds.

    Its children go to its parent, or become roots that remember what it remembered; a root that
    remembered it also remembers what was above it.
    """
    gone = branches[deleted]
    above = (gone.parent,) if gone.parent is not None else gone.remembered_chain
    left: dict[str, Lineage] = {}
    for name, record in branches.items():
        if name == deleted:
            continue
        parent, remembered = record.parent, record.remembered_chain
        if parent == deleted:
            parent = gone.parent
            remembered = _joined(remembered, gone.remembered_chain) if parent is None else ()
        elif deleted in remembered:
            position = remembered.index(deleted) + 1
            remembered = _joined(remembered[:position], above, remembered[position:])
        left[name] = Lineage(name=name, parent=parent, remembered_chain=remembered)
    return left


def _directly_above(name: str, branches: Mapping[str, BranchRecord]) -> list[str]:
    record = branches[name]
    above = (record.parent,) if record.parent is not None else record.remembered_chain
    return [wanted for wanted in above if wanted in branches]


def _joined(*chains: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for chain in chains for name in chain))
