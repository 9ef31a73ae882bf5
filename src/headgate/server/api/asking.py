"""What many routes are asked with: a page, an idempotency key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Header, Query

from headgate.errors import Invalid
from headgate.handles.idempotency import operation_key
from headgate.model.changes import OperationKey
from headgate.model.names import LABEL_LIMIT, check_label

_OPERATION_PARTS = 3

Limit = Annotated[int, Query(ge=1, le=1000, description="How many at most.")]
Cursor = Annotated[
    str | None,
    Query(
        max_length=1200, description="Where to go on: from the `Link` header of the page before."
    ),
]


@dataclass(frozen=True, kw_only=True)
class Keyed:
    """The idempotency key of a request, if it has one."""

    key: str | None
    # Kind, branch and request hash, where the client has settled them itself.
    settled: tuple[str, str, str] | None

    def operation(
        self, *, actor: str, kind: str, branch: str, request: Mapping[str, Any]
    ) -> OperationKey | None:
        """What makes a repeated request the same one; the principal is always the token's."""
        if self.key is None or self.settled is None:
            return operation_key(self.key, actor=actor, kind=kind, branch=branch, request=request)
        kind, branch, hashed = self.settled
        return OperationKey(
            principal=actor, kind=kind, branch=branch, key=self.key, request_hash=hashed
        )


def _keyed(
    key: Annotated[
        str | None,
        Header(
            alias="Idempotency-Key",
            description="A repeated request with this key is done once; kept for 30 days.",
        ),
    ] = None,
    settled: Annotated[
        str | None,
        Header(
            alias="Headgate-Operation",
            description="`kind branch hash` of the request, for clients that settle it themselves.",
        ),
    ] = None,
) -> Keyed:
    if key is not None:
        check_label(key, what="an idempotency key")
    if settled is None:
        return Keyed(key=key, settled=None)
    parts = settled.split(" ")
    if len(parts) != _OPERATION_PARTS or not all(0 < len(p) <= LABEL_LIMIT for p in parts):
        raise Invalid("Headgate-Operation is not `kind branch hash`.", given=settled[:LABEL_LIMIT])
    return Keyed(key=key, settled=(parts[0], parts[1], parts[2]))


KeyDependency = Annotated[Keyed, Depends(_keyed)]
