"""Long lists of ids, in parts that both databases take as the parameters of one statement."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T", bound=str)

_SIZE = 500


def in_chunks(ids: Iterable[T]) -> Iterator[list[T]]:
    """The ids in ascending order, each once; nothing where there are none."""
    wanted = sorted(set(ids))
    for start in range(0, len(wanted), _SIZE):
        yield wanted[start : start + _SIZE]
