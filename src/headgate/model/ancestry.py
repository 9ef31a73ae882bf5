"""Which chains of fallbacks fit the ancestry of a dataset's branches; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from headgate.errors import AncestryViolated, InvalidChain
from headgate.model.names import DatasetName


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
