"""Backups: a copy of the catalog and of every object that it names; their check and restore.

A backup is a directory. `backup.json` lists the objects with their sizes and digests, and is
written last. The catalog is a SQLite file, whatever the database of the store, and the objects are
below `warehouse/` under their keys. Objects never change, so a repeated backup copies new ones
only, and an interrupted one leaves the backup before it as it was.
"""

import fcntl
import hashlib
import secrets
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import orjson

from headgate import errors
from headgate.attempts import Heartbeat
from headgate.catalog import garbage_collection, migrate, retention, warehouse
from headgate.catalog.consistency import Finding, check_sqlite
from headgate.catalog.database import Connection, Database
from headgate.files.objects import in_parallel, key_of
from headgate.files.transfer import Progress
from headgate.files.tree import EMPTY
from headgate.files.tree_store import FileTrees
from headgate.model.object_store import ObjectInfo, ObjectStore
from headgate.settings import Settings
from headgate.storage.address import key_below, open_store
from headgate.storage.local import CHUNK_BYTES, LocalStore, check_key, storage_errors
from headgate.upkeep import doctor, reachability
from headgate.upkeep.doctor import DoctorReport, make_check
from headgate.upkeep.reachability import Kind, Needed

T = TypeVar("T")
R = TypeVar("R")

_MANIFEST, _LOCK, _OBJECTS = "backup.json", "backup.lock", "warehouse"
_CATALOGS = "catalog-*"
_RENEW_SECONDS = 60.0
# States of work in progress, which `headgate recover` settles after a restore.
_NOT_OF_A_COPY = ("leases", "intents", "clock")
_AGAIN = "Run `headgate backup` again."
_COPY_AGAIN = "Delete the file there and run `headgate backup` again, or use an older backup."
_SOURCE = "Run `headgate doctor --deep` on the store; it names the remedy."

# Called with the number of files and bytes to copy; yields a callback for what is done.
Watch = Callable[[int, int], AbstractContextManager[Progress | None]]


def _unwatched(_files: int, _bytes: int) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The content of a backup, as `backup.json` has it."""

    complete: bool
    store: str
    warehouse: str
    headgate: str = field(default_factory=lambda: version("headgate"))
    incarnation: str | None = None
    publication: int = 0
    schema: int = 0
    # The name of the catalog's file, its size and its digest.
    catalog: tuple[str, int, str] = ("", 0, "")
    # Size and SHA-256 of each object, by its key.
    objects: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    # Objects that the catalog names and the store has lost, or has damaged.
    missing: Mapping[str, str] = field(default_factory=dict)

    def size_of(self, key: str) -> int:
        return self.objects[key][0]


def _watched(
    watch: Watch, items: Collection[T], size_of: Callable[[T], int], work: Callable[[T], R]
) -> Iterator[tuple[T, R]]:
    """Yield each item with the result of the work on it, done in parallel, and report progress."""
    done = 0
    with watch(len(items), sum(map(size_of, items))) as progress:
        results = zip(items, in_parallel(work, items), strict=True)
        for number, (item, result) in enumerate(results, start=1):
            yield item, result
            done += size_of(item)
            if progress is not None:
                progress(number, done)


def back_up(
    database: Database, objects: ObjectStore, directory: Path, *, watch: Watch = _unwatched
) -> dict[str, Any]:
    """Write a backup to a directory, or bring the backup there up to date; return a report.

    The catalog is copied first: what it names is stored by then, and no sweep begins before the
    backup ends.
    """
    _check_place(directory, objects)
    with _owned(directory), _writing(directory):
        before = _begin(directory, database, objects)
        hold = garbage_collection.hold_sweeps(database)
        try:
            with Heartbeat(
                lambda: garbage_collection.renew_hold(database, hold), seconds=_RENEW_SECONDS
            ):
                return _Backup(database, objects, directory, before, watch).write()
        finally:
            garbage_collection.release_hold(database, hold)


def _check_place(directory: Path, objects: ObjectStore) -> None:
    """Raise if a backup in this directory would be part of the store, or a store part of it."""
    held, place = objects.local_path(_OBJECTS), directory.resolve()
    root = held.parent if held is not None else None
    if root is not None and (place.is_relative_to(root) or root.is_relative_to(place)):
        reason = f"it is in the warehouse {root}, or the warehouse is in it"
    elif directory.exists() and not directory.is_dir():
        reason = "it is not a directory"
    elif directory.is_dir() and any(directory.iterdir()) and not (directory / _MANIFEST).exists():
        reason = "it is not empty, and it is not a backup"
    else:
        return
    raise errors.BackupRefused(directory=str(directory), reason=reason)


@contextmanager
def _owned(directory: Path) -> Iterator[None]:
    """Create the directory, which holds the digests of tokens, and keep other backups out of it."""
    with storage_errors(directory):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = (directory / _LOCK).open("a")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            reason = "another backup to it is running"
            raise errors.BackupRefused(directory=str(directory), reason=reason) from None
        yield


@contextmanager
def _writing(directory: Path) -> Iterator[None]:
    try:
        yield
    except errors.StorageUnavailable as error:
        cause = error.__cause__
        reason = f"{error.facts['where']}: {getattr(cause, 'strerror', None) or error.message}"
        raise errors.BackupIncomplete(directory=str(directory), reason=reason) from error


def _begin(directory: Path, database: Database, objects: ObjectStore) -> Manifest:
    """Return the manifest of the backup before; write one that says that there is none yet."""
    identity, publication = database.read(
        lambda c: (warehouse.find_identity(c), warehouse.last_publication(c))
    )
    assert identity is not None, "opening a store gives it an identity"
    if not (directory / _MANIFEST).exists():
        empty = Manifest(complete=False, store=identity.store, warehouse=objects.url)
        _write_manifest(directory, empty)
    before = read_manifest(directory)
    if before.store != identity.store:
        reason = f"it has a backup of store {before.store}, and this is store {identity.store}"
        raise errors.BackupRefused(directory=str(directory), reason=reason)
    if before.publication > publication:
        reason = (
            f"its backup is at publication {before.publication}, and this catalog ends at "
            f"{publication}"
        )
        raise errors.BackupRefused(directory=str(directory), reason=reason)
    return before


@dataclass
class _Backup:
    """The steps of one backup."""

    database: Database
    objects: ObjectStore
    directory: Path
    before: Manifest
    watch: Watch

    def __post_init__(self) -> None:
        self.target = LocalStore(self.directory / _OBJECTS)
        self.findings: list[Finding] = []

    def write(self) -> dict[str, Any]:
        path = self.directory / f"catalog-{secrets.token_hex(8)}.db"
        try:
            return self._write(path)
        except BaseException:
            path.unlink(missing_ok=True)
            raise

    def _write(self, path: Path) -> dict[str, Any]:
        migrate.copy_catalog(self.database, path)
        with migrate.closing_database(f"sqlite:///{path}") as copy:
            copy.write(garbage_collection.release_holds_in)
            identity, publication, schema = copy.read(_read_facts)
            wanted = self._choose(copy)
        held = {info.key: info.size for info in self.target.list()}
        kept = {
            key: entry
            for key, entry in self.before.objects.items()
            if key in wanted and held.get(key) == entry[0] == wanted[key].size
        }
        new = [info for key, info in wanted.items() if key not in kept]
        copied = self._copy(new, held)
        manifest = Manifest(
            complete=True,
            store=identity.store,
            warehouse=self.objects.url,
            incarnation=identity.incarnation,
            publication=publication,
            schema=schema,
            catalog=(path.name, path.stat().st_size, _digest_of(path)),
            objects=dict(sorted((kept | copied).items())),
            missing={finding.where: finding.what for finding in self.findings},
        )
        _write_manifest(self.directory, manifest)
        for old in self.directory.glob(_CATALOGS):
            if old != path:
                old.unlink()
        return self._report(manifest, copied, new)

    def _choose(self, copy: Database) -> dict[str, ObjectInfo]:
        """Return the stored objects that the copied catalog names, by key."""
        needed = self._find_needed(copy)
        wanted: dict[str, ObjectInfo] = {}
        for info in self.objects.list():
            kind, _ = reachability.read_key(info.key)
            is_data = kind not in {Kind.UNKNOWN, Kind.PROBE}
            if is_data and (
                needed is None or needed.holds(info.key, f"{self.objects.url}/{info.key}")
            ):
                wanted[info.key] = info
        for key in _keys_of(needed, self.objects):
            if key not in wanted:
                self._find(key, "it does not exist in the warehouse")
        return wanted

    def _find_needed(self, copy: Database) -> Needed | None:
        """Return what the copied catalog names; None, for everything, if that cannot be read."""
        try:
            return find_needed(copy, self.objects)
        except errors.HeadgateError as error:
            self._find("the warehouse", f"it is copied as a whole, since {error.message}")
            return None

    def _copy(self, new: list[ObjectInfo], held: Mapping[str, int]) -> dict[str, tuple[int, str]]:
        copied: dict[str, tuple[int, str]] = {}
        copy = partial(self._copy_one, held=held)
        for info, entry in _watched(self.watch, new, lambda info: info.size, copy):
            if isinstance(entry, errors.HeadgateError):
                self._find(info.key, entry.message)
            else:
                copied[info.key] = entry
        return copied

    def _copy_one(
        self, info: ObjectInfo, held: Mapping[str, int]
    ) -> tuple[int, str] | errors.HeadgateError:
        if info.key in held:
            # Of an interrupted backup, or of one whose copy has another size.
            digest = _digest_of(self.directory / _OBJECTS / info.key)
            if held[info.key] == info.size and _may_be(info.key, digest):
                return info.size, digest
            self.target.delete([info.key])
        copy = _Hashed(self.objects, info)
        try:
            self.target.put_stream(info.key, iter(copy))
        except (errors.ObjectNotFound, errors.ObjectCorrupted) as error:
            return error
        return info.size, copy.digest

    def _find(self, where: str, what: str) -> None:
        self.findings.append(Finding(what=what, where=where, remedy=_SOURCE))

    def _report(
        self, manifest: Manifest, copied: Mapping[str, tuple[int, str]], new: list[ObjectInfo]
    ) -> dict[str, Any]:
        return {
            "directory": str(self.directory),
            "store": manifest.store,
            "publication": manifest.publication,
            "objects": len(manifest.objects),
            "bytes": sum(size for size, _ in manifest.objects.values()),
            "copied": len(copied),
            "copied_bytes": sum(info.size for info in new if info.key in copied),
            "findings": [asdict(finding) for finding in self.findings],
        }


class _Hashed:
    """An object in chunks, hashed on the way; raises at its end if it is not what it should be."""

    def __init__(self, objects: ObjectStore, info: ObjectInfo) -> None:
        self._objects = objects
        self._info = info
        self.digest = ""

    def __iter__(self) -> Iterator[bytes]:
        seen, size = hashlib.sha256(), 0
        for chunk in self._objects.stream(self._info.key):
            seen.update(chunk)
            size += len(chunk)
            yield chunk
        self.digest = seen.hexdigest()
        location = f"{self._objects.url}/{self._info.key}"
        if size != self._info.size:
            raise errors.StorageUnavailable(where=location, reason="it changed while it was read")
        if not _may_be(self._info.key, self.digest):
            _, expected = reachability.read_key(self._info.key)
            raise errors.ObjectCorrupted(
                location=location, expected=str(expected), actual=self.digest
            )


def find_needed(catalog: Database, objects: ObjectStore) -> Needed:
    """Return all that a catalog names; raise if a part of it cannot be read."""
    mark, since = catalog.read(
        lambda c: (garbage_collection.mark_objects(c), retention.remembered_since(c))
    )
    readers = reachability.Readers(
        objects=objects,
        trees=FileTrees(objects),
        tables=reachability.TableFiles(objects, since=since),
    )
    needed = reachability.find_needed(readers, mark)
    if needed.tables is None:
        raise errors.StorageUnavailable(
            where=objects.url, reason="the metadata files of some tables are elsewhere"
        )
    return needed


def _keys_of(needed: Needed | None, objects: ObjectStore) -> Iterator[str]:
    """Yield the keys that must exist; bundles are found by words that may be other digests."""
    if needed is not None:
        yield from (key_of(digest) for digest in sorted(set(needed.objects) - {EMPTY}))
        yield from sorted(needed.tables or ())
        keys = (key_below(objects.url, location) for location in sorted(needed.locations))
        yield from (key for key in keys if key is not None)


def _read_facts(connection: Connection) -> tuple[warehouse.Identity, int, int]:
    identity = warehouse.find_identity(connection)
    assert identity is not None
    return identity, warehouse.last_publication(connection), migrate.find_version(connection)


def _may_be(key: str, digest: str) -> bool:
    _, expected = reachability.read_key(key)
    return expected in {None, digest}


def _digest_of(path: Path) -> str:
    with storage_errors(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_manifest(directory: Path) -> Manifest:
    """Return the manifest of a backup; raise `Invalid` if the directory is not one."""
    path = directory / _MANIFEST
    if not path.is_file():
        raise errors.Invalid(
            f"{directory} is not a backup: it has no {_MANIFEST}. Give the directory of "
            "`headgate backup`.",
            directory=str(directory),
        )
    try:
        with storage_errors(path):
            found = orjson.loads(path.read_bytes())
        name, size, digest = found["catalog"]
        objects = {str(k): (int(size), str(d)) for k, (size, d) in found["objects"].items()}
        missing = {str(k): str(what) for k, what in found.get("missing", {}).items()}
        # Empty until the catalog is copied.
        name = check_key(name) if name else ""
        parts = {"catalog": (name, int(size), str(digest)), "objects": objects}
        return Manifest(**{**found, **parts, "missing": missing})
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise errors.FileDamaged(
            where=str(path), reason=f"it is not a manifest: {error}"
        ) from error


def _write_manifest(directory: Path, manifest: Manifest) -> None:
    LocalStore(directory).replace(_MANIFEST, orjson.dumps(manifest))


class _BackupStore(LocalStore):
    """Objects of a backup, under the addresses of the warehouse from which they were copied."""

    def __init__(self, directory: Path, url: str) -> None:
        super().__init__(directory / _OBJECTS)
        self._url = url

    @property
    def url(self) -> str:
        return self._url


def check_backup(directory: Path, *, watch: Watch = _unwatched) -> DoctorReport:
    """Try a backup: read every byte of it, and the view of every branch. Changes nothing."""
    manifest = read_manifest(directory)
    if not manifest.complete:
        finding = Finding(
            what="it is not complete: the backup was interrupted",
            where=str(directory),
            remedy=_AGAIN,
        )
        return DoctorReport(checks=[make_check("backup", [finding])])
    store = _BackupStore(directory, manifest.warehouse)
    report = DoctorReport(
        checks=[
            make_check(
                "backup",
                _check_objects(store, manifest, watch),
                [f"made by Headgate {manifest.headgate} at publication {manifest.publication}"],
            )
        ]
    )
    with _scratch(directory, manifest) as copy:
        check = make_check("catalog", _check_catalog(directory, manifest, copy))
        report.checks.append(check)
        if not check.ok:
            return report
        rows = copy.read(lambda connection: doctor.check_rows(connection, deep=True))
        report.checks += [check for check in rows if check.name not in _NOT_OF_A_COPY]
        report.checks.append(make_check("names", _check_names(copy, store, manifest)))
        report.checks += doctor.check_content(copy, store, None, deep=True, hashed=True)
    return report


def _check_objects(store: LocalStore, manifest: Manifest, watch: Watch) -> Iterator[Finding]:
    for key, what in manifest.missing.items():
        yield Finding(what=f"it was not copied: {what}", where=key, remedy=_SOURCE)

    def examine(key: str) -> str | None:
        return _find_damage(store, key, *manifest.objects[key])

    for key, damage in _watched(watch, manifest.objects, manifest.size_of, examine):
        if damage is not None:
            yield Finding(what=damage, where=f"{_OBJECTS}/{key}", remedy=_COPY_AGAIN)


def _find_damage(store: LocalStore, key: str, size: int, digest: str) -> str | None:
    seen, length = hashlib.sha256(), 0
    try:
        for chunk in store.stream(key):
            seen.update(chunk)
            length += len(chunk)
    except errors.ObjectNotFound:
        return "it does not exist"
    except errors.HeadgateError as error:
        return error.message
    if length != size:
        return f"it is damaged: it has {length} bytes instead of {size}"
    if seen.hexdigest() != digest:
        return f"it is damaged: it has the digest {seen.hexdigest()} instead of {digest}"
    return None


@contextmanager
def _scratch(directory: Path, manifest: Manifest) -> Iterator[Database]:
    """Yield a copy of the catalog of a backup: opening it may migrate it and writes beside it."""
    with tempfile.TemporaryDirectory(prefix="headgate-backup-") as place:
        path, source = Path(place) / "catalog.db", directory / manifest.catalog[0]
        with storage_errors(source), source.open("rb") as read, path.open("wb") as copy:
            while chunk := read.read(CHUNK_BYTES):
                copy.write(chunk)
        with migrate.closing_database(f"sqlite:///{path}") as database:
            yield database


def _check_catalog(directory: Path, manifest: Manifest, copy: Database) -> Iterator[Finding]:
    name, size, digest = manifest.catalog
    path = directory / name
    if path.stat().st_size != size or _digest_of(path) != digest:
        yield Finding(what="it is damaged: its digest differs", where=name, remedy=_COPY_AGAIN)
        return
    migrate.ensure_schema(copy)
    with copy.raw() as connection:
        yield from check_sqlite(connection, deep=True)
    identity, publication, _ = copy.read(_read_facts)
    if (identity.store, publication) != (manifest.store, manifest.publication):
        what = f"it is of store {identity.store} at publication {publication}, not as the manifest"
        yield Finding(what=what, where=name, remedy=_AGAIN)


def _check_names(copy: Database, store: ObjectStore, manifest: Manifest) -> Iterator[Finding]:
    """Check that the backup has every object that its catalog names, of all of its history."""
    for key in _keys_of(find_needed(copy, store), store):
        if key not in manifest.objects and key not in manifest.missing:
            what = "the catalog names it, and the backup does not have it"
            yield Finding(what=what, where=key, remedy=_AGAIN)


def restore(settings: Settings, directory: Path, *, watch: Watch = _unwatched) -> dict[str, Any]:
    """Write a backup to the catalog and the warehouse of the settings; return a report.

    The catalog must not exist. It is written last, so that an interrupted restore can be repeated.
    """
    manifest = read_manifest(directory)
    if not manifest.complete:
        reason = "it was interrupted, and there was none in this directory before"
        raise errors.BackupIncomplete(directory=str(directory), reason=reason)
    objects = open_store(settings.warehouse, settings.environ)
    has_tables = any(reachability.read_key(key)[0] is Kind.TABLE for key in manifest.objects)
    if has_tables and objects.url != manifest.warehouse:
        raise errors.Invalid(
            f"the backup is of warehouse {manifest.warehouse}, and this is {objects.url}: the "
            "metadata of tables has absolute paths. Set `[store] warehouse` to the first one.",
            warehouse=manifest.warehouse,
        )
    marker = warehouse.find_marker(objects)
    if marker is not None and marker.store != manifest.store:
        raise errors.WarehouseOccupied(warehouse=objects.url, store=marker.store)
    had_content = warehouse.has_content(objects)
    with _scratch(directory, manifest) as copy:
        migrate.ensure_schema(copy)
        with migrate.closing_database(settings.catalog) as database:
            migrate.check_no_catalog(database)
            copied = _put_back(objects, directory, manifest, watch)
            migrate.load_catalog(copy, database)
            if had_content:
                warehouse.hold(database)
    return {
        "directory": str(directory),
        "store": manifest.store,
        "publication": manifest.publication,
        "objects": len(manifest.objects),
        "copied": copied,
        "cleanup_held": had_content,
    }


def _put_back(objects: ObjectStore, directory: Path, manifest: Manifest, watch: Watch) -> int:
    """Write the objects that the warehouse does not have, or has in another size."""
    held = {info.key: info.size for info in objects.list()}
    lost = [key for key in manifest.objects if held.get(key) != manifest.size_of(key)]

    def put(key: str) -> None:
        path, digest = directory / _OBJECTS / key, manifest.objects[key][1]
        if key in held:
            objects.delete([key])
        objects.put_file(key, path, sha256=digest)

    return sum(1 for _ in _watched(watch, lost, manifest.size_of, put))
