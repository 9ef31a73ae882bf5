"""Access to S3 for clients without a key: policies, temporary keys, checks of what is signed."""

from __future__ import annotations

import hmac
import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import urllib3

from headgate.errors import Invalid, SigningRefused, StorageUnavailable
from headgate.storage.address import client_properties, first_set

# --- signatures -----------------------------------------------------------------------------

# Signature Version 4 of AWS: headers that authenticate a request to S3 or its token service.
UNSIGNED = "UNSIGNED-PAYLOAD"
_ALGORITHM = "AWS4-HMAC-SHA256"
# S3 encodes everything else.
_PLAIN = "-_.~"


@dataclass(frozen=True, kw_only=True)
class Keys:
    """An access key, with a token if it is temporary."""

    id: str
    secret: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)


def encode_path(path: str) -> str:
    """Return a decoded path as it is signed, each character encoded once."""
    return quote(path, safe=f"/{_PLAIN}")


def encode_query(parameters: Iterable[tuple[str, str]]) -> str:
    """Return decoded parameters as they are signed, in order."""
    encoded = sorted((quote(k, safe=_PLAIN), quote(v, safe=_PLAIN)) for k, v in parameters)
    return "&".join(f"{key}={value}" for key, value in encoded)


def sign(
    keys: Keys,
    *,
    method: str,
    host: str,
    path: str,
    query: str,
    headers: Mapping[str, str],
    payload: str,
    region: str,
    service: str,
    at: datetime,
) -> dict[str, str]:
    """Return the headers to add to a request.

    :param path: by `encode_path`, as `query` is by `encode_query`.
    :param headers: those to sign beside the added ones, by names in lower case.
    :param payload: the SHA-256 of the body, or what S3 accepts in its place.
    """
    moment = at.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    added = {"x-amz-date": moment, "x-amz-content-sha256": payload}
    if keys.session_token:
        added["x-amz-security-token"] = keys.session_token
    signed = {**headers, **added, "host": host}
    names = ";".join(sorted(signed))
    lines = "".join(f"{name}:{' '.join(signed[name].split())}\n" for name in sorted(signed))
    request = "\n".join((method, path, query, lines, names, payload))
    scope = f"{moment[:8]}/{region}/{service}/aws4_request"
    digest = sha256(request.encode()).hexdigest()
    key = f"AWS4{keys.secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, f"{_ALGORITHM}\n{moment}\n{scope}\n{digest}".encode(), "sha256")
    parts = (f"Credential={keys.id}/{scope}", f"SignedHeaders={names}")
    return {
        **added,
        "authorization": f"{_ALGORITHM} {', '.join(parts)}, Signature={signature.hex()}",
    }


# --- rights ---------------------------------------------------------------------------------

# The shortest that the token services allow.
LIFETIME_SECONDS = 900
# The longest session policy that the token services take.
POLICY_LETTERS = 2048
_PLACE = re.compile(r"s3://(?P<bucket>[^/]+)/(?P<prefix>.*)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Rights:
    """Where a client may read and write objects: addresses `s3://bucket/prefix/`."""

    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    # False where names of objects could tell a client what it may not read.
    lists: bool = True

    @property
    def readable(self) -> tuple[str, ...]:
        """Return where objects may be read: a writer reads its own."""
        return (*self.reads, *(one for one in self.writes if not one.startswith(self.reads)))

    @property
    def listed(self) -> tuple[str, ...]:
        return self.readable if self.lists else self.writes


def policy_document(
    rights: Rights, *, partition: str = "aws", until: datetime | None = None
) -> str:
    """Return the session policy that allows what the rights do, and nothing else.

    :param until: when the policy ends, if before the temporary key does.
    """

    def allow(actions: Sequence[str], resources: Iterable[str], **condition: Any) -> dict[str, Any]:
        if until is not None:
            condition["DateLessThan"] = {"aws:CurrentTime": f"{until:%Y-%m-%dT%H:%M:%SZ}"}
        more = {"Condition": condition} if condition else {}
        named = [f"arn:{partition}:s3:::{one}" for one in resources]
        return {"Effect": "Allow", "Action": actions, "Resource": named, **more}

    places = [(found["bucket"], _literal(found["prefix"])) for found in map(_split, rights.listed)]
    statements = [
        allow(["s3:ListBucket"], [bucket], StringLike={"s3:prefix": below})
        for bucket in sorted({bucket for bucket, _ in places})
        for below in [[f"{prefix}*" for at, prefix in places if at == bucket]]
    ]
    statements.append(allow(["s3:GetObject"], _objects(rights.readable)))
    if rights.writes:
        # Abort removes the parts of an upload that is not finished, never an object.
        writing = ["s3:PutObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"]
        statements.append(allow(writing, _objects(rights.writes)))
    document = {"Version": "2012-10-17", "Statement": statements}
    # In ASCII: the token services refuse characters beyond Latin-1 that are not escaped.
    return json.dumps(document, separators=(",", ":"))


def _objects(places: Iterable[str]) -> list[str]:
    return [f"{found['bucket']}/{_literal(found['prefix'])}*" for found in map(_split, places)]


def _literal(text: str) -> str:
    """Return text as a policy writes it where it does not mean a pattern or a variable."""
    return re.sub(r"[*?$]", lambda found: f"${{{found[0]}}}", text)


def _split(place: str) -> re.Match[str]:
    found = _PLACE.fullmatch(place)
    assert found is not None, f"{place} is not in S3"
    return found


# --- the store ------------------------------------------------------------------------------

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, kw_only=True)
class Site:
    """An S3-compatible store, and the key of this process for it."""

    keys: Keys
    region: str
    # Scheme, host and port.
    endpoints: tuple[tuple[str, str, int], ...]
    # Whether an address may have the bucket before the host; if the store does not read it there,
    # it would take another bucket from the path.
    has_virtual_hosts: bool
    token_service: str

    @classmethod
    def open(cls, environ: Mapping[str, str], *, token_service: str | None = None) -> Site:
        """Return the store that the AWS_* variables name."""
        id, secret = environ.get("AWS_ACCESS_KEY_ID"), environ.get("AWS_SECRET_ACCESS_KEY")
        if not id or not secret:
            raise Invalid(
                "store.access_delegation needs a key that can give access to clients: set "
                "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN)."
            )
        properties = client_properties(environ)
        region = properties.get("client.region", "us-east-1")
        named = properties.get("s3.endpoint")
        domain = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
        urls = [named] if named else [f"https://s3.{region}.{domain}", f"https://s3.{domain}"]
        service = token_service or first_set(environ, ("AWS_ENDPOINT_URL_STS",)) or named
        return cls(
            keys=Keys(id=id, secret=secret, session_token=environ.get("AWS_SESSION_TOKEN")),
            region=region,
            endpoints=tuple(_endpoint(url) for url in urls),
            has_virtual_hosts=properties.get("s3.path-style-access") != "true",
            token_service=service or f"https://sts.{region}.{domain}",
        )

    def find_bucket(self, endpoint: tuple[str, str, int]) -> str | None:
        """Return the bucket before a host; empty where the path has it, None for another store."""
        if endpoint in self.endpoints:
            return ""
        scheme, host, port = endpoint
        for known in self.endpoints if self.has_virtual_hosts else ():
            if (scheme, port) == known[::2] and host.endswith(f".{known[1]}"):
                return host.removesuffix(f".{known[1]}")
        return None


def _endpoint(url: str) -> tuple[str, str, int]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 0)


# --- temporary keys -------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TemporaryKeys:
    """A key that allows what its policy does, until it expires."""

    keys: Keys
    expires: datetime


def assume_role(site: Site, role: str, policy: str, *, session: str) -> TemporaryKeys:
    """Return a temporary key of a role, limited by a session policy."""
    form = {
        "Action": "AssumeRole",
        "Version": "2011-06-15",
        "RoleArn": role,
        "RoleSessionName": session,
        "DurationSeconds": str(LIFETIME_SECONDS),
        "Policy": policy,
    }
    body = encode_query(form.items()).encode()
    url = urlsplit(site.token_service)
    kind = {"content-type": "application/x-www-form-urlencoded"}
    added = sign(
        site.keys,
        method="POST",
        host=url.netloc,
        path=url.path or "/",
        query="",
        headers=kind,
        payload=sha256(body).hexdigest(),
        region=site.region,
        service="sts",
        at=datetime.now(UTC),
    )
    try:
        reply = urllib3.request(
            "POST", site.token_service, body=body, headers={**kind, **added}, timeout=10, retries=2
        )
        found = ET.fromstring(reply.data)
        if reply.status != 200:
            raise StorageUnavailable(
                where=site.token_service, reason=_text(found, "Message") or f"HTTP {reply.status}"
            )
        keys = Keys(
            id=_text(found, "AccessKeyId"),
            secret=_text(found, "SecretAccessKey"),
            session_token=_text(found, "SessionToken"),
        )
        expires = datetime.fromisoformat(_text(found, "Expiration"))
    except (urllib3.exceptions.HTTPError, ET.ParseError, ValueError) as error:
        raise StorageUnavailable(where=site.token_service, reason=str(error)) from error
    return TemporaryKeys(keys=keys, expires=expires)


def _text(document: ET.Element, name: str) -> str:
    return document.findtext(f".//{{*}}{name}") or ""


# --- requests to sign -----------------------------------------------------------------------

_READ, _WRITE, _LIST = "read", "write", "list"
# Parameters of each operation by its method: those that it must have, and those that it may have.
_OPERATIONS: Sequence[tuple[str, str, frozenset[str], frozenset[str]]] = tuple(
    (method, right, frozenset(must.split()), frozenset(may.split()))
    for method, right, must, may in (
        ("GET", _READ, "", "partNumber"),
        ("HEAD", _READ, "", "partNumber"),
        ("PUT", _WRITE, "", ""),
        ("PUT", _WRITE, "partNumber uploadId", ""),
        ("POST", _WRITE, "uploads", ""),
        ("POST", _WRITE, "uploadId", ""),
        # Aborts an upload.
        ("DELETE", _WRITE, "uploadId", ""),
        ("GET", _WRITE, "uploadId", "max-parts part-number-marker"),
    )
)
_LISTING = frozenset(
    ("prefix", "delimiter", "max-keys", "list-type", "marker", "start-after", "encoding-type")
) | {"continuation-token", "fetch-owner"}
# Of all S3's own headers: others copy objects, open them to strangers or lock them.
_S3_HEADERS = re.compile(
    r"x-amz-(?:content-sha256|decoded-content-length|trailer|checksum-[a-z0-9-]+"
    r"|sdk-checksum-algorithm|server-side-encryption(?:-[a-z0-9-]+)?|storage-class|request-payer"
    r"|expected-bucket-owner|mp-object-size|user-agent|te|meta-[a-z0-9._-]+)"
)
_OTHER_SIGNED = frozenset(("content-md5", "range", "if-match", "if-none-match"))
_PAYLOAD = re.compile(rf"{UNSIGNED}|STREAMING-{UNSIGNED}-TRAILER|[0-9a-f]{{64}}")
_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_UNSAFE_KEY = re.compile(r"(?:^|/)\.{0,2}(?:/|$)|[\0-\x1f\x7f\\]")


@dataclass(frozen=True, kw_only=True)
class StorageRequest:
    """A request to S3 that a client wants signed, decoded, and with what it needs a right for."""

    right: str
    # The object, or where a list begins.
    address: str
    method: str
    scheme: str
    host: str
    path: str
    query: str
    headers: Mapping[str, str]

    def is_allowed(self, rights: Rights) -> bool:
        """Return whether the request is below a place that the rights name for it."""
        return any(self.address.startswith(place) for place in self._places(rights))

    def check(self, rights: Rights, named: Iterable[str] = ()) -> None:
        """Raise unless the rights allow the request, or it reads one of the named objects."""
        if self.is_allowed(rights) or (self.right == _READ and self.address in named):
            return
        below = ", ".join(self._places(rights)) or "no place of its own"
        reason = f"this client may {self.right} in {below} only"
        raise SigningRefused(method=self.method, address=self.address, reason=reason)

    def _places(self, rights: Rights) -> tuple[str, ...]:
        return {_READ: rights.readable, _WRITE: rights.writes, _LIST: rights.listed}[self.right]

    def signed(self, site: Site, at: datetime) -> dict[str, Any]:
        """Return the reply to the client: the address as signed, and the headers to add."""
        added = sign(
            site.keys,
            method=self.method,
            host=self.host,
            path=self.path,
            query=self.query,
            headers=self.headers,
            payload=self.headers.get("x-amz-content-sha256", UNSIGNED),
            region=site.region,
            service="s3",
            at=at,
        )
        # A client would send the headers that it has twice.
        new = {name: [value] for name, value in added.items() if name not in self.headers}
        uri = f"{self.scheme}://{self.host}{self.path}"
        return {"uri": f"{uri}?{self.query}" if self.query else uri, "headers": new}


def read_request(
    site: Site, method: str, uri: str, headers: Mapping[str, Sequence[str]]
) -> StorageRequest:
    """Return a request to sign; raise for one that is not plainly a read, a write or a list."""

    def refused(reason: str) -> SigningRefused:
        # Without the query, which may have a signature.
        return SigningRefused(method=method, address=uri.partition("?")[0], reason=reason)

    try:
        parts = urlsplit(uri)
        endpoint = _endpoint(uri)
        key = unquote(parts.path, errors="strict").removeprefix("/")
    except ValueError:
        raise refused("its address is not valid") from None
    if "@" in parts.netloc or parts.fragment or _ESCAPE.search(f"{parts.path}{parts.query}"):
        raise refused("its address is not valid")
    bucket = site.find_bucket(endpoint)
    if bucket is None:
        raise refused("it is for another store")
    if not bucket:
        bucket, _, key = key.partition("/")
    query = parse_qsl(parts.query, keep_blank_values=True)
    parameters = {name: value for name, value in query if name != "x-id"}
    if len(parameters) != sum(name != "x-id" for name, _ in query):
        raise refused("a parameter is there twice")
    if "" in (parameters.get("uploadId"), parameters.get("partNumber")):
        # Some stores take an empty one for none: they would delete the object, or replace it.
        raise refused("its upload or part has no name")
    if key:
        right = _right_to(method, frozenset(parameters))
        if right is None:
            raise refused("only reads and writes of objects and lists are signed, never deletes")
        if _UNSAFE_KEY.search(key):
            raise refused("its key has an empty part, a part of dots or a control character")
    else:
        right, key = _LIST, parameters.get("prefix", "")
        if method != "GET" or not parameters.keys() <= _LISTING:
            raise refused("of a bucket only lists are signed")
    host = parts.netloc.lower().removesuffix(f":{_PORTS.get(parts.scheme)}")
    return StorageRequest(
        right=right,
        address=f"s3://{bucket}/{key}",
        method=method,
        scheme=parts.scheme,
        host=host,
        path=encode_path(unquote(parts.path)) or "/",
        query=encode_query(query),
        headers=_headers_to_sign(headers, host, refused),
    )


def _right_to(method: str, parameters: frozenset[str]) -> str | None:
    for known, right, must, may in _OPERATIONS:
        if method == known and must <= parameters <= must | may:
            return right
    return None


def _headers_to_sign(
    headers: Mapping[str, Sequence[str]], host: str, refused: Any
) -> dict[str, str]:
    """Return the headers that the signature covers: those that change what S3 does."""
    named = {name.lower(): values for name, values in headers.items()}
    if len(named) != len(headers):
        raise refused("a header is there twice")
    found: dict[str, str] = {}
    for name, values in named.items():
        text = ",".join(values)
        if not text.isprintable():
            raise refused(f"its header {name} has a control character")
        if name == "authorization" or (
            name.startswith("x-amz-") and not _S3_HEADERS.fullmatch(name)
        ):
            raise refused(f"requests with the header {name} are not signed")
        if name == "host" and text.lower().removesuffix(":443").removesuffix(":80") != host:
            raise refused("its header host is not that of its address")
        if name.startswith("x-amz-") or name in _OTHER_SIGNED:
            found[name] = text
    if not _PAYLOAD.fullmatch(found.get("x-amz-content-sha256", UNSIGNED)):
        raise refused("its body would have to be signed in parts")
    return found
