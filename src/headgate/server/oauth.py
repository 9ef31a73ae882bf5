"""The token endpoint of OAuth 2, for Iceberg clients that are configured with a credential.

A credential is `ID:SECRET`: the id or the actor of a token of Headgate, and the token. The access
token is the same token, so it ends, is revoked and is limited as that token is.
"""

import base64
import binascii
from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import parse_qsl, unquote_plus

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse

from headgate.errors import TokenRefused
from headgate.server.authorization import TOKEN_PATH, Authority
from headgate.server.connections import recognize

_ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"
_CREDENTIALS = "client_credentials"
# Clients renew a token that expires by an exchange.
_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"

_INVALID_CLIENT = "invalid_client"
_NOT_STORED = {"cache-control": "no-store"}


class _Refused(Exception):
    """A refusal, by its code in RFC 6749."""

    def __init__(self, status: int, code: str, text: str) -> None:
        super().__init__(text)
        self.status, self.code = status, code


def add_token_endpoint(
    app: FastAPI, authority: Authority, is_valid: Callable[[str], Awaitable[bool]]
) -> None:
    """Serve `POST /iceberg/v1/oauth/tokens`.

    :param is_valid: the check of tokens of strangers, on threads of its own.
    """

    async def issue(request: Request) -> JSONResponse:
        try:
            id, secret = _read_credential(await request.body(), request.headers)
            if not await is_valid(secret):
                raise _invalid("the client secret is not a valid token of this server")
            record, moment = await run_in_threadpool(authority.find_record, secret)
            if record is not None:
                authority.check(record, moment, "issue_token")
            known = {record.id, record.grant.actor} if record is not None else set()
            if id is not None and id not in known:
                raise _invalid("the client id is neither the id nor the actor of this token")
        except TokenRefused as refusal:
            return await wrong(request, refusal.message)
        except _Refused as refusal:
            text = f"{refusal}. Set the credential to ID:TOKEN, as `headgate token create` shows."
            if refusal.status == 401:
                return await wrong(request, text)
            return _error(refusal.status, refusal.code, text)
        recognize(request.scope)
        reply = {
            "access_token": secret,
            "token_type": "bearer",
            "issued_token_type": _ACCESS_TOKEN,
            "scope": "catalog",
        }
        if record is not None and record.expires_at is not None:
            seconds = (record.expires_at - moment) // 1_000_000
            return JSONResponse({**reply, "expires_in": max(0, seconds)}, headers=_NOT_STORED)
        return JSONResponse(reply, headers=_NOT_STORED)

    async def wrong(request: Request, text: str) -> JSONResponse:
        is_over = await authority.guesses.slow_down(request.client)
        return _error(429 if is_over else 401, _INVALID_CLIENT, text)

    app.add_route(TOKEN_PATH, issue, methods=["POST"], include_in_schema=False)


def _error(status: int, code: str, text: str) -> JSONResponse:
    document = {"error": code, "error_description": text}
    return JSONResponse(document, status_code=status, headers=_NOT_STORED)


def _invalid(text: str) -> _Refused:
    return _Refused(401, _INVALID_CLIENT, text)


def _read_credential(body: bytes, headers: Mapping[str, str]) -> tuple[str | None, str]:
    """Return the client id, if there is one, and the secret of a request."""
    form = dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))
    grant = form.get("grant_type")
    if grant == _EXCHANGE:
        if "subject_token" not in form:
            raise _Refused(400, "invalid_request", "the request has no subject_token")
        return None, form["subject_token"]
    if grant != _CREDENTIALS:
        text = f"grant_type must be {_CREDENTIALS} or {_EXCHANGE}, got {grant!r}"
        raise _Refused(400, "unsupported_grant_type", text)
    kind, _, encoded = headers.get("authorization", "").partition(" ")
    if kind.lower() == "basic":
        try:
            pair = base64.b64decode(encoded.strip(), validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            raise _Refused(400, "invalid_request", "the Basic header is not valid") from None
        id, _, secret = (unquote_plus(part) for part in pair.partition(":"))
        return id or None, secret
    if not form.get("client_secret"):
        raise _Refused(400, "invalid_request", "the request has no client_secret")
    return form.get("client_id") or None, form["client_secret"]
