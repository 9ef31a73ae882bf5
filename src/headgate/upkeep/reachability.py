"""Which stored objects are needed by what the catalog keeps."""

from __future__ import annotations

import enum
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from headgate.catalog.garbage_collection import ObjectMark
from headgate.errors import Invalid, NotFound, StorageUnavailable
from headgate.files.objects import Digest, in_parallel, key_of
from headgate.files.tree import EMPTY
from headgate.files.trees import FileTrees
from headgate.model.ids import Instant
from headgate.model.nouns import DatasetKind
from headgate.model.ports import ObjectInfo, ObjectStore
from headgate.storage.keys import key_below
from headgate.tables.named_files import ManifestRef, Named, get_below, named_by, open_manifests
from headgate.tables.versions import TableVersions

if TYPE_CHECKING:
    from headgate.spark.workplace import SparkSession


# A trial of the store: whether it can be written, read and deleted, and what its clock says.

# At the top, so that no directory is left behind on a local disk.
PREFIX = ".headgate-probe-"


def probe(objects: ObjectStore) -> ObjectInfo:
    """Writes an object, reads it back and deletes it; `StorageUnavailable` where that fails."""
    key = f"{PREFIX}{secrets.token_hex(8)}"
    content = secrets.token_bytes(16)
    objects.put(key, content)
    try:
        found = objects.find(key)
        if found is None or objects.get(key) != content:
            raise StorageUnavailable(where=objects.url, reason="it lost what was just written")
    finally:
        objects.delete([key])
    return found


# What becomes of one stored object; pure.

_OBJECT = re.compile(r"objects/sha256/([0-9a-f]{2})/([0-9a-f]{62})\Z")
_BUNDLE = re.compile(r"bundles/([0-9a-f]{64})\.zip\Z")
# A dataset's own directory, also of one that was staged and never came to be.
_TABLE = re.compile(r"tables/d-[0-9a-z]+/.+\Z", re.DOTALL)
# Hadoop's local file system writes a checksum beside each file.
_CHECKSUM = re.compile(r"(.*/)\.([^/]+)\.crc\Z", re.DOTALL)


class Kind(enum.StrEnum):
    """What a key says about who wrote it."""

    OBJECT = "object"
    BUNDLE = "bundle"
    PROBE = "probe"
    TABLE = "table file"
    UNKNOWN = "unknown"


class Fate(enum.StrEnum):
    """What cleanup does with an object; all but the last two leave it where it is."""

    NEEDED = "a version that is not condemned needs it"
    YOUNG = "it is younger than the grace"
    WAITING = "it was condemned too short a time ago"
    UNSURE = "a table version lies outside this warehouse, so it is not known what is needed"
    FOREIGN = "Headgate did not write it"
    SPARE = "it was condemned and is needed again"
    CONDEMN = "nothing needs it"
    SWEEP = "it was condemned, and still nothing needs it"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The moments that decide: by the store's clock, and by the database's."""

    # Younger by the store's clock: never condemned.
    young_since: Instant
    # Condemned later by the database's clock: not swept yet.
    fresh_since: Instant


def read_key(key: str) -> tuple[Kind, str | None]:
    """The kind of a key, and the digest that it stands for."""
    if match := _OBJECT.match(key):
        return Kind.OBJECT, match[1] + match[2]
    if match := _BUNDLE.match(key):
        return Kind.BUNDLE, match[1]
    if key.startswith(PREFIX):
        return Kind.PROBE, None
    return (Kind.TABLE if _TABLE.match(key) else Kind.UNKNOWN), None


def table_file_of(key: str) -> str:
    """The key of the table's file that a key belongs to: itself, or what it is a checksum of."""
    match = _CHECKSUM.match(key)
    return match[1] + match[2] if match else key


def name_kind(kind: Kind, key: str) -> str:
    """What a key holds, in a word for a report."""
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
    limits: Limits,
) -> Fate:
    """The rule: needed objects stay, others are condemned when old, and swept a day later."""
    if kind is Kind.UNKNOWN:
        return Fate.FOREIGN
    if needed is None:
        return Fate.UNSURE
    if needed:
        return Fate.NEEDED if condemned_at is None else Fate.SPARE
    if modified_at >= limits.young_since:
        # Also where it is condemned: then it was swept before, and somebody stored it anew.
        return Fate.YOUNG
    if condemned_at is None:
        return Fate.CONDEMN
    return Fate.SWEEP if condemned_at <= limits.fresh_since else Fate.WAITING


# Which stored files the tables of a store need: each manifest is read once, however many share it.
#
# Files outside the warehouse belong to whoever registered their table: they are passed over, and so
# are the manifests among them, which name nothing of ours.

# Manifests in, the addresses of the files out that they name; in any order, some of them twice.
MarkManifests = Callable[[Sequence[ManifestRef]], Iterable[str]]


class TableFiles:
    """Reads what versions need, keeping in mind which manifests it has read before."""

    def __init__(
        self, objects: ObjectStore, *, since: Instant, mark: MarkManifests | None = None
    ) -> None:
        self._objects = objects
        self._since = since
        self._versions = TableVersions(objects, cache_bytes=0, remembered=lambda: since)
        self._mark = mark or partial(mark_here, objects)
        self._roots_seen: set[str] = set()
        self._lists_seen: set[str] = set()
        self._manifests_seen: set[str] = set()
        self._named: set[str] = set()

    def apart(self) -> TableFiles:
        """The same, with nothing in mind yet, for one version to be looked at by itself."""
        return TableFiles(self._objects, since=self._since)

    def is_ours(self, location: str) -> bool:
        return key_below(self._objects.url, location) is not None

    def needed(self, roots: Collection[str]) -> set[str]:
        """The keys of all files that these versions need, and those of earlier calls too.

        What cannot be read raises: nothing may be swept while it is unknown what it names.
        """
        new = set(roots) - self._roots_seen
        if not new:
            return self._named
        reader = open_manifests(partial(get_below, self._objects))
        self._add(new)
        lists: set[str] = set()
        for named in in_parallel(self._named_by, sorted(new)):
            self._add(named.statistics)
            lists |= named.manifest_lists
        lists -= self._lists_seen
        self._add(lists)
        manifests: dict[str, ManifestRef] = {}
        for refs in in_parallel(reader.manifests, sorted(filter(self.is_ours, lists))):
            manifests |= {ref.path: ref for ref in refs if ref.path not in self._manifests_seen}
        self._add(manifests)
        self._add(self._mark([ref for ref in manifests.values() if self.is_ours(ref.path)]))
        self._roots_seen |= new
        self._lists_seen |= lists
        self._manifests_seen |= manifests.keys()
        return self._named

    def _add(self, locations: Iterable[str]) -> None:
        for location in locations:
            key = key_below(self._objects.url, location)
            if key is not None:
                self._named.add(key)

    def _named_by(self, location: str) -> Named:
        return named_by(self._versions.read(location).metadata)


def mark_here(objects: ObjectStore, manifests: Sequence[ManifestRef]) -> Iterator[str]:
    """Reads manifests in this process; threads wait for the storage."""
    for paths in in_parallel(open_manifests(partial(get_below, objects)).paths, manifests):
        yield from paths


# Where the manifests of tables are read: here, or by Spark where there are very many.

# One process reads about 8 MiB of manifests in a second (some 45,000 files), and Spark takes ten
# seconds to start: from a minute's work on, it pays.
SPARK_FROM_BYTES = 512 * 1024 * 1024


class Marking(enum.StrEnum):
    """Who reads the manifests."""

    AUTO = "auto"
    PYTHON = "python"
    SPARK = "spark"


def choose_marking(
    marking: Marking,
    objects: ObjectStore,
    options: Mapping[str, str],
    session: Callable[[], SparkSession],
) -> MarkManifests:
    """A way to read manifests; Spark is started only once it is known to be wanted."""

    def mark(manifests: Sequence[ManifestRef]) -> Iterable[str]:
        size = sum(manifest.length for manifest in manifests)
        is_large = marking is Marking.AUTO and size >= SPARK_FROM_BYTES
        if not manifests or not (marking is Marking.SPARK or is_large):
            return mark_here(objects, manifests)
        from headgate.spark.maintenance import mark_on_spark  # noqa: PLC0415 - Arrow is an optional extra

        # Of a whole environment only what reaches the storage goes to the workers.
        credentials = {name: value for name, value in options.items() if name.startswith("AWS_")}
        return mark_on_spark(session(), objects.url, credentials, manifests)

    return mark


_DIGEST = re.compile(r"[0-9a-f]{64}\Z")


@dataclass(frozen=True, kw_only=True)
class Needed:
    """Digests of objects and of bundles, and whole locations where only those are known."""

    objects: Collection[str]
    bundles: Collection[str]
    locations: Collection[str]
    # Keys of the files of tables; None where it cannot be known which are needed.
    tables: Collection[str] | None

    def holds(self, key: str, location: str) -> bool | None:
        """Whether an object is needed; None where nobody can tell."""
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
    """What it takes to find out what content needs."""

    objects: ObjectStore
    trees: FileTrees
    tables: TableFiles


def find_needed(readers: Readers, mark: ObjectMark, before: ObjectMark | None = None) -> Needed:
    """All that these versions hold, and all that OPEN transactions, intents and JobSpecs name.

    With `before`, only what came on top of that. Content that cannot be read raises: nothing may
    be swept while it is unknown what it needs.
    """
    trees = readers.trees
    roots = mark.roots - (before.roots if before else frozenset())
    digests: set[str] = set(trees.references(Digest(root) for root in sorted(roots)))
    for word in mark.named - mark.roots:
        if _DIGEST.match(word):
            digests.add(word)
            digests |= _tree_to_come(trees, Digest(word))
    tables = mark.tables - (before.tables if before else frozenset())
    is_known = all(readers.tables.is_ours(root) for root in mark.tables)
    return Needed(
        objects=digests,
        bundles=mark.bundles,
        locations=mark.working | mark.named,
        tables=readers.tables.needed(tables) if is_known else None,
    )


def find_whole(readers: Readers, kind: DatasetKind, root: str) -> list[str] | None:
    """The locations of all that a version needs, or None if some of it is not there."""
    objects = readers.objects
    try:
        if kind is DatasetKind.TABLE:
            keys = sorted(readers.tables.apart().needed([root]))
        else:
            digests = sorted(set(readers.trees.references([Digest(root)])) - {EMPTY})
            keys = [key_of(digest) for digest in digests]
    except NotFound:
        return None
    if not all(in_parallel(lambda key: objects.find(key) is not None, keys)):
        return None
    return [f"{objects.url}/{key}" for key in keys]


def _tree_to_come(trees: FileTrees, digest: Digest) -> set[str]:
    """What an intent's tree needs; nothing where the digest is not that of a tree."""
    try:
        return set(trees.references([digest]))
    except (NotFound, Invalid):
        return set()
