"""Histories in memory, for the rules of incremental jobs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headgate.model.ids import ContentId, TransactionId
from headgate.model.incrementality import Answer, Base, Change, LastBuild, Question, ReadAt
from headgate.model.names import DatasetName
from headgate.model.nouns import TransactionType
from tests.support.jobspecs import name


@dataclass(kw_only=True)
class MemoryPast:
    """Inputs as lists of transactions, `a1 a2 …`, and the last build of each output."""

    inputs: dict[str, list[Change]] = field(default_factory=dict)
    bases: dict[DatasetName, Base] = field(default_factory=dict)

    def base(self, output: DatasetName, /) -> Base:
        return self.bases.get(output, Base())

    def since(self, last: TransactionId, head: TransactionId, /) -> tuple[Change, ...] | None:
        for history in self.inputs.values():
            ids = [change.transaction for change in history]
            if head in ids:
                before = ids[: ids.index(head) + 1]
                if last not in before:
                    return None
                return tuple(history[ids.index(last) + 1 : ids.index(head) + 1])
        return None


class Kept(dict[Question, Answer]):
    """Content in which nothing was overwritten since snapshot 33."""

    def get(self, key: Question, default: Any = None) -> Any:
        return super().get(key, Answer(since_snapshot=33))


def history(dataset: str, types: str) -> list[Change]:
    """Return a transaction for each letter: S, A, U, D; small where the content stays the same."""
    words = {"S": "SNAPSHOT", "A": "APPEND", "U": "UPDATE", "D": "DELETE"}
    return [
        Change(
            transaction=TransactionId(f"{dataset}#{number}"),
            number=number,
            type=TransactionType(words[letter.upper()]),
            changes_content=letter.isupper(),
        )
        for number, letter in enumerate(types, start=1)
    ]


def built(content: str, *, version: int = 1, **read: str) -> Base:
    """Return an output of a build that read these transactions, by dataset `s_a`."""
    return Base(
        transaction=TransactionId("t-last"),
        number=1,
        content=ContentId(content),
        last=LastBuild(
            transaction=TransactionId("t-last"),
            semantic_version=version,
            read={
                name(dataset.replace("_", ".")): ReadAt(transaction=TransactionId(id))
                for dataset, id in read.items()
            },
        ),
    )
