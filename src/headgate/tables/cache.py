"""A cache that is bounded by what its values weigh."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

T = TypeVar("T")


class WeighedCache(Generic[T]):
    """Keeps the values used last, up to a total weight; safe to use from many threads."""

    def __init__(self, *, limit: int) -> None:
        self._limit = limit
        self._total = 0
        self._held: OrderedDict[str, tuple[T, int]] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, key: str) -> T | None:
        """The value, which thereby becomes the one used last."""
        with self._lock:
            if key not in self._held:
                return None
            self._held.move_to_end(key)
            return self._held[key][0]

    def put(self, key: str, value: T, *, weight: int) -> None:
        """Keeps a value; what was used longest ago makes room, and one too heavy is not kept."""
        with self._lock:
            if key in self._held:
                self._total -= self._held.pop(key)[1]
            if weight > self._limit:
                return
            self._held[key] = (value, weight)
            self._total += weight
            while self._total > self._limit:
                _, (_, freed) = self._held.popitem(last=False)
                self._total -= freed
