"""What an attempt's process is told, and what it says: lines of JSON over two pipes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import orjson

from headgate.model.ids import Epoch
from headgate.model.nouns import AttemptRef
from headgate.tasks.ports import Identity, ServerAddress

# What the process says: a line of its log, a question, or its outcome.
SAID, ASKED, ENDED = "said", "asked", "ended"
# What it is answered: the question's number, and why not where the answer is no.
ANSWER, REFUSAL = "answer", "refusal"


@dataclass(frozen=True, kw_only=True)
class Order:
    """One attempt to be done by a process of its own."""

    # Where the store's settings are found, and where the task's module is imported from.
    store: str
    directory: str
    target: str
    data: Any
    root: str
    log: str
    key: str
    epoch: int
    execution: str
    actor: str
    task: str
    labels: Mapping[str, str] = field(default_factory=dict)
    # Of a served store: who serves it, and the attempt's own secret.
    url: str | None = None
    token: str | None = field(default=None, repr=False)
    secret: str | None = field(default=None, repr=False)
    # Whether the fence asks the process that gave this order, beside the catalog.
    asks: bool = False
    parent: int = 0

    @property
    def identity(self) -> Identity:
        return Identity(
            attempt=AttemptRef(key=self.key, epoch=Epoch(self.epoch)),
            execution=self.execution,
            actor=self.actor,
            task=self.task,
            labels=self.labels,
            secret=self.secret,
        )

    @property
    def server(self) -> ServerAddress | None:
        return ServerAddress(url=self.url, token=self.token) if self.url is not None else None

    def to_line(self) -> bytes:
        return orjson.dumps(asdict(self), default=str) + b"\n"


def order_from_line(line: bytes) -> Order:
    return Order(**orjson.loads(line))
