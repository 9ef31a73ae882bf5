"""What is said of the operations that are known under one idempotency key."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.errors import Invalid, NotFound
from headgate.handles.nouns import Json


def only_operation(key: str, found: Sequence[Json]) -> Json:
    """The one operation; none says that nothing was committed, several ask which."""
    if not found:
        raise NotFound(
            f"nothing was committed under the key {key!r}: it never began, was refused, or is "
            "over 30 days old.",
            key=key,
            operation=None,
            state="not_committed",
            publication=None,
        )
    if len(found) > 1:
        raise Invalid(
            f"{len(found)} operations have the key {key!r}: say which by branch and kind.",
            key=key,
            operations=list(found),
        )
    return found[0]
