"""Depth and skip pointers: correct, and logarithmic, on histories of any shape."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.model.ancestry import Step, ancestor_at_depth, is_in_history, next_step_pointers
from headgate.model.ids import TransactionId
from tests.support.oracle import jump_depth


class _Tree:
    """A history with branches; counts lookups of steps."""

    def __init__(self, parents: Sequence[int | None]) -> None:
        self.steps: dict[TransactionId, Step] = {}
        self.looked = 0
        for number, parent in enumerate(parents):
            above = self.steps[_id(parent)] if parent is not None else None
            depth, jump = next_step_pointers(above, self.lookup)
            step = Step(id=_id(number), parent=above.id if above else None, depth=depth, jump=jump)
            self.steps[step.id] = step

    def lookup(self, id: TransactionId) -> Step:
        self.looked += 1
        return self.steps[id]

    def history(self, step: Step) -> list[Step]:
        """Return the history, newest first, by parents only."""
        chain = [step]
        while chain[-1].parent is not None:
            chain.append(self.steps[chain[-1].parent])
        return chain


def _id(number: int) -> TransactionId:
    return TransactionId(f"t{number}")


@st.composite
def _trees(draw: st.DrawFn) -> _Tree:
    size = draw(st.integers(1, 40))
    parents: list[int | None] = [None]
    for number in range(1, size):
        # Mostly long chains, with forks at any place and sometimes another root.
        near = st.just(number - 1)
        parents.append(draw(st.one_of(near, near, st.integers(0, number - 1), st.none())))
    return _Tree(parents)


def test_pointers_of_a_chain_follow_the_skew_binary_digits() -> None:
    tree = _Tree([None, *range(300)])
    for depth, step in enumerate(tree.steps.values()):
        wanted = jump_depth(depth)
        assert step.depth == depth
        assert step.jump == (_id(wanted) if wanted is not None else None)


@given(_trees())
def test_ancestor_at_each_depth_is_the_one_that_parents_lead_to(tree: _Tree) -> None:
    for step in tree.steps.values():
        chain = tree.history(step)
        for above in chain:
            assert ancestor_at_depth(step, above.depth, tree.lookup) == above
        assert ancestor_at_depth(step, step.depth + 1, tree.lookup) is None
        assert ancestor_at_depth(step, -1, tree.lookup) is None


@given(_trees(), st.data())
def test_in_history_is_the_same_as_walking_the_parents(tree: _Tree, data: st.DataObject) -> None:
    newest = data.draw(st.sampled_from(list(tree.steps.values())))
    for candidate in tree.steps.values():
        walked = candidate in tree.history(newest)
        assert is_in_history(candidate, newest, tree.lookup) is walked
    assert not is_in_history(newest, None, tree.lookup)


@pytest.mark.parametrize("length", [10, 1_000, 30_000])
def test_search_takes_a_logarithmic_number_of_looks(length: int) -> None:
    tree = _Tree([None, *range(length - 1)])
    newest = tree.steps[_id(length - 1)]
    for depth in (0, 1, length // 3, length // 2, length - 2):
        tree.looked = 0
        found = ancestor_at_depth(newest, depth, tree.lookup)
        assert found is not None and found.depth == depth
        assert tree.looked <= 6 * length.bit_length()
