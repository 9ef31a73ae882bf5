"""Rows as values, and how the rows of two versions differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

Row: TypeAlias = dict[str, Any]

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True, kw_only=True)
class ChangedRow:
    """Two rows with one key: of each only the columns in which they differ."""

    key: Row
    before: Row
    after: Row


@dataclass(kw_only=True)
class RowChanges:
    """How many rows differ, and the first few of each sort."""

    added: int = 0
    removed: int = 0
    changed: int = 0
    added_rows: list[Row] = field(default_factory=list)
    removed_rows: list[Row] = field(default_factory=list)
    changed_rows: list[ChangedRow] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)


def left_over(old: Sequence[T], new: Sequence[T]) -> tuple[list[int], list[int]]:
    """Positions of what the other side does not have, or has fewer times."""
    spare = Counter(new)
    gone = [at for at, item in enumerate(old) if not _take(spare, item)]
    come = [at for at, item in enumerate(new) if _take(spare, item)]
    return gone, come


def _take(spare: Counter[T], item: T) -> bool:
    if spare[item] > 0:
        spare[item] -= 1
        return True
    return False
