"""What travels together to a store that is far away: small contents, up to a bound."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

# Larger ones are worth a journey of their own.
SMALL_BYTES = 256 * 1024
_MOST_BYTES = 2 * 1024 * 1024
# Few enough that several batches are under way for a tree of a thousand files.
_MOST = 250
# Of batches that are under way at once, and of large ones by themselves.
BATCHES_AHEAD = 8


def batched(
    items: Iterable[T], size_of: Callable[[T], int], *, together: bool
) -> Iterator[list[T]]:
    """The items in batches: large ones, or all if they do not travel together, by themselves."""
    batch: list[T] = []
    size = 0
    for item in items:
        own = size_of(item)
        if not together or own > SMALL_BYTES:
            yield [item]
            continue
        if len(batch) >= _MOST or size + own > _MOST_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += own
    if batch:
        yield batch
