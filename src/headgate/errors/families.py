"""The root of all errors, and the families: what a caller can do about one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar


class HeadgateError(Exception):
    """The root: every error that Headgate raises on purpose."""

    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts

    def __str__(self) -> str:
        return self.message

    def to_json(self) -> dict[str, Any]:
        """The error as a program reads it: `{"error", "code", …facts}`."""
        return {"error": self.message, "code": self.code, **self.facts}


class Invalid(HeadgateError):
    """What was asked for cannot be done by anybody: change the request."""

    code = "invalid"


class NotFound(HeadgateError):
    """Something named does not exist."""

    code = "not_found"


class Exists(HeadgateError):
    """Something with that name is already there."""

    code = "exists"


class Conflict(HeadgateError):
    """Somebody else was first, or a fence refused: look again, then decide."""

    code = "conflict"


class Denied(HeadgateError):
    """The caller may not do this."""

    code = "denied"


class Unavailable(HeadgateError):
    """A part that is needed does not answer: try again, or mend it."""

    code = "unavailable"
    retryable = True


class WorkFailed(HeadgateError):
    """The work itself failed: a build, a task, a check, or user code."""

    code = "failed"


@cache
def kinds_by_code() -> Mapping[str, type[HeadgateError]]:
    """The kinds of errors that have a code of their own; some leaves share their family's."""
    kinds: list[type[HeadgateError]] = [HeadgateError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    return {kind.code: kind for kind in kinds if "code" in vars(kind)}


def rebuild(kind: type[HeadgateError], message: str, facts: Mapping[str, Any]) -> HeadgateError:
    """Rebuild an error that another process raised, with the sentence that it wrote there."""
    error = kind.__new__(kind)
    HeadgateError.__init__(error, message, **facts)
    return error
