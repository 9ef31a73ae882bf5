"""How routes are declared: an operation id with a rule, an example, every error described."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from headgate.model.access import rule_of
from headgate.server.api.models import Problem
from headgate.server.api.problems import MEANINGS

_PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": meaning} for status, meaning in MEANINGS.items()
}


def router(noun: str) -> APIRouter:
    """The routes of one noun."""
    return APIRouter(prefix="/api/v1", tags=[noun], responses=_PROBLEMS)


def documented(
    operation: str, model: Any, *, status: int = 200, paged: bool = False, what: str = "Done."
) -> dict[str, Any]:
    """The keywords of a route; one whose operation has no rule cannot be declared."""
    rule_of(operation)
    answer: dict[str, Any] = {"model": model, "description": what}
    if paged:
        answer["headers"] = {
            "Link": {
                "description": 'The next page, as `<…>; rel="next"`; absent on the last.',
                "schema": {"type": "string"},
            }
        }
    return {
        "operation_id": operation,
        "response_model": None,
        "status_code": status,
        "responses": {status: answer},
    }
