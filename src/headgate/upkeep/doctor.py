"""Doctor: checks settings, catalog, objects, tables, bundles and Spark, and changes nothing.

A check is a generator of findings. The default run takes seconds; `deep` reads every row and byte,
and files outside the warehouse too.
"""

from __future__ import annotations

import hashlib
import shlex
import stat
import tempfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property, lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from headgate.catalog import consistency, warehouse
from headgate.catalog.consistency import Finding, Shown
from headgate.catalog.database import Connection, Database
from headgate.catalog.garbage_collection import find_condemned
from headgate.catalog.jobspecs import load_jobspecs
from headgate.catalog.migrate import NEWEST, WITHOUT_CATALOG, find_version
from headgate.catalog.retention import remembered_since
from headgate.errors import FileDamaged, HeadgateError, ObjectCorrupted, StorageReadOnly
from headgate.files.objects import Digest, Objects, in_parallel
from headgate.files.tree import EMPTY
from headgate.files.tree_store import load_index, load_leaf
from headgate.model.ids import Instant
from headgate.model.names import check_branch_name
from headgate.model.nouns import DatasetKind
from headgate.model.object_store import ObjectStore
from headgate.settings import Settings
from headgate.spark.java import coordinates_for, find_cached_jars, find_java_home
from headgate.spark.jvm import spark_home
from headgate.storage.address import canonical, key_below, open_outside, open_store, split_address
from headgate.storage.local import CHUNK_BYTES, storage_errors
from headgate.tables import referenced_files
from headgate.tables.metadata import Metadata
from headgate.tables.versions import TableVersions, contradicts_name
from headgate.upkeep.cleanup import find_difference, read_clocks
from headgate.upkeep.reachability import Kind, probe, read_key

Item = TypeVar("Item")
Result = TypeVar("Result")

_MAX_FINDINGS = 100
_PUT_AGAIN = "Restore it from a backup, or put a file with the same content again."
# Putting the same content again would keep the damaged object.
_BACKUP = "Restore it from a backup."
_TABLE_BACKUP = "Restore it from a backup, or reset the branch to a transaction that can be read."
_MOVED = "Move the warehouse back there, or set `[store] warehouse` to that location."


@dataclass(kw_only=True)
class Check:
    """Result of one check; notes are for information only."""

    name: str
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.findings


@dataclass(kw_only=True)
class DoctorReport:
    """Results of all checks."""

    checks: list[Check] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "checks": [
                {
                    "check": check.name,
                    "ok": check.ok,
                    "findings": [asdict(finding) for finding in check.findings],
                    "notes": check.notes,
                }
                for check in self.checks
            ],
        }


def make_check(name: str, found: Iterable[Finding], notes: Iterable[str] = ()) -> Check:
    """Run a check; an error that ends it is a finding too."""
    check = Check(name=name)
    try:
        for finding in found:
            if len(check.findings) == _MAX_FINDINGS:
                check.notes.append(f"there are more: only the first {_MAX_FINDINGS} are listed")
                break
            check.findings.append(finding)
    except HeadgateError as error:
        check.findings.append(from_error(error, where=name))
    check.notes.extend(notes)
    return check


def from_error(error: HeadgateError, *, where: str) -> Finding:
    """Return a finding for an error, whose message names the next step."""
    return Finding(what=error.message, where=where, remedy="Correct that, then check again.")


def examine(settings: Settings, *, deep: bool = False) -> DoctorReport:
    """Check everything that a store needs to work."""
    report = DoctorReport(checks=[make_check("settings", _check_settings(settings))])
    report.checks.append(make_check("access", _check_access(settings)))
    database = Database(settings.catalog)
    try:
        catalog = make_check("catalog", _check_catalog(database, deep=deep))
        report.checks.append(catalog)
        if catalog.ok:
            report.checks += _try_rows(database, deep=deep)
        report.checks += _check_bytes(settings, database if catalog.ok else None, deep=deep)
    finally:
        database.close()
    report.checks.append(_note_spark(settings))
    return report


def _check_settings(settings: Settings) -> Iterator[Finding]:
    for name in (settings.builds.branch, *(settings.builds.fallback or ())):
        try:
            check_branch_name(name)
        except HeadgateError as error:
            yield from_error(error, where="[builds]")


def _check_access(settings: Settings) -> Iterator[Finding]:
    """Check that no user outside the group can open the files of the store."""
    own = settings.root / ".headgate"
    found = Database(settings.catalog).path
    local = None if "://" in settings.warehouse else settings.warehouse
    elsewhere = [Path(place) for place in (found, local, settings.tasks_root) if place is not None]
    for place in (own, *(place for place in elsewhere if not place.is_relative_to(own))):
        mode = stat.S_IMODE(place.stat().st_mode) if place.exists() else 0
        if mode & 0o007:
            name = shlex.quote(str(place))
            yield Finding(
                what=f"every user of this machine has access to it (mode {mode:04o})",
                where=str(place),
                remedy=f"Run `chmod -R go-rwx {name}`; to share it with its group, "
                f"`chmod -R g+rwX,o-rwx {name}`.",
            )


def _check_catalog(database: Database, *, deep: bool) -> Iterator[Finding]:
    """Check that the catalog can be read, has the schema of this release, and is not damaged."""
    where = database.where
    if database.path is not None and not Path(database.path).is_file():
        # Opening it would create it.
        yield Finding(what="the file does not exist", where=where, remedy=WITHOUT_CATALOG)
        return
    with database.raw() as connection:
        found = find_version(connection)
        if found != NEWEST:
            what = f"its schema version is {found}, this release has version {NEWEST}"
            remedy = "Upgrade Headgate." if found > NEWEST else "Run `headgate migrate`."
            if found == 0:
                what, remedy = "it is empty", WITHOUT_CATALOG
            yield Finding(what=what, where=where, remedy=remedy)
            return
        if database.dialect == "sqlite":
            yield from consistency.check_sqlite(connection, deep=deep)


def _try_rows(database: Database, *, deep: bool) -> list[Check]:
    try:
        return database.read(lambda connection: check_rows(connection, deep=deep))
    except HeadgateError as error:
        return [make_check("rows", [from_error(error, where=database.where)])]


def check_rows(connection: Connection, *, deep: bool) -> list[Check]:
    """Check the rows of the catalog, on one snapshot of it."""
    log = [consistency.check_counter(connection), consistency.check_views_follow_log(connection)]
    if deep:
        log.append(consistency.check_log_replays(connection))
    silent = consistency.count_silent_attempts(connection)
    notes = [f"{silent} attempts have no recorded end; newer attempts take over"] if silent else []
    histories = consistency.check_all_histories if deep else consistency.check_some_histories
    return [
        make_check("log", chain(*log)),
        make_check(
            "branches",
            chain(consistency.check_branches(connection), consistency.check_open(connection)),
        ),
        make_check("tags", consistency.check_tags(connection)),
        make_check("histories", histories(connection)),
        make_check("versions", consistency.check_versions(connection, deep=deep)),
        make_check("rules", consistency.check_rules(connection)),
        make_check("holds", consistency.check_holds(connection)),
        make_check("leases", consistency.check_leases(connection), notes),
        make_check("intents", consistency.check_intents(connection)),
        make_check("clock", consistency.check_clock(connection)),
    ]


def _check_bytes(settings: Settings, database: Database | None, *, deep: bool) -> list[Check]:
    try:
        store = open_store(settings.warehouse, settings.environ)
    except HeadgateError as error:
        return [make_check("storage", [from_error(error, where=settings.warehouse)])]
    notes: list[str] = []
    works = make_check("storage", _check_storage(store, notes), notes)
    if database is None or not works.ok:
        return [works]
    # A catalog that may not clean up can be read all the same.
    ours = make_check("storage", _check_owner(store, database, notes), notes)
    return [ours, *check_content(database, store, settings.environ, deep=deep)]


def check_content(
    database: Database,
    store: ObjectStore,
    options: Mapping[str, str] | None,
    *,
    deep: bool,
    hashed: bool = False,
) -> list[Check]:
    """Check all that branches and tags show.

    `options` are AWS_* variables; None: files outside the warehouse are not looked for. `hashed`:
    the caller has compared the objects that are named by their digest.
    """
    shown = database.read(consistency.list_shown)
    files = [version for version in shown if version.kind is DatasetKind.FILES]
    # A view has a metadata file too, which names no other files.
    tables = [version for version in shown if version.kind is not DatasetKind.FILES]
    trees = _walk_trees(Objects(store), files)
    rehash = deep and not hashed
    return [
        make_check("objects", _check_trees(store, trees, deep=rehash)),
        make_check("condemned", _check_condemned(database, store, trees)),
        make_check(
            "tables",
            _check_tables(
                store, tables, since=database.read(remembered_since), options=options, deep=deep
            ),
        ),
        make_check("bundles", _check_bundles(store, _bundles(database), deep=rehash)),
    ]


def _check_storage(store: ObjectStore, notes: list[str]) -> Iterator[Finding]:
    """Check that objects can be written, read and deleted."""
    try:
        probe(store)
    except StorageReadOnly as error:
        # All the rest can still be checked.
        notes.append(error.message)
    except HeadgateError as error:
        yield Finding(
            what=error.message,
            where=store.url,
            remedy="Check `[store] warehouse`, its permissions, and the free space there.",
        )


def _check_owner(store: ObjectStore, database: Database, notes: list[str]) -> Iterator[Finding]:
    """Check the clocks, and that the warehouse belongs to this catalog."""
    # A storage that cannot be written shows no clock of its own.
    apart = None if notes else find_difference(read_clocks(database, store))
    if apart is not None:
        yield Finding(what=apart, where=store.url, remedy="Correct the clock that is wrong.")
    try:
        warehouse.check_may_clean(database, store)
    except HeadgateError as error:
        yield from_error(error, where=store.url)


def _check_condemned(database: Database, store: ObjectStore, trees: _Trees) -> Iterator[Finding]:
    """Check that no shown object is condemned: publications with it would be rejected."""
    objects = Objects(store)
    places = {
        objects.location(digest): where
        for digest, where in trees.needed.items()
        if digest not in trees.unreadable
    }
    for location in sorted(database.read(lambda connection: find_condemned(connection, places))):
        yield Finding(
            what=f"object {location} is condemned, but needed",
            where=places[location],
            remedy="Run `headgate cleanup`: it spares what is needed again.",
        )


def _bundles(database: Database) -> dict[str, str]:
    """Return the bundles of the published JobSpecs, each with one JobSpec that names it."""
    found: dict[str, str] = {}
    for spec in database.read(load_jobspecs):
        digest = spec.body.get("jobspec", {}).get("bundle")
        if digest is not None:
            outputs = ", ".join(spec.body["outputs"])
            found.setdefault(digest, f"the JobSpec of {outputs} on {spec.branch}")
    return found


def _note_spark(settings: Settings) -> Check:
    """Return notes only: a store without Spark is valid."""
    check = Check(name="spark")
    try:
        check.notes.append(f"Spark is in {spark_home()}")
        check.notes.append(f"Java is in {find_java_home(settings.environ, settings.cache)}")
    except HeadgateError as error:
        check.notes.append(error.message)
        return check
    for coordinate in coordinates_for(settings.warehouse):
        cached = find_cached_jars(settings.cache, coordinate)
        state = "cached" if cached else "not cached: the first use of Spark downloads it"
        check.notes.append(f"{coordinate} is {state}")
    return check


@dataclass(kw_only=True)
class _Trees:
    """Objects that the trees of a store need, and errors of the trees themselves."""

    # Each digest with one place that needs it.
    needed: dict[Digest, str] = field(default_factory=dict)
    # Expected sizes, where a tree has them.
    sizes: dict[Digest, int] = field(default_factory=dict)
    unreadable: dict[Digest, HeadgateError] = field(default_factory=dict)


def _walk_trees(objects: Objects, shown: Iterable[Shown]) -> _Trees:
    """Read every index and leaf once; collect the errors of those that cannot be read."""
    found = _Trees()
    for version in shown:
        root = Digest(version.location)
        if root == EMPTY:
            continue
        found.needed.setdefault(root, version.where)
        try:
            leaves = load_index(objects, root).leaves
        except HeadgateError as error:
            found.unreadable[root] = error
            continue
        fresh = [leaf for leaf in leaves if leaf.digest not in found.needed]
        found.needed |= {leaf.digest: version.where for leaf in fresh}
        for leaf, entries in _each(partial(load_leaf, objects), fresh):
            if isinstance(entries, HeadgateError):
                found.unreadable[leaf.digest] = entries
                continue
            for entry in entries:
                if not entry.is_directory:
                    found.needed.setdefault(entry.digest, f"{version.where}: {entry.path}")
                    found.sizes[entry.digest] = entry.size
    return found


def _check_trees(store: ObjectStore, trees: _Trees, *, deep: bool) -> Iterator[Finding]:
    """Check that every shown object exists; `deep`: and that it has its digest."""
    objects = Objects(store)
    for digest, error in trees.unreadable.items():
        yield Finding(what=error.message, where=trees.needed[digest], remedy=_BACKUP)
    present = {
        stored: info.size
        for info in store.list("objects")
        if (stored := _digest_in(info.key)) is not None
    }
    rest = [digest for digest in trees.needed if digest not in trees.unreadable]
    for digest in rest:
        found, wanted = present.get(digest), trees.sizes.get(digest)
        if found is None:
            what, remedy = "does not exist", _PUT_AGAIN
        elif wanted is not None and found != wanted:
            what, remedy = f"is damaged: it has {found} bytes instead of {wanted}", _BACKUP
        else:
            continue
        what = f"object {objects.location(digest)} {what}"
        yield Finding(what=what, where=trees.needed[digest], remedy=remedy)
    if deep:
        there = [d for d in rest if d in present and trees.sizes.get(d, present[d]) == present[d]]
        for digest, damage in _each(partial(_read_through, objects), there):
            if damage is not None:
                yield Finding(what=damage.message, where=trees.needed[digest], remedy=_BACKUP)


def _read_through(objects: Objects, digest: Digest) -> None:
    for _ in objects.stream(digest):
        pass


def _digest_in(key: str) -> Digest | None:
    kind, digest = read_key(key)
    return Digest(digest) if kind is Kind.OBJECT and digest is not None else None


def _check_bundles(
    store: ObjectStore, bundles: Mapping[str, str], *, deep: bool
) -> Iterator[Finding]:
    """Check that the code of every published JobSpec exists; `deep`: and has its digest."""
    for digest, where in bundles.items():
        key = f"bundles/{digest}.zip"
        if store.find(key) is None:
            what = f"bundle {store.url}/{key} does not exist, so its jobs cannot be built"
        elif deep and (actual := hashlib.sha256(store.get(key)).hexdigest()) != digest:
            location = f"{store.url}/{key}"
            what = ObjectCorrupted(location=location, expected=digest, actual=actual).message
        else:
            continue
        yield Finding(
            what=what,
            where=where,
            remedy="Restore it from a backup, or run `headgate jobspecs publish` there again.",
        )


def _check_tables(
    store: ObjectStore,
    shown: Iterable[Shown],
    *,
    since: Instant,
    options: Mapping[str, str] | None,
    deep: bool,
) -> Iterator[Finding]:
    """Check that every shown table has all its files.

    `deep`: also those of earlier snapshots, and files outside the warehouse, which belong to the
    owner of the registered table. Snapshots from before `since` are expired.
    """
    walk = _TableWalk(store, options, deep=deep)
    tables = TableVersions(store, cache_bytes=0, remembered=lambda: since)
    yield from walk.check_metadata(tables, list(shown))
    if walk.lists:
        yield from walk.check_manifests()
    if walk.files:
        yield from walk.check_files()


class _TableWalk:
    """Walks from metadata to manifests to files; each file has one place that needs it."""

    def __init__(
        self, store: ObjectStore, options: Mapping[str, str] | None, *, deep: bool
    ) -> None:
        self._store = store
        self._deep = deep
        self._looks_outside = deep and options is not None
        # Many files are in one directory, and a client of a bucket is slow to make.
        self._open = lru_cache(maxsize=1000)(partial(open_outside, options=options or {}))
        self.lists: dict[str, str] = {}
        # The place, and the size and rows where they are known.
        self.files: dict[str, tuple[str, referenced_files.FileRef | None]] = {}

    @cached_property
    def _stored(self) -> Mapping[str, int]:
        """The sizes of all table files in the warehouse."""
        return {info.key: info.size for info in self._store.list("tables")}

    def check_metadata(self, tables: TableVersions, shown: list[Shown]) -> Iterator[Finding]:
        ours = []
        for version in shown:
            if self._is_ours(version.location):
                ours.append(version)
                continue
            what = f"its metadata file {version.location} is not below {self._store.url}"
            yield Finding(what=what, where=version.where, remedy=_MOVED)
        for version, found in _each(partial(self._read_metadata, tables), ours):
            if isinstance(found, HeadgateError):
                yield Finding(what=found.message, where=version.where, remedy=_TABLE_BACKUP)
                continue
            named = referenced_files.references_of(
                found, snapshots=None if self._deep else _current(found)
            )
            for location in filter(self._is_checked, sorted(named.manifest_lists)):
                self.lists.setdefault(location, version.where)
            for location in filter(self._is_checked, sorted(named.statistics)):
                self.files.setdefault(location, (version.where, None))

    def _read_metadata(self, tables: TableVersions, shown: Shown) -> Metadata:
        found = tables.read(shown.location)
        if self._deep:
            self._verify(shown.location, found.content)
        return found.metadata

    def check_manifests(self) -> Iterator[Finding]:
        """Read manifest lists, then the manifests that they name."""
        reader = referenced_files.open_manifests(self._get)
        manifests: dict[str, tuple[str, referenced_files.ManifestRef]] = {}
        for location, refs in _each(reader.manifests, self.lists):
            where = self.lists[location]
            if isinstance(refs, HeadgateError):
                what = f"manifest list: {refs.message}"
                yield Finding(what=what, where=where, remedy=_TABLE_BACKUP)
                continue
            for ref in refs:
                if self._is_checked(ref.path):
                    manifests.setdefault(ref.path, (where, ref))
        for (where, _), files in _each(lambda named: reader.files(named[1]), manifests.values()):
            if isinstance(files, HeadgateError):
                yield Finding(what=f"manifest: {files.message}", where=where, remedy=_TABLE_BACKUP)
                continue
            for file in files:
                if self._is_checked(file.path):
                    self.files.setdefault(file.path, (where, file))

    def check_files(self) -> Iterator[Finding]:
        """Compare with one listing of the warehouse; request each file outside of it."""
        foreign: dict[str, str] = {}
        sound: dict[str, referenced_files.FileRef] = {}
        for location, (where, file) in self.files.items():
            key = key_below(self._store.url, location)
            if key is None:
                foreign[location] = where
                continue
            found = self._stored.get(key)
            if found is None:
                what = f"file {location} does not exist"
            elif file is not None and found != file.size:
                what = f"file {location} is damaged: it has {found} bytes instead of {file.size}"
            else:
                if file is not None:
                    sound[key] = file
                continue
            yield Finding(what=what, where=where, remedy=_TABLE_BACKUP)
        if self._deep:
            yield from self._check_contents(sound)
        for location, exists in _each(self._exists_outside, foreign):
            if exists is not True:
                lost = f"file {location} does not exist"
                what = exists.message if isinstance(exists, HeadgateError) else lost
                remedy = "Ask the owner of that location, from which the table was registered."
                yield Finding(what=what, where=foreign[location], remedy=remedy)

    def _check_contents(self, files: Mapping[str, referenced_files.FileRef]) -> Iterator[Finding]:
        """Read every data and delete file; a few at a time, since they may be large."""
        for key, damage in _each(lambda key: self._find_damage(key, files[key]), files, ahead=3):
            reason = damage.message if isinstance(damage, HeadgateError) else damage
            if reason is not None:
                where, _ = self.files[files[key].path]
                what = f"file {files[key].path} is damaged: {reason}"
                yield Finding(what=what, where=where, remedy=_TABLE_BACKUP)

    def _find_damage(self, key: str, file: referenced_files.FileRef) -> str | None:
        with _as_local(self._store, key) as local:
            checksums = self._checksums(key)
            if checksums is not None:
                with storage_errors(local), local.open("rb") as opened:
                    chunks = iter(lambda: opened.read(CHUNK_BYTES), b"")
                    found = _compute_checksums(chunks, checksums)
                return None if found == checksums else _NOT_ITS_CHECKSUM
            return referenced_files.open_manifests(self._get).find_damage(file, local)

    def _verify(self, location: str, content: bytes) -> None:
        """Raise `FileDamaged` if the bytes contradict the name or the checksums of the file."""
        if contradicts_name(location, content):
            raise FileDamaged(
                where=location, reason="its bytes do not match the digest in its name"
            )
        key = key_below(self._store.url, location)
        checksums = self._checksums(key) if key is not None else None
        if checksums is not None and checksums != _compute_checksums([content], checksums):
            raise FileDamaged(where=location, reason=_NOT_ITS_CHECKSUM)

    def _checksums(self, key: str) -> bytes | None:
        """Return the file with the checksums of a file, if there is a complete one."""
        directory, _, name = key.rpartition("/")
        beside = f"{directory}/.{name}.crc"
        if beside not in self._stored:
            return None
        found = self._store.get(beside)
        count = -(-self._stored[key] // (int.from_bytes(found[4:8], "big") or 1))
        # After a power failure it may be cut short; its writer does not flush it.
        return found if found.startswith(_CHECKSUMS) and len(found) == 8 + 4 * count else None

    def _is_ours(self, location: str) -> bool:
        return key_below(self._store.url, location) is not None

    def _is_checked(self, location: str) -> bool:
        return self._looks_outside or self._is_ours(location)

    def _get(self, location: str) -> bytes:
        if not self._is_ours(location):
            directory, name = split_address(canonical(location))
            return self._open(directory).get(name)
        content = referenced_files.get_below(self._store, location)
        if self._deep:
            self._verify(location, content)
        return content

    def _exists_outside(self, location: str) -> bool:
        directory, name = split_address(canonical(location))
        return self._open(directory).find(name) is not None


# Hadoop's local file system, by which Spark writes to a directory, keeps checksums beside a file:
# this sign, the number of bytes for each checksum, and the checksums, all in big-endian order.
_CHECKSUMS = b"crc\0"
_NOT_ITS_CHECKSUM = "its bytes do not match the checksum that its writer stored with it"


def _compute_checksums(chunks: Iterable[bytes], like: bytes) -> bytes:
    """Return the checksums of bytes, in the form that a file of checksums has."""
    size = int.from_bytes(like[4:8], "big")
    found, rest = bytearray(like[:8]), b""
    for chunk in chunks:
        rest += chunk
        whole = len(rest) - len(rest) % size
        for start in range(0, whole, size):
            found += zlib.crc32(rest[start : start + size]).to_bytes(4, "big")
        rest = rest[whole:]
    return bytes(found + zlib.crc32(rest).to_bytes(4, "big") if rest else found)


@contextmanager
def _as_local(store: ObjectStore, key: str) -> Iterator[Path]:
    """Yield a local file with the content of an object: itself, or a copy for a while."""
    held = store.local_path(key)
    if held is not None:
        yield held
        return
    with tempfile.NamedTemporaryFile(prefix="headgate-doctor-") as copy:
        path = Path(copy.name)
        with storage_errors(path):
            for chunk in store.stream(key):
                copy.write(chunk)
            copy.flush()
        yield path


def _current(metadata: Metadata) -> list[int]:
    """Return the snapshots that refs name, which are readable without time travel."""
    refs = {ref["snapshot-id"] for ref in (metadata.get("refs") or {}).values()}
    current = metadata.get("current-snapshot-id")
    return [*refs, *([current] if current is not None else [])]


def _each(
    read: Callable[[Item], Result], items: Collection[Item], *, ahead: int = 32
) -> Iterator[tuple[Item, Result | HeadgateError]]:
    """Read items in parallel; return each with its result or error."""

    def try_one(item: Item) -> Result | HeadgateError:
        try:
            return read(item)
        except HeadgateError as error:
            return error

    return zip(items, in_parallel(try_one, list(items), ahead=ahead), strict=True)
