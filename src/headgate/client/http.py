"""Server-sent events, as they come."""

from __future__ import annotations

import http.client
import json
import secrets
import ssl
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

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
from headgate.errors.families import kinds_by_code, rebuild
from headgate.model.changes import OperationKey
from headgate.model.names import check_limit, no_text
from headgate.store.documents import Json

# Errors that a server sent, raised here as what they were there.

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
    return rebuild(kind, message, facts)


def _mismatch(sent: Json) -> Mismatch:
    return Mismatch(
        dataset=sent["dataset"],
        branch=sent["branch"],
        field=sent["field"],
        expected=sent["expected"],
        actual=sent["actual"],
    )


# The line to a server: requests and replies over HTTP, by the standard library alone.

_PREFIX = "/api/v1"
_CHUNK_BYTES = 1024 * 1024
_PATIENCE_SECONDS = 330
_REFUSED = 400
_PAGE = 1000

Params = Mapping[str, Any]
Body = bytes | Path | None


@dataclass(frozen=True, kw_only=True)
class Reply:
    headers: Mapping[str, str]
    document: Any

    @property
    def replayed(self) -> bool:
        """Whether this is the answer to an earlier request with the same key."""
        return self.headers.get("idempotency-replayed") == "true"


class Line:
    """Connections to one server, as many as talk to it at once."""

    def __init__(self, url: str, token: str | None) -> None:
        parts = urlsplit(url.rstrip("/"))
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.username:
            raise Invalid(f"{url!r} is not the URL of a server: write http://host:port.")
        self.url = url.rstrip("/")
        self._secure = parts.scheme == "https"
        self._host, self._port, self._below = parts.hostname, parts.port, parts.path
        self._token = token
        self._all: list[http.client.HTTPConnection] = []
        self._free: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()

    # --- documents --------------------------------------------------------------------------

    def get(self, path: str, /, **params: Any) -> Any:
        return self.ask("GET", path, params=params).document

    def post(self, path: str, /, **body: Any) -> Any:
        """A request that publishes nothing: it is sent once."""
        return self.ask("POST", path, body=body).document

    def publish(
        self,
        method: str,
        path: str,
        operation: OperationKey | None,
        *,
        params: Params | None = None,
        body: Json | None = None,
    ) -> Reply:
        """A request that publishes; it has a key, so sending it again is safe."""
        headers = {"Idempotency-Key": operation.key if operation else secrets.token_hex(16)}
        if operation is not None:
            settled = (operation.kind, operation.branch, operation.request_hash)
            headers["Headgate-Operation"] = " ".join(settled)
        return self.ask(method, path, params=params, body=body, headers=headers, again=True)

    def ask(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        body: Json | None = None,
        headers: Mapping[str, str] | None = None,
        again: bool | None = None,
        patience_seconds: float = _PATIENCE_SECONDS,
    ) -> Reply:
        """One request, one document."""
        sent = None if body is None else json.dumps(body).encode()
        kind = {"Content-Type": "application/json"} if sent is not None else {}
        repeatable = method in {"GET", "HEAD"} if again is None else again
        where = _where(path, params)
        given = {**kind, **(headers or {})}
        with self._exchange(
            method, where, sent, given, again=repeatable, patience_seconds=patience_seconds
        ) as answer:
            text = answer.read()
            document = json.loads(text) if text and method != "HEAD" else None
            return Reply(headers=_lower(answer), document=document)

    def pages(self, path: str, /, *, most: int | None = None, **params: Any) -> Iterator[Any]:
        """Every item of a list, page after page; so many at most, where that is said."""
        check_limit(most)
        left = most
        where: str | None = _where(path, {**params, "limit": min(most or _PAGE, _PAGE)})
        while where is not None:
            with self._exchange("GET", where, None, {}, again=True) as answer:
                items = json.loads(answer.read())
                where = _next(_lower(answer).get("link"))
            for item in items:
                if left is not None and left <= 0:
                    return
                yield item
                left = left - 1 if left is not None else None

    # --- bytes ------------------------------------------------------------------------------

    def exists(self, path: str) -> bool:
        with self._exchange("HEAD", _where(path, None), None, {}, again=True, missing=True) as got:
            got.read()
            return got.status < _REFUSED

    def send_file(self, path: str, source: Path | bytes, *, method: str = "PUT") -> None:
        """Bytes, a file's as they are read; to names that their digests are, so repeatable."""
        length = source.stat().st_size if isinstance(source, Path) else len(source)
        size = {"Content-Length": str(length)}
        kind = {"Content-Type": "application/octet-stream"}
        with self._exchange(method, _where(path, None), source, size | kind, again=True) as answer:
            answer.read()

    def stream(self, path: str, /, *, body: Json | None = None, **params: Any) -> Iterator[bytes]:
        """A reply's bytes as they come; the connection is this stream's own until it ends.

        What is asked for by a body is only looked at, too, so that it may be asked again.
        """
        method, sent, kind = "GET", None, {}
        if body is not None:
            method, sent = "POST", json.dumps(body).encode()
            kind = {"Content-Type": "application/json"}
        with self._exchange(method, _where(path, params), sent, kind, again=True) as answer:
            expected = answer.length
            seen = 0
            while chunk := answer.read1(_CHUNK_BYTES):
                seen += len(chunk)
                yield chunk
            if expected is not None and seen != expected:
                # `read1` takes a connection that was cut for the end.
                raise http.client.IncompleteRead(b"", expected - seen)

    def close(self) -> None:
        with self._lock:
            for connection in self._all:
                connection.close()
            self._all.clear()
            self._free.clear()

    # --- below ------------------------------------------------------------------------------

    @contextmanager
    def _exchange(
        self,
        method: str,
        where: str,
        body: Body,
        headers: Mapping[str, str],
        *,
        again: bool,
        missing: bool = False,
        patience_seconds: float = _PATIENCE_SECONDS,
    ) -> Iterator[http.client.HTTPResponse]:
        """One request and its reply, once more on a new connection if the old one was lost."""
        connection = self._take()
        _be_patient(connection, patience_seconds)
        try:
            try:
                answer = self._send(connection, method, where, body, headers)
            except (OSError, http.client.HTTPException):
                connection.close()
                if not again:
                    raise
                answer = self._send(connection, method, where, body, headers)
            if answer.status >= _REFUSED and not (missing and answer.status == 404):
                raise _refusal(answer)
            yield answer
        except (OSError, http.client.HTTPException) as error:
            raise _lost(self.url, error, certain=again) from error
        finally:
            # What was not read to its end would be taken for the next reply.
            if not _is_finished(connection):
                connection.close()
            self._give_back(connection)

    def _send(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        where: str,
        body: Body,
        headers: Mapping[str, str],
    ) -> http.client.HTTPResponse:
        bearer = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        target = self._below + where if where.startswith(_PREFIX) else where
        if isinstance(body, Path):
            with body.open("rb") as file:
                connection.request(method, target, file, {**headers, **bearer})
        else:
            connection.request(method, target, body, {**headers, **bearer})
        return connection.getresponse()

    def _take(self) -> http.client.HTTPConnection:
        """A connection that nobody uses now, the one used last: the server has it open still."""
        with self._lock:
            if self._free:
                return self._free.pop()
        if self._secure:
            context = ssl.create_default_context()
            made: http.client.HTTPConnection = http.client.HTTPSConnection(
                self._host, self._port, timeout=_PATIENCE_SECONDS, context=context
            )
        else:
            made = http.client.HTTPConnection(self._host, self._port, timeout=_PATIENCE_SECONDS)
        with self._lock:
            self._all.append(made)
        return made

    def _give_back(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            self._free.append(connection)


def _be_patient(connection: http.client.HTTPConnection, seconds: float) -> None:
    """How long the next request waits for whatever it waits for, on this connection or a new."""
    connection.timeout = seconds
    if connection.sock is not None:
        connection.sock.settimeout(seconds)


def segment(text: str) -> str:
    """A name as one part of a path."""
    return _quote(text, safe="")


def path_of(text: str) -> str:
    """A path inside a path; its slashes stay."""
    return _quote(text, safe="/")


def _quote(text: str, *, safe: str) -> str:
    try:
        return quote(text, safe=safe)
    except UnicodeEncodeError as error:
        raise no_text(text) from error


def _where(path: str, params: Params | None) -> str:
    given = {name: value for name, value in (params or {}).items() if value is not None}
    words = {name: _word(value) for name, value in given.items()}
    try:
        query = f"?{urlencode(words, doseq=True)}" if words else ""
    except UnicodeEncodeError as error:
        raise no_text(error.object) from error
    return f"{_PREFIX}{path}{query}"


def _word(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


def _next(link: str | None) -> str | None:
    """Where a Link header says that the list goes on."""
    if link is None or 'rel="next"' not in link:
        return None
    return link[link.index("<") + 1 : link.index(">")]


def _lower(answer: http.client.HTTPResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in answer.getheaders()}


def _is_finished(connection: http.client.HTTPConnection) -> bool:
    response = getattr(connection, "_HTTPConnection__response", None)
    return response is None or response.isclosed()


def _refusal(answer: http.client.HTTPResponse) -> Exception:
    text = answer.read()
    try:
        sent = json.loads(text)
    except ValueError:
        sent = {}
    if not isinstance(sent, dict) or "code" not in sent:
        return failure(answer.status, {"error": f"the server answered {answer.status}."})
    return failure(answer.status, sent)


def _lost(url: str, error: Exception, *, certain: bool) -> Unavailable:
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error) or "it hung up"
    if isinstance(error, http.client.IncompleteRead):
        reason = "it hung up in the midst of an answer"
    rest = "" if certain else " What was asked for may or may not have happened: look first."
    return Unavailable(f"the server {url} does not answer: {reason}.{rest}", url=url)


def events(chunks: Iterable[bytes]) -> Iterator[tuple[str, Json]]:
    """Name and document of each event; comments, which only keep the line open, are passed over."""
    name, data = "message", ""
    for line in _lines(chunks):
        if line.startswith("event:"):
            name = line.removeprefix("event:").strip()
        elif line.startswith("data:"):
            data += line.removeprefix("data:").strip()
        elif not line and data:
            yield name, json.loads(data)
            name, data = "message", ""


def _lines(chunks: Iterable[bytes]) -> Iterator[str]:
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (line.decode() for line in whole)
