"""Common ancestor of two histories, compared with a walk from parent to parent."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headgate.model.ancestry import Step, common_ancestor, next_step_pointers
from headgate.model.ids import TransactionId

# Parent of each new transaction, as a distance back in the list; 0 starts a history.
_trees = st.lists(st.integers(0, 40), min_size=2, max_size=120)


def _grow(parents: list[int]) -> list[Step]:
    steps: list[Step] = []
    for number, back in enumerate(parents):
        parent = steps[-back] if 0 < back <= len(steps) else None
        depth, jump = next_step_pointers(parent, lambda id: steps[int(id)])
        above = parent.id if parent else None
        steps.append(Step(id=TransactionId(str(number)), parent=above, depth=depth, jump=jump))
    return steps


def _history(steps: list[Step], step: Step) -> list[Step]:
    found = [step]
    while (parent := found[-1].parent) is not None:
        found.append(steps[int(parent)])
    return found


@given(_trees, st.data())
def test_histories_that_part_anywhere_meet_where_a_walk_says(
    parents: list[int], data: st.DataObject
) -> None:
    steps = _grow(parents)
    one, other = data.draw(st.sampled_from(steps)), data.draw(st.sampled_from(steps))
    shared = {step.id for step in _history(steps, other)}
    expected = next((step for step in _history(steps, one) if step.id in shared), None)
    assert common_ancestor(one, other, lambda id: steps[int(id)]) == expected


def test_histories_that_part_far_back_meet_in_few_looks() -> None:
    steps = _grow([1] * 20_000)
    fork = steps[100]
    other = _grow_from(steps, fork, 15_000)
    looks: list[TransactionId] = []

    def lookup(id: TransactionId) -> Step:
        looks.append(id)
        return steps[int(id)]

    assert common_ancestor(steps[19_999], other, lookup) == fork
    assert len(looks) < 200


def _grow_from(steps: list[Step], parent: Step, count: int) -> Step:
    for _ in range(count):
        depth, jump = next_step_pointers(parent, lambda id: steps[int(id)])
        parent = Step(id=TransactionId(str(len(steps))), parent=parent.id, depth=depth, jump=jump)
        steps.append(parent)
    return parent
