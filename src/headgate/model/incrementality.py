"""The decision whether a job reads only what was added since its last build; pure.

It does if the newest build in the history of its outputs recorded its inputs, these are still in
the inputs' history, and nothing that was read then has been overwritten or removed since.
See ADR 0025.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from headgate.model.ids import ContentId, TransactionId
from headgate.model.nouns import DatasetName, TransactionType

if TYPE_CHECKING:
    from headgate.model.jobspecs import IncrementalSpec

# The semantic version of builds from before the transform was declared incremental.
FIRST_SEMANTIC_VERSION = 1
# In place of an extent, if a transform requires incremental builds and needs a full one.
_REFUSED = "not incremental, although required"


# Earlier builds and the histories of inputs.


@dataclass(frozen=True, kw_only=True)
class ReadAt:
    """The state at which a build read an input; a table also has an Iceberg snapshot."""

    transaction: TransactionId
    snapshot: int | None = None


@dataclass(frozen=True, kw_only=True)
class LastBuild:
    """The newest build in an output's history: its inputs and its semantic version."""

    transaction: TransactionId
    semantic_version: int
    read: Mapping[DatasetName, ReadAt]


@dataclass(frozen=True, kw_only=True)
class Base:
    """The state of an output before a job writes it; the default was never built."""

    transaction: TransactionId | None = None
    number: int = 0
    content: ContentId | None = None
    last: LastBuild | None = None
    # A transaction after the last build that changed its result and was not made by a build.
    foreign: TransactionId | None = None


@dataclass(frozen=True, kw_only=True)
class Change:
    """One transaction of an input's history; `number` counts from the first, which is 1."""

    transaction: TransactionId
    number: int
    type: TransactionType
    # False for compaction, properties and empty writes: the rows and files stay the same.
    changes_content: bool


@dataclass(frozen=True, kw_only=True)
class Place:
    """The state at which a job reads an input: a transaction, or one adopted on top of it."""

    name: str
    dataset: DatasetName
    # Neither is set if a job of this build will make the input.
    head: TransactionId | None
    adopted: Change | None = None

    @property
    def is_known(self) -> bool:
        return self.head is not None or self.adopted is not None

    @property
    def content_of(self) -> TransactionId:
        """The transaction whose content is read."""
        found = self.adopted.transaction if self.adopted else self.head
        assert found is not None, f"{self.dataset} is not known yet"
        return found


@dataclass(frozen=True, kw_only=True)
class Question:
    """A comparison of content: has anything that was read at `last` been overwritten since?"""

    dataset: DatasetName
    last: ReadAt
    now: TransactionId
    # Transactions that may have done so, oldest first.
    suspects: tuple[TransactionId, ...]
    # Whether removals are allowed, so that only overwrites count.
    removals_allowed: bool


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The result of a comparison; `why` names what broke, and is empty if nothing did."""

    why: str = ""
    broken_by: TransactionId | None = None
    # Of a table: the snapshot after which everything is new; None if all of it is new.
    since_snapshot: int | None = None


class Histories(Protocol):
    """Histories of inputs."""

    def since(self, last: TransactionId, head: TransactionId, /) -> tuple[Change, ...] | None:
        """Return the changes after `last` up to `head`, oldest first; None if not an ancestor."""


Answers = Mapping[Question, Answer]


# The decision.


class Extent(enum.StrEnum):
    """The part of its inputs that a job reads."""

    INCREMENTAL = "incremental"
    FULL = "full"
    # A job of the same build makes one of its inputs, or a comparison of content is missing.
    UNDECIDED = "undecided"


@dataclass(frozen=True, kw_only=True)
class Span:
    """The part of one input that a job reads: all of it, or what was added after `since`."""

    name: str
    dataset: DatasetName
    since: ReadAt | None = None
    # Numbers of the first and the last new transaction, if there are any.
    numbers: tuple[int, int] | None = None
    transactions: tuple[TransactionId, ...] = ()
    # Whether they added rows or files.
    has_new: bool = True
    since_snapshot: int | None = None

    def __str__(self) -> str:
        return _span_text(self.to_json())

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
    """The extent of a job, and the reason if it is not incremental."""

    extent: Extent
    semantic_version: int
    reason: str = ""
    broken_by: TransactionId | None = None
    # The transform requires incremental builds, and this reason does not excuse it.
    refused: bool = False
    reads: tuple[Span, ...] = ()
    questions: tuple[Question, ...] = ()

    def __str__(self) -> str:
        return extent_text(self.to_json())

    def to_json(self) -> dict[str, Any]:
        return {
            "extent": self.extent.value,
            "semantic_version": self.semantic_version,
            "reason": self.reason or None,
            "broken_by": self.broken_by,
            "refused": self.refused,
            "reads": [span.to_json() for span in self.reads],
        }


def extent_text(document: Mapping[str, Any] | None) -> str:
    """Return the transactions that a job reads, or the reason for a full read."""
    if document is None:
        return ""
    if document["reason"]:
        # The plan of a transform that rejects full builds shows that the job will fail.
        word = _REFUSED if document.get("refused") else document["extent"]
        return f"{word}: {document['reason']}"
    spans = ", ".join(map(_span_text, document["reads"])) or "no input"
    return f"{document['extent']}: reads {spans}"


def _span_text(document: Mapping[str, Any]) -> str:
    name = document["dataset"]
    if document["since"] is None:
        return f"all of {name}"
    if document["numbers"] is None:
        return f"nothing new of {name}"
    first, last = document["numbers"]
    return f"{name} {first}..{last}" if first != last else f"{name} {first}"


@dataclass(frozen=True, kw_only=True)
class _Broken:
    reason: str
    by: TransactionId | None = None
    # A first build, or one with a new semantic version, may be full in any case.
    expected: bool = False


@dataclass(kw_only=True)
class _Found:
    """Collects the spans of the inputs, and what is missing to decide them."""

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
    """Return incremental, full with its reason, or undecided with the open questions."""
    version = spec.semantic_version
    if full:
        return _full(spec, _Broken(reason="a full build was requested", expected=True))
    last = _last_build(spec, bases)
    if isinstance(last, _Broken):
        return _full(spec, last)
    found = _Found()
    for place in places:
        broken = _examine(spec, place, last, histories, answers, found)
        if broken is not None:
            return _full(spec, broken)
    if found.questions or found.waiting_for:
        made = ", ".join(found.waiting_for)
        return Incrementality(
            extent=Extent.UNDECIDED,
            semantic_version=version,
            reason=f"it is decided when {made} is built" if made else "",
            questions=tuple(found.questions),
        )
    return Incrementality(
        extent=Extent.INCREMENTAL, semantic_version=version, reads=tuple(found.spans)
    )


def _full(spec: IncrementalSpec, broken: _Broken) -> Incrementality:
    return Incrementality(
        extent=Extent.FULL,
        semantic_version=spec.semantic_version,
        reason=broken.reason,
        broken_by=broken.by,
        refused=spec.require_incremental and not broken.expected,
    )


def _last_build(spec: IncrementalSpec, bases: Mapping[DatasetName, Base]) -> LastBuild | _Broken:
    """Return the build that made all outputs, if it has the same semantic version."""
    builds: list[LastBuild] = []
    for name, base in bases.items():
        if base.foreign is not None:
            reason = f"{name} was changed by {base.foreign}, which no build made"
            return _Broken(reason=reason, by=base.foreign)
        if base.last is None:
            return _Broken(reason=f"{name} was never built here", expected=True)
        builds.append(base.last)
    first = builds[0]
    for other in builds:
        if other.semantic_version != spec.semantic_version:
            reason = (
                f"semantic_version is {spec.semantic_version}, and the last build had "
                f"{other.semantic_version}"
            )
            return _Broken(reason=reason, expected=True)
        if other.read != first.read:
            return _Broken(reason="its outputs were last built from different inputs")
    return first


def _examine(
    spec: IncrementalSpec,
    place: Place,
    last: LastBuild,
    histories: Histories,
    answers: Answers,
    found: _Found,
) -> _Broken | None:
    """Add the span of one input, or what is missing to decide it; or return what broke."""
    read = last.read.get(place.dataset)
    if place.name in spec.snapshot_inputs or read is None:
        # Declared so, or an input that the last build did not have: all of it is new.
        found.spans.append(Span(name=place.name, dataset=place.dataset))
        return None
    if not place.is_known:
        found.waiting_for.append(str(place.dataset))
        return None
    changes = _changes(place, read, histories)
    if changes is None:
        reason = f"{read.transaction}, read last, is no longer in the history of {place.dataset}"
        return _Broken(reason=reason, by=read.transaction)
    effective = [change for change in changes if change.changes_content]
    for change in effective:
        if broken := _broken_by_type(spec, change, place.dataset):
            return broken
    answer = Answer()
    if effective:
        question = _question(spec, place, read, effective)
        known = answers.get(question)
        if known is None:
            found.questions.append(question)
            return None
        if known.why:
            return _Broken(reason=known.why, by=known.broken_by)
        answer = known
    found.spans.append(_span(place, read, changes, answer, has_new=bool(effective)))
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
    spec: IncrementalSpec, place: Place, read: ReadAt, effective: Sequence[Change]
) -> Question:
    return Question(
        dataset=place.dataset,
        last=read,
        now=place.content_of,
        suspects=tuple(
            change.transaction for change in effective if change.type is TransactionType.UPDATE
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
