"""Ancestry of transactions and of branches, and the rule that a fallback chain follows it; pure.

Transactions carry a depth and a skip pointer. The skip pointers follow the skew-binary numbers:
an ancestor at a given depth is reached in a logarithmic number of hops, and a new transaction
needs only two hops of its parent to set its own pointer.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from headgate.errors import AncestryViolated, InvalidChain
from headgate.model.ids import TransactionId
from headgate.model.nouns import Branch, DatasetName

# Histories of transactions.


@dataclass(frozen=True, kw_only=True)
class Step:
    """A transaction's place in its history."""

    id: TransactionId
    parent: TransactionId | None
    depth: int
    jump: TransactionId | None


Lookup = Callable[[TransactionId], Step]


def next_step_pointers(parent: Step | None, lookup: Lookup) -> tuple[int, TransactionId | None]:
    """Return the depth and the skip pointer of a transaction with this parent."""
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
    """Return the ancestor of `start` at that depth."""
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
    """Return whether `candidate` is `newest` or one of its ancestors."""
    if newest is None:
        return False
    found = ancestor_at_depth(newest, candidate.depth, lookup)
    return found is not None and found.id == candidate.id


def common_ancestor(one: Step, other: Step, lookup: Lookup) -> Step | None:
    """Return the newest transaction that is in both histories; None if there is none."""
    depth = min(one.depth, other.depth)
    left = ancestor_at_depth(one, depth, lookup)
    right = ancestor_at_depth(other, depth, lookup)
    while left is not None and right is not None and left.id != right.id:
        # At equal depths skip pointers lead to equal depths, so both sides stay level.
        # They jump only while the jumps differ, and thus skip nothing that they share.
        is_far = left.jump != right.jump
        above = (left.jump, right.jump) if is_far else (left.parent, right.parent)
        left, right = (lookup(id) if id is not None else None for id in above)
    return left if right is not None else None


# Branches and chains.


@dataclass(frozen=True, kw_only=True)
class Lineage:
    """The ancestry record of one branch."""

    name: str
    parent: str | None = None
    remembered_chain: tuple[str, ...] = ()


# A branch with its parent.
BranchRecord: TypeAlias = Branch | Lineage


@dataclass(frozen=True, kw_only=True)
class OutputPlace:
    """The branch that a build writes: an existing one, a new child of `parent`, or a new root.

    A new root remembers the fallbacks of the build, none of which exists.
    """

    branch: str
    exists: bool
    parent: str | None
    remembered_chain: tuple[str, ...] = ()


def make_chain(branch: str, fallbacks: Sequence[str]) -> tuple[str, ...]:
    """Return the build branch and its fallbacks, each of which may occur once."""
    chain = (branch, *fallbacks)
    for position, name in enumerate(chain):
        if name in chain[:position]:
            raise InvalidChain(chain=chain, repeated=name)
    return chain


def first_with_view(chain: Sequence[str], branches: Mapping[str, Branch]) -> Branch | None:
    """Return the first branch of a chain that has a view, from a dataset's branches by name."""
    return next((b for name in chain if (b := branches.get(name)) and b.view is not None), None)


def ancestors_of(name: str, branches: Mapping[str, BranchRecord]) -> list[str]:
    """Return all proper ancestors, nearest first.

    A root that a build created has no parent: the branches of its remembered chain count instead.
    """
    found: list[str] = []
    waiting = [name]
    while waiting:
        for above in _direct_ancestors(waiting.pop(0), branches):
            if above != name and above not in found:
                found.append(above)
                waiting.append(above)
    return found


def first_bad_pair(
    chain: Sequence[str], branches: Mapping[str, BranchRecord]
) -> tuple[str, str] | None:
    """Return the first neighbours in the chain, of existing branches, that break the ancestry."""
    for nearer, farther in pairwise([name for name in chain if name in branches]):
        if branches[nearer].parent != farther and farther not in ancestors_of(nearer, branches):
            return nearer, farther
    return None


def require_compatible(
    dataset: DatasetName, chain: Sequence[str], branches: Mapping[str, BranchRecord]
) -> None:
    """Raise if the chain does not follow the dataset's ancestry."""
    pair = first_bad_pair(chain, branches)
    if pair is not None:
        raise AncestryViolated(
            dataset=str(dataset),
            chain=chain,
            ancestry=[pair[0], *ancestors_of(pair[0], branches)],
            pair=pair,
            below=pair[0] in ancestors_of(pair[1], branches),
        )


def output_place(chain: Sequence[str], branches: Mapping[str, BranchRecord]) -> OutputPlace:
    """Return the build branch if it exists, else a new child of the first existing fallback."""
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


def after_deletion(deleted: str, branches: Mapping[str, BranchRecord]) -> dict[str, Lineage]:
    """Return the records after a branch is deleted; ancestries that led through it stay.

    Its children get its parent, or become roots with its remembered chain. A root that remembered
    the branch also remembers the ancestors of the branch.
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


def _direct_ancestors(name: str, branches: Mapping[str, BranchRecord]) -> list[str]:
    record = branches[name]
    above = (record.parent,) if record.parent is not None else record.remembered_chain
    return [ancestor for ancestor in above if ancestor in branches]


def _joined(*chains: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for chain in chains for name in chain))
