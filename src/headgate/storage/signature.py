"""Signature Version 4 of AWS: headers that authenticate a request to S3 or its token service."""

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import quote

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
    digest = hashlib.sha256(request.encode()).hexdigest()
    key = f"AWS4{keys.secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, f"{_ALGORITHM}\n{moment}\n{scope}\n{digest}".encode(), "sha256")
    parts = (f"Credential={keys.id}/{scope}", f"SignedHeaders={names}")
    return {
        **added,
        "authorization": f"{_ALGORITHM} {', '.join(parts)}, Signature={signature.hex()}",
    }
