"""The state that table updates are applied to: metadata, and what this commit has added so far."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from headgate.errors import ImpossibleTableChange
from headgate.tables.shape import Json, Metadata


@dataclass(frozen=True, kw_only=True)
class State:
    """Metadata in the making; -1 in an update refers to the `last_…` that this commit added."""

    metadata: Metadata
    now_ms: int
    last_schema_id: int | None = None
    last_spec_id: int | None = None
    last_order_id: int | None = None
    added_snapshots: frozenset[int] = frozenset()

    def put(self, **fields: Any) -> State:
        """The same state with metadata fields set; `_` in a name stands for `-`."""
        changed = {name.replace("_", "-"): value for name, value in fields.items()}
        return replace(self, metadata={**self.metadata, **changed})

    def drop(self, *names: str) -> State:
        """The same state without those metadata fields."""
        kept = {name: value for name, value in self.metadata.items() if name not in names}
        return replace(self, metadata=kept)

    def items(self, name: str) -> list[Json]:
        """A list field of the metadata; a missing one is empty."""
        return list(self.metadata.get(name) or [])

    @property
    def format_version(self) -> int:
        return int(self.metadata.get("format-version", 2))


def refuse(change: str, reason: str) -> ImpossibleTableChange:
    """The error for an update that no version of the table could take."""
    return ImpossibleTableChange(change=change, reason=reason)
