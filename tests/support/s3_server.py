"""The S3 server of the tests: moto, with atomic conditional writes, as in S3.

moto checks that the key is absent and stores the object without a lock between the two, so that two
of several concurrent creators may succeed. Started with the word `enforce`, it also checks what S3
checks: signatures, by botocore's own code, and the session policies of temporary keys.
"""

from __future__ import annotations

import io
import json
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs, parse_qsl, quote, unquote, urlencode, urlsplit
from xml.etree import ElementTree

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from werkzeug.serving import run_simple

from tests.support.session_policies import allows

_CONDITIONS = ("HTTP_IF_MATCH", "HTTP_IF_NONE_MATCH")


class OneConditionalWriteAtATime:
    def __init__(self, app: Callable[..., Iterable[bytes]]) -> None:
        self._app = app
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        writes = environ["REQUEST_METHOD"] in {"PUT", "POST"}
        if not writes or not any(condition in environ for condition in _CONDITIONS):
            return self._app(environ, start_response)
        if environ.get("CONTENT_LENGTH"):
            # Read before the lock is taken: a sender that pauses blocks no other request.
            body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
            environ["wsgi.input"] = io.BytesIO(body)
        with self._lock:
            return self._app(environ, start_response)


class Enforced:
    """Refuses requests with a wrong signature, and what a session policy does not allow."""

    def __init__(self, app: Callable[..., Iterable[bytes]]) -> None:
        self._app = app
        # Secret, session token and policy by the id of the key.
        self._keys: dict[str, tuple[str, str | None, Any]] = {"tests": ("not-a-secret", None, None)}

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        path, method = environ["RAW_URI"], environ["REQUEST_METHOD"]
        makes_bucket = method == "PUT" and path.count("/") == 1
        if path.startswith("/moto-api/") or (makes_bucket and "HTTP_AUTHORIZATION" not in environ):
            return self._app(environ, start_response)
        if refusal := self._refusal(environ):
            start_response("403 Forbidden", [("content-type", "application/xml")])
            return [f"<Error><Code>{refusal}</Code><Message>refused</Message></Error>".encode()]
        if "/sts/aws4_request" not in environ["HTTP_AUTHORIZATION"]:
            return self._app(environ, start_response)
        body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
        environ["wsgi.input"] = io.BytesIO(body)
        reply = b"".join(self._app(environ, start_response))
        self._note(parse_qs(body.decode()), ElementTree.fromstring(reply))
        return [reply]

    def _note(self, form: dict[str, list[str]], reply: ElementTree.Element) -> None:
        id, secret, token = (
            str(reply.findtext(f".//{{*}}{name}"))
            for name in ("AccessKeyId", "SecretAccessKey", "SessionToken")
        )
        self._keys[id] = secret, token, json.loads(form["Policy"][0])

    def _refusal(self, environ: dict[str, Any]) -> str | None:
        signed = re.fullmatch(
            r"AWS4-HMAC-SHA256 Credential=([^/]+)/\d+/([^/]+)/(\w+)/aws4_request, ?"
            r"SignedHeaders=([^,]+), ?Signature=(\w+)",
            environ.get("HTTP_AUTHORIZATION", ""),
        )
        if signed is None:
            return "AccessDenied"
        id, region, service, names, signature = signed.groups()
        if id not in self._keys:
            return "InvalidAccessKeyId"
        secret, token, policy = self._keys[id]
        if environ.get("HTTP_X_AMZ_SECURITY_TOKEN") != token:
            return "InvalidToken"
        headers = {name: _header(environ, name) for name in names.split(";")}
        moment = headers["x-amz-date"]
        at = datetime.strptime(moment, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        if abs((datetime.now(UTC) - at).total_seconds()) > 900:
            return "RequestTimeTooSkewed"
        path, _, query = environ["RAW_URI"].partition("?")
        # S3 reads a plus as a space.
        encoded = urlencode(parse_qsl(query, keep_blank_values=True), quote_via=quote, safe="-_.~")
        url = f"http://{environ['HTTP_HOST']}{path}?{encoded}"
        request = AWSRequest(method=environ["REQUEST_METHOD"], url=url, headers=headers)
        request.context["timestamp"] = moment
        auth = S3SigV4Auth(Credentials(id, secret), service, region)
        text = auth.string_to_sign(request, auth.canonical_request(request))
        if auth.signature(text, request) != signature:
            return "SignatureDoesNotMatch"
        if policy is not None and not all(
            allows(
                policy, action, resource, **context, aws_CurrentTime=datetime.now(UTC).isoformat()
            )
            for action, resource, context in _needed(environ)
        ):
            return "AccessDenied"
        return None


def _header(environ: dict[str, Any], name: str) -> str:
    key = name.upper().replace("-", "_")
    return str(environ.get(f"HTTP_{key}", environ.get(key, "")))


def _needed(environ: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Return the action and the resource of a request, with what conditions compare."""
    url, method = urlsplit(environ["RAW_URI"]), environ["REQUEST_METHOD"]
    bucket, _, key = unquote(url.path).removeprefix("/").partition("/")
    query = parse_qs(url.query, keep_blank_values=True)
    if not key:
        action = "s3:ListBucket" if method == "GET" else "s3:Other"
        yield action, bucket, {"s3_prefix": query.get("prefix", [""])[0]}
        return
    if "HTTP_X_AMZ_COPY_SOURCE" in environ:
        yield "s3:GetObject", unquote(environ["HTTP_X_AMZ_COPY_SOURCE"]).removeprefix("/"), {}
    known = {"GET": "GetObject", "HEAD": "GetObject", "PUT": "PutObject", "POST": "PutObject"}
    aborts = method == "DELETE" and "uploadId" in query
    action = "AbortMultipartUpload" if aborts else known.get(method, "DeleteObject")
    yield f"s3:{action}", f"{bucket}/{key}", {}


def main(port: int, *words: str) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    app: Any = DomainDispatcherApplication(create_backend_app)
    if "enforce" in words:
        app = Enforced(app)
    run_simple(
        "127.0.0.1",
        port,
        OneConditionalWriteAtATime(app),
        threaded=True,
        request_handler=MotoRequestHandler,
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
