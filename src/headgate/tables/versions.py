"""Table versions as files: where they lie, how they are written and read back."""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import uuid4

import orjson

from headgate.errors import StorageUnavailable
from headgate.model.ids import DatasetId
from headgate.tables.cache import WeighedCache
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
    """One metadata file: its bytes as stored, and what they say. Treat both as read-only."""

    location: str
    content: bytes
    metadata: Metadata


class TableVersions:
    """Writes and reads metadata files below a warehouse, keeping the newest used in memory.

    A version never changes once written, so nothing in memory can be out of date.
    """

    def __init__(self, store: MetadataStore, *, cache_bytes: int = 64 * 1024 * 1024) -> None:
        self._store = store
        self._warehouse = store.url.rstrip("/")
        self._cache: WeighedCache[StoredVersion] = WeighedCache(limit=cache_bytes)

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
        content = orjson.dumps(metadata)
        location = f"{self._warehouse}/{key}"
        if not self._store.put(key, content):
            raise StorageUnavailable(where=location, reason="a file of that name exists")
        version = StoredVersion(location=location, content=content, metadata=metadata)
        self._cache.put(location, version, weight=len(content))
        return version

    def read(self, location: str) -> StoredVersion:
        """The version stored at a location below the warehouse."""
        if held := self._cache.find(location):
            return held
        content = self._store.get(self._key(location))
        version = StoredVersion(
            location=location, content=content, metadata=parse_metadata(content, location)
        )
        self._cache.put(location, version, weight=len(content))
        return version

    def _key(self, location: str) -> str:
        start = f"{self._warehouse}/"
        if not location.startswith(start):
            raise StorageUnavailable(where=location, reason="it is not below the warehouse")
        return location.removeprefix(start)


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
