"""Table versions as files: where they lie, how they are written and read back."""

from __future__ import annotations

import gzip
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Generic, Protocol, TypeVar
from uuid import uuid4

import orjson

from headgate.errors import StorageUnavailable
from headgate.model.ids import DatasetId, Instant
from headgate.tables.shape import Json, Metadata, State, as_object
from headgate.tables.updates import remove_snapshots

# A cache that is bounded by what its values weigh.

T = TypeVar("T")


class WeighedCache(Generic[T]):
    """Keeps the values used last, up to a total weight; safe to use from many threads."""

    def __init__(self, *, limit: int) -> None:
        self._limit = limit
        self._total = 0
        self._held: OrderedDict[str, tuple[T, int]] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, key: str) -> T | None:
        """The value, which thereby becomes the one used last."""
        with self._lock:
            if key not in self._held:
                return None
            self._held.move_to_end(key)
            return self._held[key][0]

    def put(self, key: str, value: T, *, weight: int) -> None:
        """Keeps a value; what was used longest ago makes room, and one too heavy is not kept."""
        with self._lock:
            if key in self._held:
                self._total -= self._held.pop(key)[1]
            if weight > self._limit:
                return
            self._held[key] = (value, weight)
            self._total += weight
            while self._total > self._limit:
                _, (_, freed) = self._held.popitem(last=False)
                self._total -= freed


# Which snapshots of a table are still remembered; pure.
#
# A version shows one snapshot and lists the earlier ones, so that they can be travelled to. Those
# that were current within the time to retain stay listed, and all that a ref names or is to keep;
# the others are forgotten by every version at once, and cleanup may take what only they held.

# How Iceberg's users say that some of the past is to stay, whatever its age.
_AT_LEAST = "history.expire.min-snapshots-to-keep"
_OF_REF = "min-snapshots-to-keep"


def forget_snapshots(metadata: Metadata, before_ms: int) -> Metadata:
    """The metadata without what was last current before a moment; the same object if all stays."""
    listed = metadata.get("snapshots") or []
    if all(snapshot["timestamp-ms"] >= before_ms for snapshot in listed):
        return metadata
    remembered = set(_remembered(metadata, before_ms))
    doomed = [s["snapshot-id"] for s in listed if s["snapshot-id"] not in remembered]
    if not doomed:
        return metadata
    state = State(metadata=metadata, now_ms=0)
    return remove_snapshots(state, {"snapshot-ids": doomed}).metadata


def _remembered(metadata: Metadata, before_ms: int) -> Iterator[int]:
    for ref in (metadata.get("refs") or {}).values():
        yield from _held_by(ref, metadata)
    # Version 1 may do without refs.
    if (current := metadata.get("current-snapshot-id")) is not None:
        yield current
    for snapshot in metadata.get("snapshots") or []:
        if snapshot["timestamp-ms"] >= before_ms:
            yield snapshot["snapshot-id"]
            # Until its child came, it was what its branch showed.
            if (parent := snapshot.get("parent-snapshot-id")) is not None:
                yield parent
    for shown, following in pairwise(metadata.get("snapshot-log") or []):
        if following["timestamp-ms"] >= before_ms:
            yield shown["snapshot-id"]


def _held_by(ref: Json, metadata: Metadata) -> Iterator[int]:
    """What a tag names; of a branch as many of its newest as it, or the table, asks for."""
    count = 1
    if ref.get("type") == "branch":
        asked = (metadata.get("properties") or {}).get(_AT_LEAST, "1")
        count = int(ref.get(_OF_REF) or (asked if asked.isdecimal() else 1))
    parents = {s["snapshot-id"]: s.get("parent-snapshot-id") for s in metadata["snapshots"]}
    here: int | None = ref["snapshot-id"]
    while here is not None and count > 0:
        yield here
        here, count = parents.get(here), count - 1


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
