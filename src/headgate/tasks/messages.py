"""What an attempt's process is told, and what it says: lines of JSON over two pipes."""

from __future__ import annotations

import enum
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import orjson

from headgate.errors import (
    AttemptSuperseded,
    HeadgateError,
    StaleAttempt,
    TaskTerminalError,
    WorkspaceCheckFailed,
)
from headgate.model.ids import Epoch
from headgate.model.nouns import AttemptRef
from headgate.tasks.declare import Phase
from headgate.tasks.ports import Identity, ServerAddress

# How an attempt ended, and which endings no further attempt can mend.

_REASON_LIMIT = 500


class Status(enum.StrEnum):
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    TERMINAL = "FAILED_WITH_TERMINAL_ERROR"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """COMPLETED has an output and no reason; a failure has a reason and no output."""

    status: Status
    output: Mapping[str, Any] | None = None
    reason: str | None = None
    code: str | None = None
    traceback: str | None = None

    @property
    def is_lost(self) -> bool:
        """Whether the attempt was superseded: nobody waits for what it says."""
        return self.code in {AttemptSuperseded.code, StaleAttempt.code}

    def to_json(self) -> dict[str, Any]:
        return {
            "status": self.status.value,
            "output": self.output,
            "reason": self.reason,
            "code": self.code,
            "traceback": self.traceback,
        }


def outcome_from_json(data: Mapping[str, Any]) -> Outcome:
    return Outcome(
        status=Status(data["status"]),
        output=data["output"],
        reason=data["reason"],
        code=data["code"],
        traceback=data["traceback"],
    )


def completed(output: Mapping[str, Any]) -> Outcome:
    return Outcome(status=Status.COMPLETED, output=output)


def failed(error: BaseException) -> Outcome:
    """The outcome of an error: terminal are failed pre checks and what the author called so."""
    code = error.code if isinstance(error, HeadgateError) else "user_code"
    return Outcome(
        status=Status.TERMINAL if _is_terminal(error) else Status.FAILED,
        reason=_reason(error),
        code=code,
        traceback="".join(traceback.format_exception(error)),
    )


def _is_terminal(error: BaseException) -> bool:
    if isinstance(error, WorkspaceCheckFailed):
        return bool(error.facts["phase"] == Phase.PRE)
    return isinstance(error, TaskTerminalError)


def _reason(error: BaseException) -> str:
    """Never empty, and short enough for an orchestrator to keep."""
    said = str(error).strip()
    if not isinstance(error, HeadgateError):
        said = f"{type(error).__name__}: {said}" if said else type(error).__name__
    said = said or type(error).__name__
    return said if len(said) <= _REASON_LIMIT else f"{said[: _REASON_LIMIT - 1]}…"


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
