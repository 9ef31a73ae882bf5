"""Messages between a supervisor and an attempt's process: lines of JSON over two pipes."""

import enum
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import orjson

from headgate import errors
from headgate.model.ids import Epoch
from headgate.model.nouns import AttemptRef
from headgate.tasks.declare import Phase
from headgate.tasks.ports import Identity

_REASON_LIMIT = 500


class Status(enum.StrEnum):
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    TERMINAL = "FAILED_WITH_TERMINAL_ERROR"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result of an attempt: an output if it completed, a reason if it failed."""

    status: Status
    output: Mapping[str, Any] | None = None
    reason: str | None = None
    code: str | None = None
    traceback: str | None = None

    @property
    def is_superseded(self) -> bool:
        """True if a newer attempt replaced this one."""
        return self.code in {errors.AttemptSuperseded.code, errors.StaleAttempt.code}

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "status": self.status.value}


def failed(error: BaseException) -> Outcome:
    """Return the outcome of an error; failed pre checks and TaskTerminalError are terminal."""
    # Also of a task's own code: a full disk under its workspace is not an error of the code.
    known = error
    if isinstance(error, OSError) and errors.find_quoted_failure(str(error)) is not None:
        known = errors.find_known_error(error) or error
    return Outcome(
        status=Status.TERMINAL if _is_terminal(error) else Status.FAILED,
        reason=_reason(known),
        code=known.code if isinstance(known, errors.HeadgateError) else "user_code",
        traceback="".join(traceback.format_exception(error)),
    )


def _is_terminal(error: BaseException) -> bool:
    if isinstance(error, errors.WorkspaceCheckFailed):
        return bool(error.facts["phase"] == Phase.PRE)
    return isinstance(error, errors.TaskTerminalError)


def _reason(error: BaseException) -> str:
    """Return a non-empty reason within the length limit of orchestrators."""
    name, text = type(error).__name__, str(error).strip()
    if text and not isinstance(error, errors.HeadgateError):
        text = f"{name}: {text}"
    text = text or name
    return text if len(text) <= _REASON_LIMIT else f"{text[: _REASON_LIMIT - 1]}…"


# Messages of the process: a log line, the number of a fence request, or the outcome.
LOG_LINE, FENCE_REQUEST, OUTCOME = "log", "fence", "outcome"
# A fence request with a task key: whether the workflow of that key has ended.
ENDED_KEY = "ended_key"
# Reply of the supervisor: the number of the request, the error or None, and the answer.
FENCE_REPLY, FENCE_ERROR, HAS_ENDED = "reply", "error", "has_ended"


@dataclass(frozen=True, kw_only=True)
class Order:
    """One attempt, as its process receives it."""

    # Directory of the store's settings, and directory from which the module is imported.
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
    # For a served store: its URL and token, and the secret of the attempt.
    url: str | None = None
    token: str | None = field(default=None, repr=False)
    secret: str | None = field(default=None, repr=False)
    # Check the fence at the supervisor as well as at the catalog.
    supervised_fence: bool = False
    # Publication of another task that the attempt may replace.
    replaces: str | None = None
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
            replaces=self.replaces,
        )

    def to_line(self) -> bytes:
        return orjson.dumps(asdict(self), default=str) + b"\n"
