"""The HTTP client of a served store: documents, contents, event streams and the server's errors."""

import json
import os
import re
import secrets
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, fields
from http.client import IncompleteRead
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from urllib3 import BaseHTTPResponse, HTTPConnectionPool, connection_from_url
from urllib3.exceptions import HTTPError, LocationParseError, MaxRetryError
from urllib3.util import Retry, Timeout, parse_url

from headgate import errors
from headgate.errors.families import kinds_by_code, rebuild
from headgate.files.objects import MOST_TREES, TREE_HEADER
from headgate.model.changes import Receipt
from headgate.model.names import check_label, check_limit, invalid_text
from headgate.store.documents import Json, to_receipt

_PREFIX = "/api/v1"
_CHUNK_BYTES = 1024 * 1024
_TIMEOUT_SECONDS = 330
# A server that is down must not delay a Git hook or a command for minutes.
_CONNECT_SECONDS = 10
# Idle connections that are kept; more may be in use at once.
_KEPT_CONNECTIONS = 32
_PAGE = 1000
_NEXT_PAGE = re.compile('<([^>]*)>; rel="next"')
# For requests of any method, on a new connection; no status is a reason to repeat a request.
_ONE_RETRY = Retry(1, allowed_methods=None, respect_retry_after_header=False)
# Redirects are not followed: the token is for this server only.
_REJECTED = 300

Params = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Reply:
    headers: Mapping[str, str]
    document: Any

    @property
    def replayed(self) -> bool:
        """Return whether this repeats the reply to an earlier request with the same key."""
        return self.headers.get("idempotency-replayed") == "true"

    @property
    def receipt(self) -> Receipt:
        """Return the receipt of a publication, or of an operation that changed nothing."""
        return to_receipt(self.document, replayed=self.replayed)


class HttpClient:
    """Requests to one server, from any number of threads, over connections that are kept open."""

    def __init__(self, url: str, token: str | None) -> None:
        self.url = url.rstrip("/")
        try:
            parts = parse_url(self.url)
            if parts.scheme not in {"http", "https"} or not parts.host or parts.auth:
                raise LocationParseError(url)
        except LocationParseError as error:
            raise errors.Invalid(
                f"{url!r} is not the URL of a server: write http://host:port."
            ) from error
        self._root = parts.path or ""
        self._token = token
        # Roots of the trees of files read last: a request for contents names them.
        self._trees: tuple[str, ...] = ()
        self._renew_pool()

    # --- documents --------------------------------------------------------------------------

    def get(self, path: str, /, **params: Any) -> Json:
        return self.call("GET", path, params=params)

    def post(self, path: str, /, **body: Any) -> Json:
        """Send a request that publishes nothing; it is sent only once."""
        return self.call("POST", path, body=body)

    def call(self, method: str, path: str, **how: Any) -> Json:
        """Send one request as `request` does, and return its document."""
        document: Json = self.request(method, path, **how).document
        return document

    def publish(
        self,
        method: str,
        path: str,
        key: str | None,
        *,
        params: Params | None = None,
        body: Json | None = None,
    ) -> Reply:
        """Send a request that publishes; its idempotency key makes it repeatable."""
        if key is not None:
            check_label(key, what="an idempotency key")
        headers = {"Idempotency-Key": key or secrets.token_hex(16)}
        return self.request(
            method, path, params=params, body=body, headers=headers, repeatable=True
        )

    def request(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        body: Json | None = None,
        headers: Mapping[str, str] | None = None,
        repeatable: bool | None = None,
        timeout_seconds: float = _TIMEOUT_SECONDS,
    ) -> Reply:
        """Send one request and return its document; by default only reads are repeatable."""
        response = self._send(
            method,
            _target(path, params),
            body,
            headers,
            repeatable=method in {"GET", "HEAD"} if repeatable is None else repeatable,
            timeout_seconds=timeout_seconds,
        )
        document = response.json() if response.data else None
        return Reply(headers=response.headers, document=document)

    def pages(self, path: str, /, *, limit: int | None = None, **params: Any) -> Iterator[Any]:
        """Yield the items of a list, page by page; at most `limit` of them."""
        check_limit(limit)
        left = sys.maxsize if limit is None else limit
        target: str | None = _target(path, {**params, "limit": min(left, _PAGE)})
        while target is not None and left > 0:
            response = self._send("GET", target, repeatable=True)
            items = response.json()[:left]
            yield from items
            left -= len(items)
            following = _NEXT_PAGE.search(response.headers.get("link", ""))
            target = following[1] if following else None

    def check_context(self, context: str) -> None:
        """Raise where the server's Iceberg endpoint rejects a context."""
        self.iceberg("config", warehouse=context)

    def iceberg(self, path: str, /, **params: str) -> Json:
        """Return a document of the server's Iceberg endpoint."""
        target = f"{self._root}/iceberg/v1/{path}?{urlencode(params)}"
        found: Json = self._send("GET", target, repeatable=True).json()
        return found

    # --- bytes ------------------------------------------------------------------------------

    def exists(self, path: str) -> bool:
        try:
            self.request("HEAD", path)
        except errors.NotFound:
            return False
        return True

    def send_file(self, path: str, source: Path | bytes, *, method: str = "PUT") -> None:
        """Send bytes, or a file as it is read, to a name that is their digest: repeatable."""
        length = source.stat().st_size if isinstance(source, Path) else len(source)
        headers = {"Content-Length": str(length), "Content-Type": "application/octet-stream"}
        self._send(method, _target(path), source, headers, repeatable=True)

    def stream(self, path: str, /, *, body: Json | None = None, **params: Any) -> Iterator[bytes]:
        """Yield the bytes of a reply as they arrive, over a connection that is not shared.

        A request with a body reads as well, so it is repeatable until its reply begins.
        """
        response = self._send(
            "GET" if body is None else "POST",
            _target(path, params),
            body,
            repeatable=True,
            streamed=True,
        )
        try:
            while chunk := response.read1(_CHUNK_BYTES):
                yield chunk
        except HTTPError as error:
            raise self._unavailable(error, repeatable=True) from error
        finally:
            # A connection with the rest of a reply on it cannot be used again.
            response.close()

    def note_tree(self, root: str) -> None:
        """Name the tree of files in later requests, which may be for its contents."""
        if root not in self._trees:
            # Replaced as a whole, because several threads read it.
            self._trees = (*self._trees, root)[-MOST_TREES:]

    def close(self) -> None:
        """Close all idle connections, and those in use when their replies have been read."""
        self._pool.close()
        self._renew_pool()

    # --- one exchange -----------------------------------------------------------------------

    def _send(
        self,
        method: str,
        target: str,
        body: Json | bytes | Path | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        repeatable: bool,
        timeout_seconds: float = _TIMEOUT_SECONDS,
        streamed: bool = False,
    ) -> BaseHTTPResponse:
        """Return the reply to a request; a repeatable one is sent a second time if it is lost."""
        sent = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        if self._trees:
            sent[TREE_HEADER] = ",".join(self._trees)
        if isinstance(body, dict):
            body = json.dumps(body).encode()
            sent["Content-Type"] = "application/json"
        sent.update(headers or {})
        if self._pid != os.getpid():
            # A forked process must not share connections with its parent.
            self._renew_pool()
        try:
            with body.open("rb") if isinstance(body, Path) else nullcontext(body) as data:
                response = self._pool.urlopen(
                    method,
                    self._root + target if target.startswith(_PREFIX) else target,
                    data,
                    sent,
                    retries=_ONE_RETRY if repeatable else False,
                    redirect=False,
                    timeout=Timeout(
                        connect=min(timeout_seconds, _CONNECT_SECONDS), read=timeout_seconds
                    ),
                    preload_content=not streamed,
                )
            if response.status >= _REJECTED:
                raise _rejection(response)
            if (tree := response.headers.get(TREE_HEADER)) is not None:
                self.note_tree(tree)
        except HTTPError as error:
            raise self._unavailable(error, repeatable=repeatable) from error
        return response

    def _renew_pool(self) -> None:
        self._pid = os.getpid()
        self._pool: HTTPConnectionPool = connection_from_url(self.url, maxsize=_KEPT_CONNECTIONS)

    def _unavailable(self, error: HTTPError, *, repeatable: bool) -> errors.Unavailable:
        # urllib3 wraps the error that has the reason, of the socket or of `http.client`.
        wrapper = error.reason or error if isinstance(error, MaxRetryError) else error
        cause = wrapper.__cause__ or wrapper.args[-1]
        reason = getattr(cause, "strerror", None) or str(cause)
        if isinstance(cause, IncompleteRead):
            reason = "the connection was cut in the middle of a response"
        doubt = "" if repeatable else " The request may have been carried out: check that first."
        return errors.Unavailable(
            f"the server {self.url} does not answer: {reason}.{doubt}", url=self.url
        )


def segment(text: str, *, safe: str = "") -> str:
    """Quote a name as one segment of a path."""
    try:
        return quote(text, safe=safe)
    except UnicodeEncodeError as error:
        raise invalid_text(text) from error


def path_of(text: str) -> str:
    """Quote a path inside a path; its slashes stay."""
    return segment(text, safe="/")


def _target(path: str, params: Params | None = None) -> str:
    given = {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in (params or {}).items()
        if value is not None
    }
    try:
        return f"{_PREFIX}{path}?{urlencode(given, doseq=True)}" if given else f"{_PREFIX}{path}"
    except UnicodeEncodeError as error:
        raise invalid_text(error.object) from error


def events(chunks: Iterable[bytes]) -> Iterator[tuple[str, Json]]:
    """Yield the name and the document of each server-sent event; comments have no document."""
    rest = b""
    for chunk in chunks:
        *blocks, rest = (rest + chunk).split(b"\n\n")
        for block in blocks:
            lines = (line.partition(":") for line in block.decode().split("\n"))
            event = {name: value.strip() for name, _, value in lines}
            if "data" in event:
                yield event.get("event", "message"), json.loads(event["data"])


# A code that this version does not have is mapped by its status.
_FAMILIES: dict[int, type[errors.HeadgateError]] = {
    400: errors.Invalid,
    401: errors.TokenRefused,
    403: errors.Denied,
    404: errors.NotFound,
    409: errors.Conflict,
    413: errors.Invalid,
    422: errors.WorkFailed,
}


def failure(status: int, sent: Json) -> errors.HeadgateError:
    """Return the error that the server raised: the same class, message and facts."""
    facts = {name: value for name, value in sent.items() if name not in {"error", "code"}}
    message = str(sent.get("error") or f"the server answered {status}.")
    kind = kinds_by_code().get(str(sent.get("code"))) or _FAMILIES.get(status, errors.Unavailable)
    if kind is errors.Conflict and facts.get("reason") == errors.RowsChanged.REASON:
        kind = errors.RowsChanged
    if kind is errors.Conflict and facts.get("conflicts"):
        names = [field.name for field in fields(errors.Mismatch)]
        return errors.ViewConflict(
            [errors.Mismatch(**{name: one[name] for name in names}) for one in facts["conflicts"]]
        )
    return rebuild(kind, message, facts)


def _rejection(response: BaseHTTPResponse) -> errors.HeadgateError:
    try:
        sent = response.json()
    except ValueError:
        sent = None
    if isinstance(sent, dict) and isinstance(sent.get("error"), dict):
        # The Iceberg endpoint's own form.
        sent = sent["error"].get("headgate")
    return failure(response.status, sent if isinstance(sent, dict) and "code" in sent else {})
