"""Reachability of stored objects: the mark phase of cleanup, and the rule for each object.

An object is needed if a retained version, an OPEN transaction or a JobSpec names it. Files outside
the warehouse belong to the owner of the registered table, so they are neither read nor deleted.
See ADR 0022.
"""

from __future__ import annotations

import enum
import re
import secrets
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from headgate.catalog.garbage_collection import ObjectMark
from headgate.errors import NotFound, StorageUnavailable
from headgate.files.objects import Digest, in_parallel, key_of
from headgate.files.tree import EMPTY
from headgate.files.tree_store import FileTrees
from headgate.model.ids import Instant
from headgate.model.nouns import DatasetKind
from headgate.model.object_store import ObjectInfo, ObjectStore
from headgate.storage.address import key_below
from headgate.tables.referenced_files import ManifestRef, get_below, open_manifests, references_of
from headgate.tables.versions import TableVersions

if TYPE_CHECKING:
    pass


# At the top, so that no directory is left behind on a local disk.
_PROBE_PREFIX = ".headgate-probe-"


def probe(objects: ObjectStore) -> ObjectInfo:
    """Write an object, read it back and delete it; raise `StorageUnavailable` if that fails.

    The result has the store's current time.
    """
    key = f"{_PROBE_PREFIX}{secrets.token_hex(8)}"
    content = secrets.token_bytes(16)
    objects.put(key, content)
    try:
        found = objects.find(key)
        if found is None or objects.get(key) != content:
            raise StorageUnavailable(
                where=objects.url, reason="it does not return an object that was just written"
            )
    finally:
        objects.delete([key])
    return found


_OBJECT = re.compile(r"objects/sha256/([0-9a-f]{2})/([0-9a-f]{62})\Z")
_BUNDLE = re.compile(r"bundles/([0-9a-f]{64})\.zip\Z")
# A dataset's own directory, also of a dataset that was staged and never created.
_TABLE = re.compile(r"tables/d-[0-9a-z]+/.+\Z", re.DOTALL)
# Hadoop's local file system writes a checksum beside each file.
_CHECKSUM = re.compile(r"(.*/)\.([^/]+)\.crc\Z", re.DOTALL)


class Kind(enum.StrEnum):
    """Kind of an object, by its key."""

    OBJECT = "object"
    BUNDLE = "bundle"
    PROBE = "probe"
    TABLE = "table file"
    UNKNOWN = "unknown"


class Disposition(enum.StrEnum):
    """Decision of cleanup about an object; the value is the reason in its report."""

    NEEDED = "needed by a version that is kept"
    YOUNG = "younger than the grace period"
    WAITING = "condemned; not due for deletion yet"
    UNSURE = "not checked, because the metadata of a table is outside the warehouse"
    FOREIGN = "not written by Headgate"
    SPARE = "condemned, and needed again"
    CONDEMN = "not needed by any version"
    SWEEP = "condemned, and still not needed"


@dataclass(frozen=True, kw_only=True)
class Cutoffs:
    """Times that decide."""

    # By the store's clock: an object modified since is not condemned.
    young_since: Instant
    # By the database's clock: an object condemned since is not swept.
    fresh_since: Instant


def read_key(key: str) -> tuple[Kind, str | None]:
    """Return the kind of a key, and the digest in it."""
    if match := _OBJECT.match(key):
        return Kind.OBJECT, match[1] + match[2]
    if match := _BUNDLE.match(key):
        return Kind.BUNDLE, match[1]
    if key.startswith(_PROBE_PREFIX):
        return Kind.PROBE, None
    return (Kind.TABLE if _TABLE.match(key) else Kind.UNKNOWN), None


def table_file_of(key: str) -> str:
    """Return the key itself or, of a checksum file, the key of its table file."""
    match = _CHECKSUM.match(key)
    return match[1] + match[2] if match else key


def name_kind(kind: Kind, key: str) -> str:
    """Return the kind of file of a key, for a report."""
    if kind is not Kind.TABLE:
        return kind
    directory, _, name = table_file_of(key).rpartition("/")
    if name.endswith((".metadata.json", ".metadata.json.gz")):
        return "metadata file"
    if name.endswith(".avro") and directory.endswith("/metadata"):
        return "manifest list" if name.startswith("snap-") else "manifest"
    if name.endswith(".stats") or name.startswith("partition-stats"):
        return "statistics file"
    return "delete file" if "deletes." in name else "data file"


def decide(
    kind: Kind,
    *,
    needed: bool | None,
    modified_at: Instant,
    condemned_at: Instant | None,
    cutoffs: Cutoffs,
) -> Disposition:
    """Keep needed objects; condemn others when they are old, and sweep them a day later."""
    if kind is Kind.UNKNOWN:
        return Disposition.FOREIGN
    if needed is None:
        return Disposition.UNSURE
    if needed:
        return Disposition.NEEDED if condemned_at is None else Disposition.SPARE
    if modified_at >= cutoffs.young_since:
        # Also if it is condemned: then it was swept, and a writer has stored it again.
        return Disposition.YOUNG
    if condemned_at is None:
        return Disposition.CONDEMN
    return Disposition.SWEEP if condemned_at <= cutoffs.fresh_since else Disposition.WAITING


class TableFiles:
    """Files that table versions need; reads each manifest once, however many versions share it."""

    def __init__(self, objects: ObjectStore, *, since: Instant) -> None:
        self._objects = objects
        self._since = since
        self._versions = TableVersions(objects, cache_bytes=0, remembered=lambda: since)
        # Addresses of the metadata files, manifest lists and manifests that were read.
        self._seen: set[str] = set()
        self._named: set[str] = set()

    def fresh(self) -> TableFiles:
        """Return a reader without the results of earlier calls."""
        return TableFiles(self._objects, since=self._since)

    def is_ours(self, location: str) -> bool:
        return key_below(self._objects.url, location) is not None

    def needed(self, roots: Collection[str]) -> set[str]:
        """Return the keys of all files that these versions, and those of earlier calls, need.

        Raise if metadata cannot be read: nothing may be swept while its references are unknown.
        """
        new = set(roots) - self._seen
        if not new:
            return self._named
        reader = open_manifests(partial(get_below, self._objects))
        self._add(new)
        lists: set[str] = set()
        read = self._versions.read
        for named in in_parallel(lambda root: references_of(read(root).metadata), sorted(new)):
            self._add(named.statistics)
            lists |= named.manifest_lists
        lists -= self._seen
        self._add(lists)
        manifests: dict[str, ManifestRef] = {}
        for refs in in_parallel(reader.manifests, sorted(filter(self.is_ours, lists))):
            manifests |= {ref.path: ref for ref in refs if ref.path not in self._seen}
        self._add(manifests)
        ours = [ref for ref in manifests.values() if self.is_ours(ref.path)]
        for paths in in_parallel(reader.paths, ours):
            self._add(paths)
        self._seen |= new | lists | manifests.keys()
        return self._named

    def _add(self, locations: Iterable[str]) -> None:
        for location in locations:
            key = key_below(self._objects.url, location)
            if key is not None:
                self._named.add(key)


@dataclass(frozen=True, kw_only=True)
class Needed:
    """Needed objects: digests, and locations of working versions."""

    objects: Collection[str]
    bundles: Collection[str]
    locations: Collection[str]
    # Keys of table files; None if they cannot be known.
    tables: Collection[str] | None

    def holds(self, key: str, location: str) -> bool | None:
        """Return True if an object is needed, None if that cannot be known."""
        if location in self.locations:
            return True
        kind, digest = read_key(key)
        if kind is Kind.TABLE:
            return None if self.tables is None else table_file_of(key) in self.tables
        return digest is not None and digest in (
            self.bundles if kind is Kind.BUNDLE else self.objects
        )


@dataclass(frozen=True, kw_only=True)
class Readers:
    """Readers of the references in stored content."""

    objects: ObjectStore
    trees: FileTrees
    tables: TableFiles


def find_needed(readers: Readers, mark: ObjectMark, before: ObjectMark | None = None) -> Needed:
    """Return all that versions, OPEN transactions and JobSpecs need.

    With `before`, only the versions added since. Raise if content cannot be read: nothing may be
    swept while its references are unknown.
    """
    trees = readers.trees
    roots = mark.roots - (before.roots if before else frozenset())
    digests: set[str] = set(trees.references(Digest(root) for root in sorted(roots)))
    tables = mark.tables - (before.tables if before else frozenset())
    is_known = all(readers.tables.is_ours(root) for root in mark.tables)
    return Needed(
        objects=digests,
        bundles=mark.bundles,
        locations=mark.working,
        tables=readers.tables.needed(tables) if is_known else None,
    )


def find_complete(readers: Readers, kind: DatasetKind, root: str) -> list[str] | None:
    """Return the locations of all that a version needs, or None if a part is missing."""
    objects = readers.objects
    try:
        if kind is not DatasetKind.FILES:
            keys = sorted(readers.tables.fresh().needed([root]))
        else:
            digests = sorted(set(readers.trees.references([Digest(root)])) - {EMPTY})
            keys = [key_of(digest) for digest in digests]
    except NotFound:
        return None
    if not all(in_parallel(lambda key: objects.find(key) is not None, keys)):
        return None
    return [f"{objects.url}/{key}" for key in keys]
