"""Files that a table's metadata refers to: which they are, and where new ones may be.

A table writes below its own location only. Cleanup and backups know the warehouse, so a file
elsewhere would be looked after by neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headgate.errors import MissingExtra, StorageUnavailable, TablePlaceRefused
from headgate.model.object_store import ObjectStore
from headgate.storage.address import canonical, key_below
from headgate.tables.metadata import Json, Metadata

if TYPE_CHECKING:
    from headgate.tables.manifests import ManifestReader

_STATISTICS = ("statistics", "partition-statistics")
# Parts of the metadata that refer to files, and the key of the address in each.
_ADDRESS_KEYS = {"snapshots": "manifest-list", **dict.fromkeys(_STATISTICS, "statistics-path")}
# Properties that name a directory for new files.
_LOCATION_SETTINGS = frozenset(
    {
        "write.data.path",
        "write.metadata.path",
        "write.object-storage.path",
        "write.folder-storage.path",
    }
)
# Properties that name a class of the client, which chooses a location for each file.
_PROVIDER_SETTINGS = frozenset({"write.location-provider.impl", "write.py-location-provider.impl"})


@dataclass(frozen=True, kw_only=True)
class References:
    """Files that a metadata file refers to; those in its manifest lists are not included."""

    # One for each snapshot.
    manifest_lists: frozenset[str]
    statistics: frozenset[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class ManifestRef:
    """A manifest as a manifest list names it."""

    path: str
    length: int
    # The number of live files, where its writer counted them.
    files: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class FileRef:
    """A data or delete file that a snapshot needs."""

    path: str
    size: int


def references_of(metadata: Metadata, *, snapshots: Iterable[int] | None = None) -> References:
    """Return the files of these snapshots, or of all that the metadata lists."""
    chosen = None if snapshots is None else set(snapshots)
    listed = [
        snapshot
        for snapshot in metadata.get("snapshots") or []
        if chosen is None or snapshot["snapshot-id"] in chosen
    ]
    ids = {snapshot["snapshot-id"] for snapshot in listed}
    return References(
        manifest_lists=frozenset(s["manifest-list"] for s in listed if "manifest-list" in s),
        statistics=frozenset(
            file["statistics-path"]
            for kind in _STATISTICS
            for file in metadata.get(kind) or []
            if file["snapshot-id"] in ids
        ),
    )


def open_manifests(get: Callable[[str], bytes]) -> ManifestReader:
    """Open a reader of manifests, which gets the bytes of an address by `get`."""
    try:
        from headgate.tables import manifests  # noqa: PLC0415 - an optional extra, and slow
    except ImportError as error:
        raise MissingExtra(feature="reading the manifests of tables", extra="arrow") from error
    return manifests.ManifestReader(get)


def get_below(objects: ObjectStore, location: str) -> bytes:
    """Return the bytes at an address in this store, in any spelling."""
    key = key_below(objects.url, location)
    if key is None:
        raise StorageUnavailable(where=location, reason=f"it is not below {objects.url}")
    return objects.get(key)


# --- locations ------------------------------------------------------------------------------


def check_file_locations(metadata: Metadata, base: Metadata | None = None) -> None:
    """Raise if a setting or a new file is anywhere but below the table's location.

    Files that the base refers to may be elsewhere: those of a registered table stay where they
    are.
    """
    root = canonical(metadata["location"])
    for part, key in _ADDRESS_KEYS.items():
        for item in added_items(base or {}, metadata, part, key=key):
            place = item.get(key)
            if place and key_below(root, str(place)) is None:
                raise TablePlaceRefused(setting=key, value=str(place), location=root)
    for name, value in (metadata.get("properties") or {}).items():
        if name in _PROVIDER_SETTINGS:
            raise TablePlaceRefused(setting=name, value=value, location=root)
        if name in _LOCATION_SETTINGS:
            place = canonical(value.rstrip("/"))
            if place != root and not place.startswith(f"{root}/"):
                raise TablePlaceRefused(setting=name, value=value, location=root)


def added_items(
    base: Metadata, new: Metadata, part: str = "snapshots", *, key: str = "snapshot-id"
) -> list[Json]:
    """Return the items of a list in the metadata whose key the base does not have."""
    before, after = base.get(part) or [], new.get(part) or []
    if after[: len(before)] == before:
        # A commit keeps the same objects in the same order: this comparison costs nothing.
        return list(after[len(before) :])
    known = {item.get(key) for item in before}
    return [item for item in after if item.get(key) not in known]


def without_location_settings(properties: dict[str, str]) -> dict[str, str]:
    """Return the properties of a table from elsewhere without those that place its files."""
    settings = _LOCATION_SETTINGS | _PROVIDER_SETTINGS
    return {name: value for name, value in properties.items() if name not in settings}
