"""Parts that several share: made at first use, once, and ended by one of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Shared(Generic[T]):
    """One part for all who hold this, from the first who asks until it is taken away."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: T | None = None
        self._lock = threading.Lock()

    def get(self) -> T:
        """The part; whoever comes while it is being made waits for it."""
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made

    def take_away(self) -> T | None:
        """The part, to be ended, if anybody had ever asked for it."""
        with self._lock:
            made, self._made = self._made, None
            return made
