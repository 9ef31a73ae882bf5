"""What makes a repeated command the same request."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from headgate.model.changes import OperationKey


def operation_key(
    key: str | None, *, actor: str, kind: str, branch: str, request: Mapping[str, Any]
) -> OperationKey | None:
    """The operation that a key names, with a hash of all that the request says; None without."""
    if key is None:
        return None
    return OperationKey(
        principal=actor, kind=kind, branch=branch, key=key, request_hash=request_hash(kind, request)
    )


def request_hash(kind: str, request: Mapping[str, Any]) -> str:
    """The same for the same request, however its parts were ordered."""
    canonical = json.dumps([kind, request], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
