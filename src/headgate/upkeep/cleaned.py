"""What a cleanup did, or would do, and why."""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

_EXAMPLES = 20


class Step(enum.StrEnum):
    CONDEMN = "condemn"
    SWEEP = "sweep"
    # Condemned before, and needed again.
    SPARE = "spare"


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """One thing that was condemned, swept or spared: what, where, and why."""

    step: Step
    what: str
    where: str
    why: str
    bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Kept:
    """How much is left alone for one reason, with some of it by name where that helps."""

    what: str
    why: str
    count: int
    bytes: int
    examples: tuple[str, ...] = ()


@dataclass(kw_only=True)
class Cleaned:
    """The report of one cleanup."""

    dry_run: bool
    items: list[Item] = field(default_factory=list)
    _counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    _bytes: Counter[tuple[str, str]] = field(default_factory=Counter)
    _examples: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    @property
    def condemned(self) -> int:
        return self._count(Step.CONDEMN)

    @property
    def deleted(self) -> int:
        return self._count(Step.SWEEP)

    @property
    def spared(self) -> int:
        return self._count(Step.SPARE)

    @property
    def bytes(self) -> int:
        """How many bytes the deleted objects had."""
        return sum(item.bytes for item in self.items if item.step is Step.SWEEP)

    @property
    def kept(self) -> list[Kept]:
        return [
            Kept(
                what=what,
                why=why,
                count=count,
                bytes=self._bytes[what, why],
                examples=tuple(self._examples.get((what, why), ())),
            )
            for (what, why), count in sorted(self._counts.items())
        ]

    def add(self, step: Step, what: str, where: str, why: str, *, bytes: int = 0) -> None:
        self.items.append(Item(step=step, what=what, where=where, why=why, bytes=bytes))

    def keep(
        self, what: str, why: str, *, count: int = 1, bytes: int = 0, example: str | None = None
    ) -> None:
        self._counts[what, why] += count
        self._bytes[what, why] += bytes
        if example is not None:
            shown = self._examples.setdefault((what, why), [])
            if len(shown) < _EXAMPLES:
                shown.append(example)

    def to_json(self) -> dict[str, Any]:
        return {
            "condemned": self.condemned,
            "deleted": self.deleted,
            "bytes": self.bytes,
            "kept": [asdict(kept) for kept in self.kept],
            "dry_run": self.dry_run,
            "spared": self.spared,
            "items": [asdict(item) for item in self.items],
        }

    def _count(self, step: Step) -> int:
        return sum(item.step is step for item in self.items)
