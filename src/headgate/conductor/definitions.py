"""What registering would change on the server; pure."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# What a server fills in by itself where a definition says nothing; it is no difference.
_SERVER_OWN = {"createTime", "updateTime", "createdBy", "updatedBy", "ownerApp"}


class Standing(enum.StrEnum):
    NEW = "new"
    CHANGED = "changed"
    SAME = "same"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One definition, ours beside the server's: field, theirs, ours."""

    name: str
    standing: Standing
    changes: tuple[tuple[str, Any, Any], ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "task": self.name,
            "state": self.standing.value,
            "changes": {field: {"from": old, "to": new} for field, old, new in self.changes},
        }


def compare(ours: Mapping[str, Any], theirs: Mapping[str, Any] | None) -> Comparison:
    """What registering ours would change; fields of theirs that ours leaves alone do not count."""
    name = str(ours["name"])
    if theirs is None:
        return Comparison(name=name, standing=Standing.NEW)
    changes = tuple(
        (field, theirs.get(field), value)
        for field, value in ours.items()
        if not _is_same(theirs.get(field), value)
    )
    standing = Standing.CHANGED if changes else Standing.SAME
    return Comparison(name=name, standing=standing, changes=changes)


def _is_same(theirs: Any, ours: Any) -> bool:
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        wanted = {key: value for key, value in ours.items() if key not in _SERVER_OWN}
        return all(_is_same(theirs.get(key), value) for key, value in wanted.items())
    # A number that the server keeps as nothing is its zero.
    return bool(theirs == ours or (theirs is None and ours == 0))
