"""Files that a table's metadata refers to: which they are, and where new ones may be.

A table writes below its own location only. Cleanup and backups know the warehouse, so a file
elsewhere is looked after by neither: only where `[store] allowed_locations` says may tables lie.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from headgate import errors
from headgate.model.object_store import ObjectStore
from headgate.storage.address import canonical, key_below, read_outside
from headgate.tables.metadata import Json, Metadata

if TYPE_CHECKING:
    from headgate.tables.manifests import ManifestReader

T = TypeVar("T")
R = TypeVar("R")

_STATISTICS = ("statistics", "partition-statistics")
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
    rows: int
    # False for a file that an earlier snapshot added, in a manifest that was rewritten.
    is_added: bool


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
        raise errors.MissingExtra(
            feature="reading the manifests of tables", extra="arrow"
        ) from error
    return manifests.ManifestReader(get)


def get_below(objects: ObjectStore, location: str) -> bytes:
    """Return the bytes at an address in this store, in any spelling."""
    key = key_below(objects.url, location)
    if key is None:
        raise errors.StorageUnavailable(where=location, reason=f"it is not below {objects.url}")
    return objects.get(key)


def get_anywhere(objects: ObjectStore, options: Mapping[str, str], location: str) -> bytes:
    """Return the bytes at an address in this store or elsewhere, as a registered table has them."""
    key = key_below(objects.url, location)
    return read_outside(location, options) if key is None else objects.get(key)


@dataclass(frozen=True, kw_only=True)
class NewFiles:
    """Files that a version of a table names and its base does not."""

    manifest_lists: tuple[str, ...] = ()
    manifests: tuple[ManifestRef, ...] = ()
    # Data files, delete files and deletion vectors.
    contents: tuple[FileRef, ...] = ()
    statistics: tuple[str, ...] = ()

    def addresses(self) -> list[str]:
        """Return where they all are, each once."""
        contents = (file.path for file in self.contents)
        manifests = (manifest.path for manifest in self.manifests)
        return list(dict.fromkeys([*self.manifest_lists, *manifests, *contents, *self.statistics]))


def find_new_files(
    metadata: Metadata,
    base: Metadata | None,
    get: Callable[[str], bytes],
    roots: Sequence[str] = (),
) -> NewFiles:
    """Return the files of all snapshots that the base does not have.

    Raise `TablePlaceRefused` if one of them is below neither the table's location nor one of the
    other `roots`, and `UnreadableTableFile` if a manifest is missing or damaged. Only new manifests
    are read, so the cost follows the change, apart from the manifest lists, which Iceberg writes
    whole.
    """
    before = base or {}
    snapshots = [s for s in added_items(before, metadata) if "manifest-list" in s]
    statistics = [
        item["statistics-path"]
        for kind in _STATISTICS
        for item in added_items(before, metadata, kind, key="statistics-path")
    ]
    if not snapshots and not statistics:
        return NewFiles()
    roots = (canonical(metadata["location"]), *roots)
    for place in statistics:
        check_place(place, roots, "statistics-path")
    if not snapshots:
        return NewFiles(statistics=tuple(statistics))
    lists = [snapshot["manifest-list"] for snapshot in snapshots]
    for place in lists:
        check_place(place, roots, "manifest-list")
    reader = open_manifests(get)
    held = _manifests_of_parents(snapshots, before, reader)
    named = {
        manifest.path: manifest
        for location in lists
        for manifest in _read(reader.manifests, "manifest list", location, location)
    }
    new = [manifest for path, manifest in named.items() if path not in held]
    contents: list[FileRef] = []
    moved: set[str] = set()
    for manifest in new:
        check_place(manifest.path, roots, "manifest")
        for file in _read(reader.files, "manifest", manifest.path, manifest):
            if file.is_added:
                check_place(file.path, roots, "data file")
                contents.append(file)
            elif not _is_below(roots, file.path):
                moved.add(file.path)
    if moved:
        # Of a registered table: its own files stay where they are, also in rewritten manifests.
        replaced = [manifest for path, manifest in held.items() if path not in named]
        for path in moved - {file.path for manifest in replaced for file in reader.files(manifest)}:
            check_place(path, roots, "data file")
    return NewFiles(
        manifest_lists=tuple(lists),
        manifests=tuple(new),
        contents=tuple(contents),
        statistics=tuple(statistics),
    )


def _manifests_of_parents(
    snapshots: Iterable[Json], base: Metadata, reader: ManifestReader
) -> dict[str, ManifestRef]:
    """Return the manifests of the base's snapshots that the new ones follow, by address."""
    parents = {snapshot.get("parent-snapshot-id") for snapshot in snapshots}
    return {
        manifest.path: manifest
        for snapshot in base.get("snapshots") or []
        if snapshot["snapshot-id"] in parents and "manifest-list" in snapshot
        for manifest in reader.manifests(snapshot["manifest-list"])
    }


def _read(read: Callable[[T], list[R]], what: str, location: str, item: T) -> list[R]:
    try:
        return read(item)
    except errors.ObjectNotFound as error:
        raise errors.UnreadableTableFile(
            what=what, location=location, reason="it does not exist"
        ) from error
    except errors.FileDamaged as error:
        raise errors.UnreadableTableFile(
            what=what, location=location, reason=error.message
        ) from error


def _is_below(roots: Sequence[str], place: str) -> bool:
    return any(key_below(root, place) is not None for root in roots)


def check_place(place: str, roots: Sequence[str], what: str) -> None:
    """Raise unless an address is below one of the canonical locations."""
    if not _is_below(roots, place):
        raise errors.TablePlaceRefused(setting=what, value=place, location=roots[0])


def check_location(place: str, roots: Sequence[str]) -> None:
    """Raise unless a table may lie at a place: at or below one of the roots."""
    found = canonical(place.rstrip("/"))
    if not any(f"{found}/".startswith(f"{root}/") for root in roots):
        raise errors.TablePlaceRefused(setting="LOCATION", value=place, location=roots[0])


def check_location_settings(metadata: Metadata, roots: Sequence[str] = ()) -> None:
    """Raise if a property would place files below neither the table's location nor the roots."""
    roots = (canonical(metadata["location"]), *roots)
    for name, value in (metadata.get("properties") or {}).items():
        if name in _PROVIDER_SETTINGS:
            raise errors.TablePlaceRefused(setting=name, value=value, location=roots[0])
        if name in _LOCATION_SETTINGS:
            place = canonical(value.rstrip("/"))
            if not any(f"{place}/".startswith(f"{root}/") for root in roots):
                raise errors.TablePlaceRefused(setting=name, value=value, location=roots[0])


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
