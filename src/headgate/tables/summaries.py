"""What a snapshot says of itself: how many files and rows came, went, and are there now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headgate.tables.arrow import DataFile
from headgate.tables.shape import Json

_TOTALS = {
    "total-data-files": ("added-data-files", "deleted-data-files"),
    "total-records": ("added-records", "deleted-records"),
    "total-files-size": ("added-files-size", "removed-files-size"),
}
_KEPT = ("total-delete-files", "total-position-deletes", "total-equality-deletes")


def summarize(
    parent: Json | None,
    operation: str,
    removed: Sequence[DataFile],
    added: Sequence[Any],
    facts: Mapping[str, str],
    *,
    replaces_all: bool = False,
) -> dict[str, str]:
    """The summary of a snapshot on top of its parent's."""
    counts = {
        "added-data-files": len(added),
        "added-records": sum(file.record_count for file in added),
        "added-files-size": sum(file.file_size_in_bytes for file in added),
        "deleted-data-files": len(removed),
        "deleted-records": sum(file.row_count for file in removed),
        "removed-files-size": sum(file.size_bytes for file in removed),
    }
    before: Mapping[str, str] = (parent or {}).get("summary") or {}
    summary = {"operation": operation, **facts}
    summary |= {name: str(count) for name, count in counts.items() if count}
    for name, (plus, minus) in _TOTALS.items():
        known = str(before.get(name, "0" if parent is None else "?"))
        if known.isdigit():
            summary[name] = str(int(known) + counts[plus] - counts[minus])
    for name in _KEPT:
        # Files of deletes stay listed, also where all that they apply to is gone.
        if parent is None or replaces_all:
            summary[name] = "0"
        elif name in before:
            summary[name] = str(before[name])
    return summary
