"""Replies, and the one table that says how each error looks to an Iceberg client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from headgate import errors


@dataclass(frozen=True, kw_only=True)
class Reply:
    """An HTTP response, ready to be sent."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


# What Spark does with a status decides it (403: fails at once and deletes its staged files;
# 409: tries again for two seconds, then cleans up; 5xx: asks whether the commit has landed).
# The nearest class in an error's ancestry counts.
_FORBIDDEN = (403, "ForbiddenException")
_NO_TABLE = (404, "NoSuchTableException")
_COMMIT_FAILED = (409, "CommitFailedException")
ERROR_TABLE: dict[type[errors.HeadgateError], tuple[int, str]] = {
    errors.Invalid: (400, "BadRequestException"),
    errors.Denied: _FORBIDDEN,
    # A superseded attempt and a closed transaction never succeed later: no retries, clean up.
    errors.AttemptSuperseded: _FORBIDDEN,
    errors.TransactionNotOpen: _FORBIDDEN,
    errors.NotFound: (404, "NotFoundException"),
    errors.TableNotFound: _NO_TABLE,
    errors.DatasetNotFound: _NO_TABLE,
    errors.NamespaceNotFound: (404, "NoSuchNamespaceException"),
    errors.Exists: (409, "AlreadyExistsException"),
    errors.Conflict: _COMMIT_FAILED,
    errors.NamespaceNotEmpty: (409, "NamespaceNotEmptyException"),
    errors.Unavailable: (503, "ServiceUnavailableException"),
    errors.OutcomeUnknown: (500, "CommitStateUnknownException"),
    errors.CommitInterrupted: (500, "CommitStateUnknownException"),
    errors.WorkFailed: (500, "InternalServerError"),
    errors.HeadgateError: (500, "InternalServerError"),
}


def status_of(error: errors.HeadgateError) -> tuple[int, str]:
    """HTTP status and Iceberg's exception name for an error."""
    for kind in type(error).__mro__:
        if kind in ERROR_TABLE:
            return ERROR_TABLE[kind]
    return ERROR_TABLE[errors.HeadgateError]


def error_reply(error: errors.HeadgateError, *, authenticated: bool = True) -> Reply:
    """The protocol's error body; the stable code ends the message, where Spark shows it too."""
    status, kind = status_of(error)
    if status == 403 and not authenticated:
        status, kind = 401, "NotAuthorizedException"
    facts = orjson.loads(orjson.dumps(error.to_json(), default=str))
    return problem(status, kind, f"{error.message} [{error.code}]", facts=facts)


def problem(status: int, kind: str, message: str, *, facts: Any = None) -> Reply:
    """An error body as the protocol words it."""
    model = {"message": message, "type": kind, "code": status, "stack": []}
    if facts is not None:
        model["headgate"] = facts
    return json_reply({"error": model}, status=status)


def json_reply(value: Any, *, status: int = 200) -> Reply:
    """A JSON document."""
    return Reply(
        status=status, body=orjson.dumps(value), headers={"content-type": "application/json"}
    )


NO_CONTENT = Reply(status=204)
