"""A socket that breaks while psycopg waits on it.

The kernel may report an error on a socket just before it reports its end; psycopg then raises and
leaves the connection open in the middle of a command. Tests choose the wait that fails.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from psycopg import OperationalError, waiting


class Waits:
    """Counts the waits for an answer of the server, and breaks one of them."""

    def __init__(self, breaking: int) -> None:
        self.left = breaking

    @property
    def broken(self) -> bool:
        return self.left < 0

    def wait(self, answer: Generator[Any, Any, Any], *arguments: Any, **named: Any) -> Any:
        self.left -= 1
        if self.left != -1:
            return _WAIT(answer, *arguments, **named)
        try:
            next(answer)
        except StopIteration as nothing_to_wait_for:
            self.left = 0
            return nothing_to_wait_for.value
        raise OperationalError("connection socket closed")


_WAIT = waiting.wait


@contextmanager
def breaking_at(wait: int) -> Iterator[Waits]:
    """Break the socket once, after this many waits, when a command was sent."""
    waits = Waits(wait)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(waiting, "wait", waits.wait)
        yield waits
