"""Falsified copies of a recorded history: if a checker accepts one, it says nothing about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from tests.support.histories.checker import Publication, Verdict, Witness
from tests.support.histories.records import Content, Operation, Outcome

Past = tuple[list[Operation], Witness]
_Falsify = Callable[[list[Operation], Witness, Verdict], Past | None]


def falsify(
    operations: Sequence[Operation], witness: Witness, verdict: Verdict
) -> Iterator[tuple[str, Past]]:
    """Yield copies with one lie each, where the history has an operation for it."""
    kinds: dict[str, _Falsify] = {
        "numbers of two writes swapped": _swap,
        "acknowledged write without effect": _lose,
        "write executed twice": _repeat,
        "unit split": _split,
        "stale read": _make_stale,
    }
    for name, change in kinds.items():
        if (past := change(list(operations), witness, verdict)) is not None:
            yield name, past


def _swap(operations: list[Operation], witness: Witness, _: Verdict) -> Past | None:
    writes = [one for one in operations if one.number is not None and _is_first(one)]
    for earlier, later in pairwise(writes):
        if earlier.ended is not None and earlier.ended < later.began:
            changed = {earlier.id: later.number, later.id: earlier.number}
            return [_numbered(one, changed) for one in operations], witness
    return None


def _lose(operations: list[Operation], witness: Witness, verdict: Verdict) -> Past | None:
    shown = dict(witness.contents)
    for at, one in enumerate(witness.publications):
        writer = verdict.published.get(one.number)
        if writer is not None and writer.outcome is Outcome.OK:
            lost = replace(one, contents={place: shown[place] for place in one.contents})
            return operations, _with(witness, at, lost)
        shown.update(one.contents)
    return None


def _repeat(operations: list[Operation], witness: Witness, verdict: Verdict) -> Past | None:
    """Execute an increment again, as if a repeated request had not been recognised."""
    for number, writer in verdict.published.items():
        for write in writer.request.writes:
            if write.add is not None and len(writer.request.writes) == 1:
                now = dict(witness.final[write.place])
                now[write.key] = write.after(now[write.key])
                again = Publication(
                    number=witness.publications[-1].number + 1,
                    contents={write.place: now},
                    views={write.place: f"t-again-{number}"},
                    previous={},
                )
                log = [*witness.publications, again]
                final = {**witness.final, write.place: now}
                return operations, replace(witness, publications=log, final=final)
    return None


def _split(operations: list[Operation], witness: Witness, _: Verdict) -> Past | None:
    for at, one in enumerate(witness.publications):
        if len(one.contents) > 1:
            place, content = next(iter(one.contents.items()))
            return operations, _with(witness, at, replace(one, contents={place: content}))
    return None


def _make_stale(operations: list[Operation], witness: Witness, verdict: Verdict) -> Past | None:
    """Let a read show what was there before the newest write that it must show."""
    for read in reversed(operations):
        if len(read.contents) != 1 or read.request.moment is not None or read.newest is not None:
            continue
        (place,) = read.contents
        ended = [
            number
            for number, writer in verdict.published.items()
            if writer.outcome is Outcome.OK and (writer.ended or read.began) < read.began
        ]
        states = [witness.contents[place]]
        newest = 0
        for one in witness.publications:
            if place in one.contents:
                states.append(one.contents[place])
                if one.number <= max(ended, default=0):
                    newest = len(states) - 1
        if newest and states[newest - 1] not in states[newest:]:
            stale: dict[str, Content] = {place: states[newest - 1]}
            lie = replace(read, contents=stale, views={})
            return [lie if one.id == read.id else one for one in operations], witness
    return None


def _is_first(one: Operation) -> bool:
    return one.outcome is Outcome.OK and one.request.repeats is None


def _numbered(one: Operation, numbers: dict[str, int | None]) -> Operation:
    return replace(one, number=numbers[one.id]) if one.id in numbers else one


def _with(witness: Witness, at: int, publication: Publication) -> Witness:
    log = list(witness.publications)
    log[at] = publication
    return replace(witness, publications=log)
