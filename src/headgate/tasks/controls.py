"""How a task wants to be treated: retries, deadlines, limits, and time to publish."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field, fields

from headgate.transforms.where import Place, calling_place

_MOST_RETRIES = 10


class RetryLogic(enum.StrEnum):
    FIXED = "FIXED"
    EXPONENTIAL_BACKOFF = "EXPONENTIAL_BACKOFF"
    LINEAR_BACKOFF = "LINEAR_BACKOFF"


class OnTimeout(enum.StrEnum):
    TIME_OUT_WF = "TIME_OUT_WF"
    RETRY = "RETRY"
    ALERT_ONLY = "ALERT_ONLY"


@dataclass(frozen=True)
class RetryPolicy:
    """How often a failed attempt is followed by another, and after how long."""

    count: int = 3
    logic: str = RetryLogic.FIXED
    delay_seconds: int = 60
    max_delay_seconds: int = 0
    jitter_ms: int = 0

    def __post_init__(self) -> None:
        place = calling_place()
        _whole(self, ("count", "delay_seconds", "max_delay_seconds", "jitter_ms"), place)
        if self.count > _MOST_RETRIES:
            raise place.refuse(f"RetryPolicy.count is at most {_MOST_RETRIES}, not {self.count}")
        _one_of(self.logic, RetryLogic, "RetryPolicy.logic", place)

    def delay_before(self, retry: int) -> float:
        """Seconds to wait before the nth retry, counted from 1; without the jitter."""
        factor: int = {
            RetryLogic.FIXED: 1,
            RetryLogic.LINEAR_BACKOFF: retry,
            RetryLogic.EXPONENTIAL_BACKOFF: 2 ** (retry - 1),
        }[RetryLogic(self.logic)]
        seconds = self.delay_seconds * factor
        return min(seconds, self.max_delay_seconds) if self.max_delay_seconds else seconds


@dataclass(frozen=True)
class TimeoutPolicy:
    """How long an attempt may take, may stay silent, may wait; 0 is without end."""

    policy: str = OnTimeout.TIME_OUT_WF
    seconds: int = 0
    response_seconds: int = 600
    poll_seconds: int = 0
    total_seconds: int = 0

    def __post_init__(self) -> None:
        place = calling_place()
        _whole(self, ("seconds", "response_seconds", "poll_seconds", "total_seconds"), place)
        _one_of(self.policy, OnTimeout, "TimeoutPolicy.policy", place)
        if self.response_seconds < 1:
            raise place.refuse("TimeoutPolicy.response_seconds is at least 1")


@dataclass(frozen=True)
class ExecutionLimits:
    """How many attempts may be under way, and how many may begin in a time."""

    concurrent_exec_limit: int | None = None
    rate_limit_frequency_in_seconds: int | None = None
    rate_limit_per_frequency: int | None = None

    def __post_init__(self) -> None:
        place = calling_place()
        given = [field.name for field in fields(self) if getattr(self, field.name) is not None]
        _whole(self, given, place, least=1)
        if (self.rate_limit_frequency_in_seconds is None) != (
            self.rate_limit_per_frequency is None
        ):
            raise place.refuse(
                "ExecutionLimits needs both rate_limit_frequency_in_seconds and "
                "rate_limit_per_frequency, or neither"
            )


@dataclass(frozen=True)
class PublishBudget:
    """How long publishing and reporting may take; the sum is reserved in the response timeout."""

    observed_merge_p99_seconds: int
    safety_margin_seconds: int
    lakefs_merge_timeout_seconds: int
    conductor_completion_timeout_seconds: int
    worker_shutdown_grace_seconds: int
    heartbeat_interval_seconds: int

    def __post_init__(self) -> None:
        place = calling_place()
        _whole(self, ("observed_merge_p99_seconds", "safety_margin_seconds"), place)
        timed = (
            "lakefs_merge_timeout_seconds",
            "conductor_completion_timeout_seconds",
            "worker_shutdown_grace_seconds",
            "heartbeat_interval_seconds",
        )
        _whole(self, timed, place, least=1)
        needed = self.observed_merge_p99_seconds + self.safety_margin_seconds
        if self.lakefs_merge_timeout_seconds < needed:
            raise place.refuse(
                f"PublishBudget.lakefs_merge_timeout_seconds is {self.lakefs_merge_timeout_seconds}"
                f", less than the observed p99 plus the safety margin ({needed})"
            )

    @property
    def reserve_seconds(self) -> int:
        """What must fit into the response timeout beside the longest silence of the body."""
        return (
            self.lakefs_merge_timeout_seconds
            + self.conductor_completion_timeout_seconds
            + self.worker_shutdown_grace_seconds
            + self.heartbeat_interval_seconds
        )


@dataclass(frozen=True)
class TaskControls:
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    timeout: TimeoutPolicy = field(default_factory=TimeoutPolicy)
    limits: ExecutionLimits = field(default_factory=ExecutionLimits)
    publish_budget: PublishBudget | None = None

    def __post_init__(self) -> None:
        place = calling_place()
        wanted = {"retry": RetryPolicy, "timeout": TimeoutPolicy, "limits": ExecutionLimits}
        for name, kind in wanted.items():
            if not isinstance(getattr(self, name), kind):
                raise place.refuse(f"TaskControls.{name} is a {kind.__name__}")
        if not isinstance(self.publish_budget, PublishBudget | None):
            raise place.refuse("TaskControls.publish_budget is a PublishBudget")


def _whole(declared: object, names: Iterable[str], place: Place, *, least: int = 0) -> None:
    for name in names:
        value = getattr(declared, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise place.refuse(
                f"{type(declared).__name__}.{name} is a whole number of at least {least}, "
                f"not {value!r}"
            )


def _one_of(value: object, choices: type[enum.StrEnum], what: str, place: Place) -> None:
    if value not in list(choices):
        known = ", ".join(choice.value for choice in choices)
        raise place.refuse(f"{what} is one of {known}, not {value!r}")
