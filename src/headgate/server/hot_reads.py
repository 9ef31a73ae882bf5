"""Repeated loads of tables, answered on the event loop from the bytes of an earlier reply.

A reply to a load on a branch is kept with the number of the newest publication. It is sent again,
to the same token, while the token is valid and nothing was published since: one query by keys
shows both. Other requests pass through, such as loads in a transaction, in a job or of the past.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import parse_qs, unquote

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headgate.catalog.attempts import token_digest
from headgate.catalog.tokens import Stamps
from headgate.errors import HeadgateError
from headgate.iceberg.delegation import DELEGATION_HEADER
from headgate.iceberg.service import Service, checked_name, parse_levels
from headgate.model.contexts import BranchContext, decode_prefix
from headgate.model.names import DatasetName
from headgate.server.connections import recognize
from headgate.tables.versions import WeighedCache

_START = b"/iceberg/v1/"
_CACHE_BYTES = 64 * 1024 * 1024
# Of an entry beside its body.
_ENTRY_BYTES = 2048
# Cleanup drops snapshots from the metadata that readers get, without a publication.
_KEPT_SECONDS = 30.0
_DELEGATION = DELEGATION_HEADER.encode()
# Headers of a request with a body.
_BODY = frozenset((b"content-length", b"transfer-encoding"))


@dataclass(frozen=True, kw_only=True)
class _Load:
    """A request to load a table on a branch."""

    prefix: str
    name: DatasetName
    # Whether the client marks the loads of its statements; see `ServedVersions`.
    marked: bool


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """A reply that is as good as new while `publication` is the newest one."""

    load: _Load
    publication: int
    until: float
    location: str
    actor: str | None
    etag: bytes
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes


class HotReads:
    """ASGI middleware around the application of a server."""

    def __init__(self, app: ASGIApp, service: Service, stamps: Stamps) -> None:
        self._app, self._service, self._stamps = app, service, stamps
        self._entries: WeighedCache[_Entry] = WeighedCache(limit=_CACHE_BYTES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw: bytes = scope.get("raw_path") or b""
        is_read = raw.startswith(_START) and scope.get("method") == "GET"
        headers = dict(scope["headers"]) if is_read else {}
        kind, _, token = headers.get(b"authorization", b"").partition(b" ")
        # A reply with access to storage is for its own request only.
        has_access = self._service.delegation is not None and _DELEGATION in headers
        if kind.lower() != b"bearer" or not _BODY.isdisjoint(headers) or has_access:
            await self._app(scope, receive, send)
            return
        digest = token_digest(token.strip().decode("latin-1"))
        key = f"{digest} {raw!r} {scope['query_string']!r}"
        entry = self._entries.find(key)
        is_kept = entry is not None and entry.until > time.monotonic()
        if entry is None or not is_kept or await self._stamps.read(digest) != entry.publication:
            entry = await self._fill(key, digest, scope, receive, send)
            if entry is None:
                return
        else:
            recognize(scope)
            scope.setdefault("state", {})["actor"] = entry.actor
            load = entry.load
            self._service.served.note_load(
                load.prefix, load.name, entry.location, marked=load.marked
            )
        is_known = headers.get(b"if-none-match") == entry.etag
        sent = [(b"etag", entry.etag)] if is_known else entry.headers
        status = 304 if is_known else 200
        await send({"type": "http.response.start", "status": status, "headers": list(sent)})
        await send({"type": "http.response.body", "body": b"" if is_known else entry.body})

    async def _fill(
        self, key: str, digest: str, scope: Scope, receive: Receive, send: Send
    ) -> _Entry | None:
        """Pass a request on; return the reply if it may be kept, and send any other reply."""
        load = _parse(scope)
        before = await self._stamps.read(digest) if load is not None else None
        if load is None or before is None:
            await self._app(scope, receive, send)
            return None
        state = scope.setdefault("state", {})
        asked = [one for one in scope["headers"] if one[0] != b"if-none-match"]
        messages: list[Message] = []

        async def hold(message: Message) -> None:
            messages.append(message)

        await self._app({**scope, "headers": asked}, receive, hold)
        headers = dict(messages[0]["headers"]) if messages else {}
        if b"etag" not in headers or messages[0]["status"] != 200:
            for message in messages:
                await send(message)
            return None
        body = b"".join(message.get("body", b"") for message in messages[1:])
        entry = _Entry(
            load=load,
            publication=before,
            until=time.monotonic() + _KEPT_SECONDS,
            location=orjson.loads(body)["metadata-location"],
            actor=state.get("actor"),
            etag=headers[b"etag"],
            headers=[
                (name, headers[name]) for name in (b"content-type", b"content-length", b"etag")
            ],
            body=body,
        )
        # Only if nothing was published while the reply was made.
        if await self._stamps.read(digest) == before:
            self._entries.put(key, entry, weight=len(body) + len(key) + _ENTRY_BYTES)
        return entry


def _parse(scope: Scope) -> _Load | None:
    """Return what a path asks for, if it is a load of a table on a branch."""
    parts = scope["raw_path"].removeprefix(_START).decode("latin-1").split("/")
    if len(parts) != 5 or parts[1::2] != ["namespaces", "tables"]:
        return None
    prefix, _, namespace, _, table = parts
    try:
        context, _ = decode_prefix(prefix)
        name = checked_name(parse_levels(unquote(namespace)), unquote(table))
    except HeadgateError:
        return None
    if not isinstance(context, BranchContext):
        return None
    asked = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    return _Load(prefix=prefix, name=name, marked="snapshots" in asked)
