"""Errors over HTTP: one table from family to status, one body, every error in it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from headgate.errors import (
    Conflict,
    Denied,
    Exists,
    HeadgateError,
    Invalid,
    NotFound,
    TokenRefused,
    Unavailable,
    WorkFailed,
)
from headgate.server.api.replies import JsonReply

_log = logging.getLogger("headgate.server")

STATUSES: dict[type[HeadgateError], int] = {
    Invalid: 400,
    TokenRefused: 401,
    Denied: 403,
    NotFound: 404,
    Conflict: 409,
    Exists: 409,
    WorkFailed: 422,
    Unavailable: 503,
    HeadgateError: 500,
}
# Refusals of the request itself, before any of the above can happen.
TIMED_OUT, TOO_LARGE, TOO_SLOW = 408, 413, 504
# As proxies write down a request whose client hung up; it is never sent.
CLIENT_GONE = 499

MEANINGS: Mapping[int, str] = {
    400: "The request cannot be done by anybody: change it.",
    401: "There is no bearer token, or it is unknown, expired or revoked.",
    403: "The token's role or branch patterns do not allow this, or the branch is protected.",
    404: "Something that is named does not exist.",
    TIMED_OUT: "The body did not arrive in time.",
    409: "Somebody else was first, a fence refused, or the name is taken; nothing was changed.",
    TOO_LARGE: "The body is larger than this server takes.",
    422: "The work itself failed: a build, a check, or user code.",
    503: "A part that is needed does not answer, or is busy: try again.",
    TOO_SLOW: "No answer in time; what was asked for may still happen. Ask by its key.",
}


def status_of(error: HeadgateError) -> int:
    """The status of the nearest family."""
    return next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)


def problem(error: HeadgateError) -> JsonReply:
    """`{"error", "code", …facts}`, as the command line prints it."""
    status = status_of(error)
    headers = {"www-authenticate": "Bearer"} if status == 401 else None
    return JsonReply(error.to_json(), status_code=status, headers=headers)


def refusal(status: int, code: str, message: str, **facts: Any) -> JsonReply:
    """The same of a request that never came as far as a verb."""
    return JsonReply({"error": message, "code": code, **facts}, status_code=status)


def _unrouted(error: HTTPException, request: Request) -> JsonReply:
    path = request.url.path
    if error.status_code == 404:
        told = f"there is no route {path}: /api/openapi.json describes those there are."
        return refusal(404, "no_such_route", told)
    if error.status_code == 405:
        told = f"{path} does not take {request.method}: see /api/openapi.json."
        return refusal(405, "method_not_allowed", told)
    return refusal(error.status_code, "http", f"{str(error.detail).lower()}.")


def handle_errors(app: FastAPI) -> None:
    """Every error that a route can end in becomes a body of the one shape."""

    async def known(_: Request, error: Exception) -> JsonReply:
        assert isinstance(error, HeadgateError)
        return problem(error)

    async def malformed(_: Request, error: Exception) -> JsonReply:
        assert isinstance(error, RequestValidationError)
        fields = [
            {"where": ".".join(str(part) for part in found["loc"]), "what": found["msg"]}
            for found in error.errors()
        ]
        told = "; ".join(f"{field['where']}: {field['what']}" for field in fields)
        return refusal(
            400, "malformed_request", f"the request cannot be read: {told}.", fields=fields
        )

    async def unrouted(request: Request, error: Exception) -> JsonReply:
        assert isinstance(error, HTTPException)
        reply = _unrouted(error, request)
        reply.headers.update(error.headers or {})
        return reply

    async def gone(_: Request, __: Exception) -> JsonReply:
        # No defect, and nobody is left to read this; the log has it beside the other requests.
        return refusal(CLIENT_GONE, "client_gone", "the client left before its body had arrived.")

    async def unforeseen(request: Request, error: Exception) -> JsonReply:
        # The log has the traceback; the reply says nothing of what may have been in it.
        _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return refusal(500, "defect", "this is a defect of Headgate; the server's log has it.")

    app.add_exception_handler(HeadgateError, known)
    app.add_exception_handler(RequestValidationError, malformed)
    app.add_exception_handler(HTTPException, unrouted)
    app.add_exception_handler(ClientDisconnect, gone)
    app.add_exception_handler(Exception, unforeseen)
