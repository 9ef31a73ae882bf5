"""Whether a job may read only what was added since its outputs were last built; pure.

It may where the newest build in its outputs' history says what it read, that is still in the
inputs' history, and nothing that was read then has been overwritten or removed since.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from headgate.model.ids import ContentId, TransactionId
from headgate.model.jobspecs import IncrementalSpec
from headgate.model.names import DatasetName
from headgate.model.nouns import TransactionType

# What was read and built before, as the rules of incremental jobs need to know it; pure.

# What a build counts as that was made before its transform was declared incremental.
FIRST_SEMANTIC_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class ReadAt:
    """Where a build read an input: the transaction and, of a table, the Iceberg snapshot."""

    transaction: TransactionId
    snapshot: int | None = None


@dataclass(frozen=True, kw_only=True)
class LastBuild:
    """The newest build in an output's history: what it read, and what its logic meant."""

    transaction: TransactionId
    semantic_version: int
    read: Mapping[DatasetName, ReadAt]


@dataclass(frozen=True, kw_only=True)
class Base:
    """What an output holds before a job writes it; without anything it was never built."""

    transaction: TransactionId | None = None
    number: int = 0
    content: ContentId | None = None
    last: LastBuild | None = None
    # The transaction after the last build that changed what it left, made by no build.
    foreign: TransactionId | None = None


@dataclass(frozen=True, kw_only=True)
class Change:
    """One transaction of an input's history; `number` counts from the first, which is 1."""

    transaction: TransactionId
    number: int
    type: TransactionType
    # False: compaction, properties, an empty write; the same rows and files as before.
    changes_content: bool


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a job reads an input: at a transaction, or at what is adopted on top of it."""

    name: str
    dataset: DatasetName
    # Neither: a job of this build is going to make it.
    head: TransactionId | None
    adopted: Change | None = None

    @property
    def is_known(self) -> bool:
        return self.head is not None or self.adopted is not None

    @property
    def content_of(self) -> TransactionId:
        """The transaction that has the content which is read."""
        found = self.adopted.transaction if self.adopted else self.head
        assert found is not None, f"{self.dataset} is not known yet"
        return found


@dataclass(frozen=True, kw_only=True)
class Question:
    """Has anything that was read at `last` been overwritten since? Only the content tells."""

    dataset: DatasetName
    last: ReadAt
    now: TransactionId
    # Those that may have done so, oldest first.
    suspects: tuple[TransactionId, ...]
    # Whether what was only removed counts as still there.
    removals_allowed: bool


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a look at the content found; `why` says what broke, and is empty where nothing did."""

    why: str = ""
    broken_by: TransactionId | None = None
    # Of a table: the snapshot after which everything is new; None: all of it is.
    since_snapshot: int | None = None


class Histories(Protocol):
    """What happened to inputs."""

    def since(self, last: TransactionId, head: TransactionId, /) -> tuple[Change, ...] | None:
        """The steps from one to the other, oldest first; None if it is not in its history."""
        ...


Answers = Mapping[Question, Answer]


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
