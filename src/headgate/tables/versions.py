"""Table versions as files: where they lie, how they are written and read back."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol
from uuid import uuid4

import orjson

from headgate.errors import StorageUnavailable
from headgate.model.ids import DatasetId, Instant
from headgate.tables.cache import WeighedCache
from headgate.tables.forgetting import forget_snapshots
from headgate.tables.shape import Json, Metadata, as_object

_TABLES = "tables"


class MetadataStore(Protocol):
    """The part of an object store that table versions need."""

    @property
    def url(self) -> str: ...

    def put(self, key: str, data: bytes, /) -> bool: ...

    def get(self, key: str, /) -> bytes: ...


@dataclass(frozen=True, kw_only=True)
class StoredVersion:
    """One metadata file: its bytes as stored, and what they say. Treat both as read-only.

    Snapshots that are forgotten by now are in the bytes only.
    """

    location: str
    content: bytes
    metadata: Metadata
    # Its snapshots as JSON, where they were written here: most of what a table's metadata is.
    snapshots: bytes | None = None

    def to_encode(self) -> Json:
        """The metadata for orjson to write out; what is JSON already is not written again."""
        return _to_encode(self.metadata, self.snapshots)


class TableVersions:
    """Writes and reads metadata files below a warehouse, keeping the newest used in memory.

    A version never changes once written, so nothing in memory can be out of date but the list of
    snapshots, from which what is older than `remembered` says is taken.
    """

    def __init__(
        self,
        store: MetadataStore,
        *,
        cache_bytes: int = 64 * 1024 * 1024,
        remembered: Callable[[], Instant] = lambda: Instant(0),
    ) -> None:
        self._store = store
        self._warehouse = store.url.rstrip("/")
        self._remembered = remembered
        # Each with the moment by which it was looked through for what is forgotten.
        self._cache: WeighedCache[tuple[StoredVersion, Instant]] = WeighedCache(limit=cache_bytes)

    def table_location(self, dataset: DatasetId) -> str:
        """Where all branches of a dataset write data: by id, so that names can change."""
        return f"{self._warehouse}/{_TABLES}/{dataset}"

    def find_dataset(self, location: str) -> DatasetId | None:
        """The dataset whose table location this is."""
        start = f"{self._warehouse}/{_TABLES}/"
        name = location.rstrip("/").removeprefix(start)
        if not location.startswith(start) or not name or "/" in name or name in {".", ".."}:
            return None
        return DatasetId(name)

    def write(self, dataset: DatasetId, metadata: Metadata) -> StoredVersion:
        """Stores metadata as a new file; the number in its name counts versions for a reader."""
        number = len(metadata.get("metadata-log") or [])
        key = f"{_TABLES}/{dataset}/metadata/{number:05d}-{uuid4()}.metadata.json"
        listed = metadata.get("snapshots")
        snapshots = orjson.dumps(listed) if listed else None
        content = orjson.dumps(_to_encode(metadata, snapshots))
        location = f"{self._warehouse}/{key}"
        if not self._store.put(key, content):
            raise StorageUnavailable(where=location, reason="a file of that name exists")
        version = StoredVersion(
            location=location, content=content, metadata=metadata, snapshots=snapshots
        )
        self._cache.put(location, (version, Instant(0)), weight=_weight(version))
        return version

    def read(self, location: str) -> StoredVersion:
        """The version stored at a location below the warehouse."""
        since = self._remembered()
        held = self._cache.find(location)
        if held is not None and held[1] == since:
            return held[0]
        if held is not None:
            version = held[0]
        else:
            content = self._store.get(self._key(location))
            metadata = parse_metadata(content, location)
            version = StoredVersion(location=location, content=content, metadata=metadata)
        left = forget_snapshots(version.metadata, since // 1000)
        if left is not version.metadata:
            version = replace(version, metadata=left, snapshots=None)
        self._cache.put(location, (version, since), weight=_weight(version))
        return version

    def _key(self, location: str) -> str:
        start = f"{self._warehouse}/"
        if not location.startswith(start):
            raise StorageUnavailable(where=location, reason="it is not below the warehouse")
        return location.removeprefix(start)


def _to_encode(metadata: Metadata, snapshots: bytes | None) -> Json:
    if snapshots is None:
        return metadata
    return {**metadata, "snapshots": orjson.Fragment(snapshots)}


def _weight(version: StoredVersion) -> int:
    return len(version.content) + len(version.snapshots or b"")


def parse_metadata(content: bytes, location: str) -> Metadata:
    """Metadata from a file's bytes; what is not table metadata is refused."""
    try:
        # Other writers may compress their metadata files.
        plain = gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content
        found: Any = orjson.loads(plain)
    except (OSError, EOFError, zlib.error, orjson.JSONDecodeError) as error:
        raise StorageUnavailable(where=location, reason="it is not JSON") from error
    metadata: Json = as_object(found, what=f"the metadata at {location}")
    if "format-version" not in metadata or "table-uuid" not in metadata:
        raise StorageUnavailable(where=location, reason="it is not Iceberg table metadata")
    return metadata
