"""Where a table's files may be written: below its own location, and nowhere else.

Cleanup knows what is below the warehouse, and so does whoever backs it up. Clients take these
settings at their word, so a table that had them would leave files that nobody looks after.
"""

from __future__ import annotations

from collections.abc import Iterator

from headgate.errors import TablePlaceRefused
from headgate.storage.places import canonical, key_below
from headgate.tables.shape import Json, Metadata

PLACES = frozenset(
    {
        "write.data.path",
        "write.metadata.path",
        "write.object-storage.path",
        "write.folder-storage.path",
    }
)
# Classes of the client's that choose a place for each file; what they choose cannot be known.
PROVIDERS = frozenset({"write.location-provider.impl", "write.py-location-provider.impl"})
# What the metadata names by address, and under which key.
_NAMED = {
    "snapshots": "manifest-list",
    "statistics": "statistics-path",
    "partition-statistics": "statistics-path",
}


def check_places(metadata: Metadata, base: Metadata | None = None) -> None:
    """Refuses settings and files anywhere but below the table's location.

    What the base has already may lie elsewhere: a registered table's files stay where they are.
    """
    root = canonical(metadata["location"])
    for kind, place in _added_places(metadata, base or {}):
        if key_below(root, place) is None:
            raise TablePlaceRefused(setting=kind, value=place, location=root)
    for name, value in (metadata.get("properties") or {}).items():
        if name in PROVIDERS:
            raise TablePlaceRefused(setting=name, value=value, location=root)
        if name in PLACES:
            place = canonical(value.rstrip("/"))
            if place != root and not place.startswith(f"{root}/"):
                raise TablePlaceRefused(setting=name, value=value, location=root)


def unseen(
    base: Metadata, new: Metadata, part: str = "snapshots", *, key: str = "snapshot-id"
) -> list[Json]:
    """Of a list in the metadata, the items whose key the base does not have."""
    before, after = base.get(part) or [], new.get(part) or []
    if after[: len(before)] == before:
        # The same objects in the same order, as a commit leaves them: compared at no cost.
        return list(after[len(before) :])
    known = {item.get(key) for item in before}
    return [item for item in after if item.get(key) not in known]


def _added_places(metadata: Metadata, base: Metadata) -> Iterator[tuple[str, str]]:
    for part, key in _NAMED.items():
        for item in unseen(base, metadata, part, key=key):
            if place := item.get(key):
                yield key, str(place)


def without_places(properties: dict[str, str]) -> dict[str, str]:
    """The properties of a table from elsewhere, without those that say where it writes."""
    return {
        name: value
        for name, value in properties.items()
        if name not in PLACES and name not in PROVIDERS
    }
