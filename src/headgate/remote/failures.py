"""Errors that a server sent, raised here as what they were there."""

from __future__ import annotations

from headgate.errors import (
    Conflict,
    Denied,
    HeadgateError,
    Invalid,
    Mismatch,
    NotFound,
    RowsChanged,
    TokenRefused,
    Unavailable,
    ViewConflict,
    WorkFailed,
)
from headgate.errors.retelling import kinds_by_code, retold
from headgate.handles.nouns import Json

# Where a code is not known on this side, its status still tells what can be done about it.
_FAMILIES: dict[int, type[HeadgateError]] = {
    400: Invalid,
    401: TokenRefused,
    403: Denied,
    404: NotFound,
    409: Conflict,
    413: Invalid,
    422: WorkFailed,
}


def failure(status: int, sent: Json) -> HeadgateError:
    """The error of this status and body: the same leaf, sentence and facts."""
    facts = {name: value for name, value in sent.items() if name not in {"error", "code"}}
    code, message = str(sent.get("code")), str(sent.get("error") or f"status {status}")
    kind = kinds_by_code().get(code) or _FAMILIES.get(status, Unavailable)
    if kind is Conflict and facts.get("reason") == RowsChanged.REASON:
        kind = RowsChanged
    if kind is Conflict and facts.get("conflicts"):
        return ViewConflict([_mismatch(one) for one in facts["conflicts"]])
    return retold(kind, message, facts)


def _mismatch(sent: Json) -> Mismatch:
    return Mismatch(
        dataset=sent["dataset"],
        branch=sent["branch"],
        field=sent["field"],
        expected=sent["expected"],
        actual=sent["actual"],
    )
