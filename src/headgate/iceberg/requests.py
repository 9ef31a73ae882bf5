"""Requests as the handlers see them: decoded once, checked as they are read."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import unquote
from uuid import UUID

import orjson

from headgate.errors import MalformedRequest
from headgate.iceberg.service import Idempotency, Namespace, Principal
from headgate.model.contexts import Context
from headgate.model.names import DatasetName, check_name_part
from headgate.tables.shape import Json, as_object, read_object, read_str, read_strings

_LEVELS = "\x1f"
_PAGE_SIZE = 1000
_DEPTH_LIMIT = 100


@dataclass(frozen=True, kw_only=True)
class Request:
    """One call on a context, by a known principal."""

    method: str
    path: str
    # The prefix as sent: a context, and which of its clients asks.
    prefix: str
    context: Context
    principal: Principal
    # The path's variable segments, still percent-encoded.
    arguments: Mapping[str, str]
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    @cached_property
    def json(self) -> Json:
        """The body as a JSON object."""
        try:
            found = orjson.loads(self.body)
        except orjson.JSONDecodeError as error:
            raise MalformedRequest(what="the request body", reason="it is not JSON") from error
        _check_depth(found)
        return as_object(found, what="the request body")

    @property
    def namespace(self) -> Namespace:
        """The namespace in the path; `%1F` separates its levels."""
        return parse_levels(unquote(self.arguments["namespace"]))

    @property
    def table(self) -> DatasetName:
        """The table in the path."""
        return checked_name(self.namespace, unquote(self.arguments["table"]))

    @property
    def idempotency(self) -> Idempotency | None:
        """The client's key, if it sent one."""
        key = self.headers.get("idempotency-key")
        if key is None:
            return None
        try:
            canonical = str(UUID(key))
        except ValueError as error:
            raise MalformedRequest(what="the Idempotency-Key", reason="it is no UUID") from error
        digest = hashlib.sha256(f"{self.method} {self.path}\n".encode() + self.body)
        return Idempotency(key=canonical, request_hash=digest.hexdigest())


def _check_depth(value: Any) -> None:
    """What nests deeper could be stored but not be written out again with a reply around it."""
    level = [value]
    for _ in range(_DEPTH_LIMIT):
        level = [
            inner
            for item in level
            if isinstance(item, dict | list)
            for inner in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return
    raise MalformedRequest(what="the request body", reason="it is nested too deeply")


def parse_levels(text: str) -> Namespace:
    """A namespace from its levels in one text."""
    levels = tuple(text.split(_LEVELS))
    for level in levels:
        check_name_part(level, what="namespace", whole=".".join(levels))
    return levels


def checked_name(namespace: Namespace, name: str) -> DatasetName:
    """A dataset name whose every part is one that Headgate allows."""
    found = DatasetName(namespace=namespace, name=name)
    for part in (*namespace, name):
        check_name_part(part, what="dataset", whole=".".join((*namespace, name)))
    if not namespace:
        raise MalformedRequest(what=f"table {name!r}", reason="it has no namespace")
    return found


def read_identifier(source: Mapping[str, Any], key: str) -> DatasetName:
    """A table identifier inside a body."""
    identifier = read_object(source, key)
    return checked_name(tuple(read_strings(identifier, "namespace")), read_str(identifier, "name"))


def page(request: Request, names: Sequence[str]) -> tuple[list[str], str | None]:
    """One page of sorted names and the token of the next; all of them where none was asked for.

    A token is the last name of its page, so names that come and go in between shift nothing.
    """
    ordered = sorted(names)
    token = request.query.get("pageToken")
    if token is None:
        return ordered, None
    after = _decode_token(token)
    rest = [name for name in ordered if not token or name > after]
    size = _page_size(request)
    shown = rest[:size]
    if len(rest) <= size:
        return shown, None
    return shown, base64.urlsafe_b64encode(shown[-1].encode()).decode()


def _decode_token(token: str) -> str:
    try:
        return base64.b64decode(token, altchars=b"-_", validate=True).decode()
    except ValueError as error:
        raise MalformedRequest(
            what="the pageToken", reason="it is not one that was given out"
        ) from error


def _page_size(request: Request) -> int:
    text = request.query.get("pageSize", str(_PAGE_SIZE))
    if not text.isdecimal() or int(text[:9]) < 1:
        raise MalformedRequest(what="the pageSize", reason="it must be a positive integer")
    return min(int(text[:9]), _PAGE_SIZE)
