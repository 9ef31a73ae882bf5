"""Which files a table version needs besides its own metadata file."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headgate.errors import MissingExtra, StorageUnavailable
from headgate.model.ports import ObjectStore
from headgate.storage.keys import key_below
from headgate.tables.shape import Metadata

if TYPE_CHECKING:
    from headgate.tables.manifests import ManifestReader


_STATISTICS = ("statistics", "partition-statistics")


@dataclass(frozen=True, kw_only=True)
class Named:
    """What a metadata file names; what its manifest lists name comes on top."""

    # One for each snapshot.
    manifest_lists: frozenset[str]
    statistics: frozenset[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class ManifestRef:
    """A manifest as a manifest list names it."""

    path: str
    length: int
    # How many files it says are alive, where its writer counted them.
    files: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedFile:
    """A data or delete file that a snapshot needs."""

    path: str
    size: int


def named_by(metadata: Metadata, *, snapshots: Iterable[int] | None = None) -> Named:
    """The files of these snapshots, or of all that the metadata lists."""
    chosen = None if snapshots is None else set(snapshots)
    listed = [
        snapshot
        for snapshot in metadata.get("snapshots") or []
        if chosen is None or snapshot["snapshot-id"] in chosen
    ]
    ids = {snapshot["snapshot-id"] for snapshot in listed}
    return Named(
        manifest_lists=frozenset(s["manifest-list"] for s in listed if "manifest-list" in s),
        statistics=frozenset(
            file["statistics-path"]
            for kind in _STATISTICS
            for file in metadata.get(kind) or []
            if file["snapshot-id"] in ids
        ),
    )


def open_manifests(get: Callable[[str], bytes]) -> ManifestReader:
    """A reader of manifests, given a way to read an address."""
    try:
        from headgate.tables.manifests import (  # noqa: PLC0415 - an optional extra, and slow
            ManifestReader,
        )
    except ImportError as error:
        raise MissingExtra(feature="reading the manifests of tables", extra="arrow") from error
    return ManifestReader(get)


def get_below(objects: ObjectStore, location: str) -> bytes:
    """The bytes at an address that lies in this store, however it is spelled."""
    key = key_below(objects.url, location)
    if key is None:
        raise StorageUnavailable(where=location, reason=f"it is not below {objects.url}")
    return objects.get(key)
