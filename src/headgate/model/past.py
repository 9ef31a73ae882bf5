"""What was read and built before, as the rules of incremental jobs need to know it; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from headgate.model.ids import ContentId, TransactionId
from headgate.model.names import DatasetName
from headgate.model.nouns import TransactionType

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
