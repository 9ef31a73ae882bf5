"""Versions of tables and views as metadata files: written once, read through a cache."""

import gzip
import hashlib
import re
import secrets
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

import orjson

from headgate.errors import Invalid, ObjectNotFound, StorageUnavailable, UnreadableTableFile
from headgate.model.ids import DatasetId, Instant, is_dataset_id
from headgate.model.object_store import ObjectStore
from headgate.storage.address import canonical, key_below, open_outside
from headgate.storage.local import make_private_directory, storage_errors
from headgate.tables.metadata import Json, Metadata, as_object
from headgate.tables.referenced_files import find_new_files, get_anywhere
from headgate.tables.snapshots import forget_snapshots

T = TypeVar("T")

_TABLES = "tables"


@dataclass(frozen=True, kw_only=True)
class StoredVersion:
    """One metadata file: its bytes as stored, and its metadata, both read-only.

    The metadata does not have the snapshots that are forgotten by now; the bytes still do.
    """

    location: str
    content: bytes
    metadata: Metadata
    # Its snapshots as JSON, if they were written here: most of what a table's metadata is.
    snapshots: bytes | None = None

    def to_encode(self) -> Json:
        """Return the metadata for orjson to write; JSON that exists already is reused."""
        return _to_encode(self.metadata, self.snapshots)


class TableVersions:
    """Writes and reads metadata files, and keeps the ones used last in memory.

    A version never changes once written, so only its list of snapshots can become out of date:
    those older than `remembered()` are left out of it.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        cache_bytes: int = 64 * 1024 * 1024,
        remembered: Callable[[], Instant] = lambda: Instant(0),
        options: Mapping[str, str] | None = None,
        allowed: Sequence[str] = (),
    ) -> None:
        self._store = store
        # Addresses outside the warehouse where tables may lie; their files are not cleaned up.
        self._allowed = tuple(canonical(one.rstrip("/")) for one in allowed)
        if within := [one for one in self._allowed if _overlap(canonical(store.url), one)]:
            raise Invalid(
                f"store.allowed_locations has {within[0]}, which overlaps the warehouse "
                f"{store.url}. Name places outside of it."
            )
        # Of a registered table, earlier files are outside of the warehouse.
        self._options = options or {}
        self._get = partial(get_anywhere, store, self._options)
        self._warehouse = store.url.rstrip("/")
        # Each by its address: the warehouse, and places outside where new files are.
        self._stores = {self._warehouse: store}
        self._remembered = remembered
        # Each with the time since which its snapshots are listed.
        self._cache: WeighedCache[tuple[StoredVersion, Instant]] = WeighedCache(limit=cache_bytes)

    @property
    def warehouse(self) -> str:
        return self._warehouse

    @property
    def remembered(self) -> Instant:
        """Time before which snapshots are forgotten."""
        return self._remembered()

    def table_location(self, dataset: DatasetId) -> str:
        """Return where all branches of a dataset write data: by id, so that names can change."""
        return f"{self._warehouse}/{_TABLES}/{dataset}"

    def new_location(self, dataset: DatasetId) -> str:
        """Return where a table that is created now writes data: a directory without files.

        Other branches, and a table that was dropped or renamed, have theirs; engines refuse to
        create a table where files are.
        """
        return f"{self.table_location(dataset)}/{secrets.token_hex(6)}"

    def find_dataset(self, location: str) -> DatasetId | None:
        """Return the dataset in whose directory a table lies."""
        key = key_below(f"{self._warehouse}/{_TABLES}", location) or ""
        name = key.partition("/")[0]
        return DatasetId(name) if is_dataset_id(name) else None

    def roots(self, dataset: DatasetId) -> tuple[str, ...]:
        """Return the addresses at and below which a dataset may have a table and its files."""
        return (canonical(self.table_location(dataset)), *self._allowed)

    def prepare_directories(self, location: str) -> None:
        """Create the directories that clients write to: not every client creates them itself."""
        key = key_below(self._warehouse, location)
        path = self._store.local_path(key) if key is not None else None
        if path is not None:
            with storage_errors(path):
                for name in ("data", "metadata"):
                    make_private_directory(path / name)

    def write(
        self, dataset: DatasetId, metadata: Metadata, *, base: Metadata | None
    ) -> StoredVersion:
        """Store metadata as a new file, after flushing the files that are new since `base`.

        Engines write data and manifests without flushing them to disk. A publication relies on
        them, so they must survive a power failure like the metadata itself.
        The number in the name of the file counts versions for a reader.
        """
        roots = self.roots(dataset)
        new = find_new_files(metadata, base, self._get, roots).addresses()
        if new:
            self._sync(new, (canonical(metadata["location"]), *roots))
        number = len(metadata.get("metadata-log") or metadata.get("version-log") or [])
        listed = metadata.get("snapshots")
        snapshots = orjson.dumps(listed) if listed else None
        content = orjson.dumps(_to_encode(metadata, snapshots))
        name = f"{number:05d}-{uuid_with_digest(content)}.metadata.json"
        key = f"{_TABLES}/{dataset}/metadata/{name}"
        location = f"{self._warehouse}/{key}"
        if not self._store.put(key, content):
            raise StorageUnavailable(where=location, reason="a file of that name exists")
        version = StoredVersion(
            location=location, content=content, metadata=metadata, snapshots=snapshots
        )
        self._keep(version, Instant(0))
        return version

    def fetch(self, location: str) -> bytes:
        """Return a file that a version names; of a registered table also one outside."""
        return self._get(location)

    def put_manifest(self, dataset: DatasetId, name: str, content: bytes) -> str:
        """Store a manifest or manifest list, with its digest at `{uuid}` in the name."""
        file = name.format(uuid=uuid_with_digest(content))
        key = f"{_TABLES}/{dataset}/metadata/{file}"
        self._store.put(key, content)
        return f"{self._warehouse}/{key}"

    def read(self, location: str) -> StoredVersion:
        """Return the version stored at a location below the warehouse."""
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
        listed = forget_snapshots(version.metadata, since // 1000)
        if listed is not version.metadata:
            version = replace(version, metadata=listed, snapshots=None)
        self._keep(version, since)
        return version

    def _sync(self, addresses: list[str], roots: Sequence[str]) -> None:
        """Make new files durable, also the local ones below the other `roots`."""
        waiting = set(addresses)
        try:
            for root in (self._warehouse, *roots):
                keys = {one: key for one in waiting if (key := key_below(root, one)) is not None}
                waiting -= keys.keys()
                if keys and root not in self._stores:
                    self._stores[root] = open_outside(root, self._options)
                if keys and root == self._warehouse:
                    self._store.sync(list(keys.values()))
                    continue
                for key in keys.values():
                    # Files outside are their owner's, who may also place them there later.
                    with suppress(ObjectNotFound):
                        self._stores[root].sync([key])
        except ObjectNotFound as error:
            raise UnreadableTableFile(
                what="file", location=error.location, reason="it does not exist"
            ) from error

    def _keep(self, version: StoredVersion, since: Instant) -> None:
        weight = len(version.content) + len(version.snapshots or b"")
        self._cache.put(version.location, (version, since), weight=weight)

    def _key(self, location: str) -> str:
        key = key_below(self._warehouse, location)
        if key is None:
            raise StorageUnavailable(where=location, reason="it is not below the warehouse")
        return key


def _overlap(one: str, other: str) -> bool:
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


def _to_encode(metadata: Metadata, snapshots: bytes | None) -> Json:
    if snapshots is None:
        return metadata
    return {**metadata, "snapshots": orjson.Fragment(snapshots)}


def parse_metadata(content: bytes, location: str) -> Metadata:
    """Return metadata from a file's bytes; raise if they are not that of a table or view."""
    try:
        # Other writers may compress their metadata files.
        plain = gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content
        found: Any = orjson.loads(plain)
    except (OSError, EOFError, zlib.error, orjson.JSONDecodeError) as error:
        raise StorageUnavailable(where=location, reason="it is not JSON") from error
    metadata: Json = as_object(found, what=f"the metadata at {location}")
    if "format-version" not in metadata or not {"table-uuid", "view-uuid"} & metadata.keys():
        raise StorageUnavailable(where=location, reason="it is not Iceberg metadata")
    return metadata


# Iceberg keeps no checksums of metadata files, manifest lists and manifests. The ones that Headgate
# writes have a part of their own digest in the UUID of their name. UUIDs of version 8 are left to
# such uses; other writers use version 4.
_DIGEST_UUID = re.compile(r"([0-9a-f]{8})-([0-9a-f]{4})-8([0-9a-f]{3})-[89ab][0-9a-f]{3}-")


def uuid_with_digest(content: bytes) -> str:
    """Return a new UUID of version 8 for the name of a file: 60 bits of its digest, 62 random."""
    digest, random = hashlib.sha256(content).hexdigest(), secrets.token_hex(8)
    variant = "89ab"[secrets.randbelow(4)]
    return f"{digest[:8]}-{digest[8:12]}-8{digest[12:15]}-{variant}{random[:3]}-{random[3:15]}"


def contradicts_name(location: str, content: bytes) -> bool:
    """Return True if the name of a file has the digest of other content."""
    named = _DIGEST_UUID.search(location.rpartition("/")[2])
    return named is not None and "".join(named.groups()) != hashlib.sha256(content).hexdigest()[:15]


class WeighedCache(Generic[T]):
    """Keeps the values used last, up to a total weight; safe to use from many threads."""

    def __init__(self, *, limit: int) -> None:
        self._limit = limit
        self._total = 0
        self._held: OrderedDict[str, tuple[T, int]] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, key: str) -> T | None:
        """Return the value and mark it as the one used last."""
        with self._lock:
            if key not in self._held:
                return None
            self._held.move_to_end(key)
            return self._held[key][0]

    def put(self, key: str, value: T, *, weight: int) -> None:
        """Keep a value in place of those used longest ago; one above the limit is not kept."""
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


# Forgotten content stays on storage for at least a day, so a reader may use a value this old.
_FRESH_SECONDS = 60.0


class Remembered:
    """Time since which snapshots are remembered, read at most once a minute; thread-safe."""

    def __init__(self, read: Callable[[], Instant]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._since: Instant | None = None
        self._read_at = 0.0

    def __call__(self) -> Instant:
        with self._lock:
            at = time.monotonic()
            if self._since is None or at - self._read_at > _FRESH_SECONDS:
                self._since = self._read()
                self._read_at = at
            return self._since
