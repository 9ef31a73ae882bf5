"""What makes a repeated request the same request."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from headgate.model.changes import OperationKey
from headgate.model.names import check_label

# Between the hash of what a request says and that of what it points at, if that was read.
_AND = "."


def operation_key(
    key: str | None,
    *,
    actor: str,
    kind: str,
    branch: str,
    request: Mapping[str, Any],
    contents: str | None = None,
) -> OperationKey | None:
    """The operation that a key names, with a hash of all that the request says; None without.

    `contents`: a digest of the files that it names, where they are there to be read.
    """
    if key is None:
        return None
    check_label(key, what="an idempotency key")
    said = request_hash(kind, request)
    return OperationKey(
        principal=actor,
        kind=kind,
        branch=branch,
        key=key,
        request_hash=f"{said}{_AND}{contents}" if contents else said,
    )


def is_same_request(one: str, other: str) -> bool:
    """Whether two hashes are of one request; contents count where both sides could read them."""
    (said, _, read), (said_there, _, read_there) = one.partition(_AND), other.partition(_AND)
    return said == said_there and (not read or not read_there or read == read_there)


def request_hash(kind: str, request: Mapping[str, Any]) -> str:
    """The same for the same request, however its parts were ordered."""
    canonical = json.dumps([kind, request], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
