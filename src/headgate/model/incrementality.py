"""Whether a job may read only what was added since its outputs were last built; pure.

It may where the newest build in its outputs' history says what it read, that is still in the
inputs' history, and nothing that was read then has been overwritten or removed since.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headgate.model.ids import TransactionId
from headgate.model.jobspecs import IncrementalSpec
from headgate.model.names import DatasetName
from headgate.model.nouns import TransactionType
from headgate.model.past import (
    Answer,
    Answers,
    Base,
    Change,
    Histories,
    LastBuild,
    Place,
    Question,
    ReadAt,
)

# In place of an extent, where a transform must not be built in full and would have to be.
REFUSED = "not incremental, as it requires"


class Extent(enum.StrEnum):
    """How much of its inputs a job reads."""

    INCREMENTAL = "incremental"
    FULL = "full"
    # A job of the same build makes one of its inputs, or nobody has looked at the content yet.
    UNDECIDED = "undecided"


@dataclass(frozen=True, kw_only=True)
class Span:
    """What a job reads of one input: all of it, or what was added after `since`."""

    name: str
    dataset: DatasetName
    since: ReadAt | None = None
    # Numbers of the first and the last transaction that is new, where there are any.
    numbers: tuple[int, int] | None = None
    transactions: tuple[TransactionId, ...] = ()
    # Whether rows or files came with them.
    has_new: bool = True
    since_snapshot: int | None = None

    def __str__(self) -> str:
        if self.since is None:
            return f"all of {self.dataset}"
        if self.numbers is None:
            return f"nothing new of {self.dataset}"
        first, last = self.numbers
        return f"{self.dataset} {first}..{last}" if first != last else f"{self.dataset} {first}"

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "dataset": str(self.dataset),
            "since": self.since.transaction if self.since else None,
            "numbers": list(self.numbers) if self.numbers else None,
            "first": self.transactions[0] if self.transactions else None,
            "last": self.transactions[-1] if self.transactions else None,
        }


@dataclass(frozen=True, kw_only=True)
class Incrementality:
    """How much a job reads, and why it is not only what was added."""

    extent: Extent
    semantic_version: int
    reason: str = ""
    broken_by: TransactionId | None = None
    # The transform says that it must not be read in full for this reason.
    refused: bool = False
    reads: tuple[Span, ...] = ()
    questions: tuple[Question, ...] = ()

    def __str__(self) -> str:
        if self.extent is Extent.INCREMENTAL:
            return f"incremental: reads {', '.join(map(str, self.reads)) or 'no input'}"
        word = REFUSED if self.refused else self.extent.value
        return f"{word}: {self.reason}"

    def to_json(self) -> dict[str, Any]:
        return {
            "extent": self.extent.value,
            "semantic_version": self.semantic_version,
            "reason": self.reason or None,
            "broken_by": self.broken_by,
            "refused": self.refused,
            "reads": [span.to_json() for span in self.reads],
        }


@dataclass(frozen=True, kw_only=True)
class _Broken:
    reason: str
    by: TransactionId | None = None
    # Nobody expects a first build, or one with a new meaning, to be incremental.
    expected: bool = False


@dataclass(kw_only=True)
class _Looked:
    """What is found out about the inputs, one after the other."""

    spans: list[Span] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)
    waiting_for: list[str] = field(default_factory=list)


def decide_incremental(
    spec: IncrementalSpec,
    places: Sequence[Place],
    bases: Mapping[DatasetName, Base],
    histories: Histories,
    answers: Answers,
    *,
    full: bool = False,
) -> Incrementality:
    """Incremental, full with its reason, or undecided with the questions that are left."""
    version = spec.semantic_version
    if full:
        return _full(spec, _Broken(reason="a full build was asked for", expected=True))
    last = _last_of_all(spec, bases)
    if isinstance(last, _Broken):
        return _full(spec, last)
    looked = _Looked()
    for place in places:
        broken = _look_at(spec, place, last, histories, answers, looked)
        if broken is not None:
            return _full(spec, broken)
    if looked.questions or looked.waiting_for:
        made = ", ".join(looked.waiting_for)
        return Incrementality(
            extent=Extent.UNDECIDED,
            semantic_version=version,
            reason=f"it is decided when {made} is built" if made else "",
            questions=tuple(looked.questions),
        )
    return Incrementality(
        extent=Extent.INCREMENTAL, semantic_version=version, reads=tuple(looked.spans)
    )


def _full(spec: IncrementalSpec, broken: _Broken) -> Incrementality:
    return Incrementality(
        extent=Extent.FULL,
        semantic_version=spec.semantic_version,
        reason=broken.reason,
        broken_by=broken.by,
        refused=spec.require_incremental and not broken.expected,
    )


def _last_of_all(spec: IncrementalSpec, bases: Mapping[DatasetName, Base]) -> LastBuild | _Broken:
    """The build that left all outputs as they are, if there is one with the same meaning."""
    found: list[LastBuild] = []
    for name, base in bases.items():
        if base.foreign is not None:
            reason = f"{name} was changed by {base.foreign}, which no build made"
            return _Broken(reason=reason, by=base.foreign)
        if base.last is None:
            return _Broken(reason=f"{name} was never built here", expected=True)
        found.append(base.last)
    first = found[0]
    for other in found:
        if other.semantic_version != spec.semantic_version:
            reason = (
                f"semantic_version is {spec.semantic_version}, and the last build had "
                f"{other.semantic_version}"
            )
            return _Broken(reason=reason, expected=True)
        if other.read != first.read:
            return _Broken(reason="its outputs were last built from different inputs")
    return first


def _look_at(
    spec: IncrementalSpec,
    place: Place,
    last: LastBuild,
    histories: Histories,
    answers: Answers,
    looked: _Looked,
) -> _Broken | None:
    """Adds what is read of one input, or what is missing to know it; or says what broke."""
    read = last.read.get(place.dataset)
    if place.name in spec.snapshot_inputs or read is None:
        # Declared so, or an input that the last build did not have: all of it is new.
        looked.spans.append(Span(name=place.name, dataset=place.dataset))
        return None
    if not place.is_known:
        looked.waiting_for.append(str(place.dataset))
        return None
    changes = _changes(place, read, histories)
    if changes is None:
        reason = f"{read.transaction}, read last, is no longer in the history of {place.dataset}"
        return _Broken(reason=reason, by=read.transaction)
    telling = [change for change in changes if change.changes_content]
    for change in telling:
        if broken := _broken_by_type(spec, change, place.dataset):
            return broken
    answer = Answer()
    if telling:
        question = _question(spec, place, read, telling)
        found = answers.get(question)
        if found is None:
            looked.questions.append(question)
            return None
        if found.why:
            return _Broken(reason=found.why, by=found.broken_by)
        answer = found
    looked.spans.append(_span(place, read, changes, answer, has_new=bool(telling)))
    return None


def _changes(place: Place, read: ReadAt, histories: Histories) -> tuple[Change, ...] | None:
    changes = histories.since(read.transaction, place.head) if place.head is not None else None
    if changes is None or place.adopted is None:
        return changes
    return *changes, place.adopted


def _broken_by_type(spec: IncrementalSpec, change: Change, dataset: DatasetName) -> _Broken | None:
    if change.type is TransactionType.SNAPSHOT:
        reason = f"{change.transaction} replaced all of {dataset}"
        return _Broken(reason=reason, by=change.transaction)
    if change.type is TransactionType.DELETE and not spec.allow_retention:
        reason = f"{change.transaction} deleted from {dataset}"
        return _Broken(reason=reason, by=change.transaction)
    return None


def _question(
    spec: IncrementalSpec, place: Place, read: ReadAt, telling: Sequence[Change]
) -> Question:
    return Question(
        dataset=place.dataset,
        last=read,
        now=place.content_of,
        suspects=tuple(
            change.transaction for change in telling if change.type is TransactionType.UPDATE
        ),
        removals_allowed=spec.allow_retention,
    )


def _span(
    place: Place, read: ReadAt, changes: Sequence[Change], answer: Answer, *, has_new: bool
) -> Span:
    return Span(
        name=place.name,
        dataset=place.dataset,
        since=read,
        numbers=(changes[0].number, changes[-1].number) if changes else None,
        transactions=tuple(change.transaction for change in changes),
        has_new=has_new,
        since_snapshot=answer.since_snapshot,
    )
