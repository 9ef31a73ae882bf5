"""The doctor: looks at a store from end to end, changes nothing, and says what is wrong."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

from headgate.catalog.consistency import (
    Finding,
    Shown,
    check_all_histories,
    check_branches,
    check_counter,
    check_intents,
    check_leases,
    check_log_replays,
    check_open,
    check_some_histories,
    check_sqlite,
    check_tags,
    check_versions,
    check_views_follow_log,
    count_silent_attempts,
    list_shown,
)
from headgate.catalog.database import Connection, Database
from headgate.catalog.garbage_collection import find_condemned
from headgate.catalog.jobspecs import load_jobspecs
from headgate.catalog.migrate import NEWEST, find_version
from headgate.catalog.retention import remembered_since
from headgate.errors import HeadgateError, ObjectCorrupted
from headgate.files.objects import Digest, Objects, in_parallel
from headgate.files.tree import EMPTY, Entry, LeafRef, load_index, load_leaf
from headgate.model.ids import Instant
from headgate.model.names import check_branch_name
from headgate.model.nouns import DatasetKind
from headgate.model.ports import ObjectStore
from headgate.settings import Settings
from headgate.spark.java import coordinates_for, find_cached, find_java_home
from headgate.spark.jvm import spark_home
from headgate.storage.address import open_outside, open_store, split
from headgate.storage.keys import canonical, key_below
from headgate.tables.named_files import ManifestRef, get_below, named_by, open_manifests
from headgate.tables.shape import Metadata
from headgate.tables.versions import TableVersions
from headgate.upkeep.reachability import Kind, probe, read_key

# What an examination found, check by check.

# A store that is broken in a thousand places is told of in so many.
_MOST = 100


@dataclass(kw_only=True)
class Check:
    """One thing that was looked at: what is wrong with it, and what is good to know."""

    name: str
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.findings


@dataclass(kw_only=True)
class Examined:
    """The report of a doctor."""

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
    """Carries a check out; an error that ends it is a finding too."""
    check = Check(name=name)
    try:
        for finding in found:
            if len(check.findings) == _MOST:
                check.notes.append(f"there is more like this: only the first {_MOST} are listed")
                break
            check.findings.append(finding)
    except HeadgateError as error:
        check.findings.append(from_error(error, where=name))
    check.notes.extend(notes)
    return check


def from_error(error: HeadgateError, *, where: str) -> Finding:
    """An error as a finding; its sentence says what to do."""
    return Finding(what=error.message, where=where, remedy="Mend that, then look again.")


def chained(*parts: Iterable[Finding]) -> Iterator[Finding]:
    for part in parts:
        yield from part


# Whether the bytes are there that the catalog shows, and, looking deep, whether they are right.

_PUT_AGAIN = "Restore it from a backup, or put a file with the same content again."
# Putting the content again would find the damaged object in its place.
_BACKUP = "Restore it from a backup."


@dataclass(kw_only=True)
class Trees:
    """All that the trees of a store need, and what could not be read of the trees themselves."""

    # Each digest with one place that needs it.
    needed: dict[Digest, str] = field(default_factory=dict)
    # How many bytes it has, where the tree says so.
    sizes: dict[Digest, int] = field(default_factory=dict)
    unreadable: dict[Digest, HeadgateError] = field(default_factory=dict)


def walk_trees(objects: Objects, shown: Iterable[Shown]) -> Trees:
    """Reads every index and leaf once; what cannot be read is noted, and passed over."""
    found = Trees()
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
        for leaf, entries in zip(
            fresh, in_parallel(partial(_try_leaf, objects), fresh), strict=True
        ):
            if isinstance(entries, HeadgateError):
                found.unreadable[leaf.digest] = entries
                continue
            for entry in entries:
                if not entry.is_directory:
                    found.needed.setdefault(entry.digest, f"{version.where}: {entry.path}")
                    found.sizes[entry.digest] = entry.size
    return found


def _try_leaf(objects: Objects, leaf: LeafRef) -> list[Entry] | HeadgateError:
    try:
        return load_leaf(objects, leaf)
    except HeadgateError as error:
        return error


def check_trees(store: ObjectStore, trees: Trees, *, deep: bool) -> Iterator[Finding]:
    """Every object that is shown exists; `deep`: and holds what its digest says."""
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
        for digest, damage in zip(
            there, in_parallel(partial(_find_damage, objects), there), strict=True
        ):
            if damage is not None:
                yield Finding(what=damage, where=trees.needed[digest], remedy=_BACKUP)


def _find_damage(objects: Objects, digest: Digest) -> str | None:
    try:
        for _ in objects.stream(digest):
            pass
    except HeadgateError as error:
        return error.message
    return None


def _digest_in(key: str) -> Digest | None:
    kind, digest = read_key(key)
    return Digest(digest) if kind is Kind.OBJECT and digest is not None else None


def check_bundles(
    store: ObjectStore, bundles: Mapping[str, str], *, deep: bool
) -> Iterator[Finding]:
    """The code of every published JobSpec is there; `deep`: and is what was published."""
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


# Whether the tables that the catalog shows can be read: metadata, manifests, files, in this order.
#
# What lies outside the warehouse belongs to whoever registered its table; it is looked at only when
# looking deep.

Item = TypeVar("Item")
Result = TypeVar("Result")

_TABLE_BACKUP = "Restore it from a backup, or reset the branch to a transaction that can be read."
_MOVED = "Put the warehouse back where it was, or change `[store] warehouse` back to that."


def check_tables(
    store: ObjectStore,
    shown: Iterable[Shown],
    *,
    since: Instant,
    options: Mapping[str, str],
    deep: bool,
) -> Iterator[Finding]:
    """Every table that is shown has all its files; `deep`: its listed past too, and foreign files.

    `since` is the moment before which snapshots are forgotten.
    """
    look = _Look(store, options, deep=deep)
    tables = TableVersions(store, cache_bytes=0, remembered=lambda: since)
    yield from look.at_metadata(tables, list(shown))
    if look.lists:
        yield from look.at_manifests()
    if look.files:
        yield from look.for_files()


class _Look:
    """A walk from metadata to files; each thing that is needed comes with one place where."""

    def __init__(self, store: ObjectStore, options: Mapping[str, str], *, deep: bool) -> None:
        self._store = store
        self._deep = deep
        # Many files lie in one directory, and a client of a bucket takes a while to make.
        self._open = lru_cache(maxsize=1000)(partial(open_outside, options=options))
        self.lists: dict[str, str] = {}
        # Sizes where they are known.
        self.files: dict[str, tuple[str, int | None]] = {}

    def at_metadata(self, tables: TableVersions, shown: list[Shown]) -> Iterator[Finding]:
        ours = []
        for version in shown:
            if self._is_ours(version.location):
                ours.append(version)
                continue
            what = f"its metadata file {version.location} is not below {self._store.url}"
            yield Finding(what=what, where=version.where, remedy=_MOVED)
        for version, found in zip(ours, in_parallel(partial(_read, tables), ours), strict=True):
            if isinstance(found, HeadgateError):
                yield Finding(what=found.message, where=version.where, remedy=_TABLE_BACKUP)
                continue
            named = named_by(found, snapshots=None if self._deep else _current(found))
            for location in filter(self._is_looked_at, sorted(named.manifest_lists)):
                self.lists.setdefault(location, version.where)
            for location in filter(self._is_looked_at, sorted(named.statistics)):
                self.files.setdefault(location, (version.where, None))

    def at_manifests(self) -> Iterator[Finding]:
        """Manifest lists, then the manifests that they name."""
        reader = open_manifests(self._get)
        manifests: dict[str, tuple[str, ManifestRef]] = {}
        for (_, where), refs in _each(reader.manifests, self.lists):
            if isinstance(refs, HeadgateError):
                yield Finding(
                    what=f"manifest list: {refs.message}", where=where, remedy=_TABLE_BACKUP
                )
                continue
            for ref in refs:
                if self._is_looked_at(ref.path):
                    manifests.setdefault(ref.path, (where, ref))
        refs_only = {ref: where for where, ref in manifests.values()}
        for (_, where), files in _each(reader.files, refs_only):
            if isinstance(files, HeadgateError):
                yield Finding(what=f"manifest: {files.message}", where=where, remedy=_TABLE_BACKUP)
                continue
            for file in files:
                if self._is_looked_at(file.path):
                    self.files.setdefault(file.path, (where, file.size))

    def for_files(self) -> Iterator[Finding]:
        """One listing for all that is ours; a question for each that is not."""
        stored = {info.key: info.size for info in self._store.list("tables")}
        foreign: dict[str, str] = {}
        for location, (where, size) in self.files.items():
            key = key_below(self._store.url, location)
            if key is None:
                foreign[location] = where
                continue
            found = stored.get(key)
            if found is None:
                what = f"file {location} does not exist"
            elif size is not None and found != size:
                what = f"file {location} is damaged: it has {found} bytes instead of {size}"
            else:
                continue
            yield Finding(what=what, where=where, remedy=_TABLE_BACKUP)
        for (location, where), found_there in _each(self._find_outside, foreign):
            if found_there is not True:
                lost = f"file {location} does not exist"
                what = found_there.message if isinstance(found_there, HeadgateError) else lost
                remedy = "Ask whoever looks after that place: the table was registered from there."
                yield Finding(what=what, where=where, remedy=remedy)

    def _is_ours(self, location: str) -> bool:
        return key_below(self._store.url, location) is not None

    def _is_looked_at(self, location: str) -> bool:
        return self._deep or self._is_ours(location)

    def _get(self, location: str) -> bytes:
        if self._is_ours(location):
            return get_below(self._store, location)
        directory, name = split(canonical(location))
        return self._open(directory).get(name)

    def _find_outside(self, location: str) -> bool:
        directory, name = split(canonical(location))
        return self._open(directory).find(name) is not None


def _current(metadata: Metadata) -> list[int]:
    """The snapshots that refs name: what can be read without travelling in time."""
    refs = {ref["snapshot-id"] for ref in (metadata.get("refs") or {}).values()}
    current = metadata.get("current-snapshot-id")
    return [*refs, *([current] if current is not None else [])]


def _read(tables: TableVersions, version: Shown) -> Metadata | HeadgateError:
    found = _try(tables.read, version.location)
    return found if isinstance(found, HeadgateError) else found.metadata


def _each(
    read: Callable[[Item], Result], needed: Mapping[Item, str]
) -> Iterator[tuple[tuple[Item, str], Result | HeadgateError]]:
    """What each thing reads as, or the error, with the place that needs it."""
    return zip(needed.items(), in_parallel(partial(_try, read), list(needed)), strict=True)


def _try(read: Callable[[Item], Result], item: Item) -> Result | HeadgateError:
    try:
        return read(item)
    except HeadgateError as error:
        return error


def examine(settings: Settings, *, deep: bool = False) -> Examined:
    """Looks in seconds at all that a store needs to work; `deep`: at every row and byte."""
    examined = Examined()
    examined.checks.append(make_check("settings", _check_settings(settings)))
    database = Database(settings.catalog)
    try:
        examined.checks.append(make_check("catalog", _check_catalog(database, deep=deep)))
        readable = examined.checks[-1].ok
        if readable:
            examined.checks += _look(database, deep=deep)
        examined.checks += check_bytes(settings, database if readable else None, deep=deep)
    finally:
        database.close()
    examined.checks.append(_note_spark(settings))
    return examined


def _check_settings(settings: Settings) -> Iterator[Finding]:
    for name in (settings.builds.branch, *(settings.builds.fallback or ())):
        try:
            check_branch_name(name)
        except HeadgateError as error:
            yield from_error(error, where="[builds]")


def _check_catalog(database: Database, *, deep: bool) -> Iterator[Finding]:
    """It answers, has the schema that this release knows, and its file is whole."""
    where = database.where
    if database.path is not None and not Path(database.path).is_file():
        # Looking would make it.
        yield Finding(
            what="there is no such file",
            where=where,
            remedy="Check `[store] catalog`, restore the file from a backup, or make a new store "
            "with `headgate init`.",
        )
        return
    with database.raw() as connection:
        found = find_version(connection)
        if found != NEWEST:
            newer = found > NEWEST
            yield Finding(
                what=f"its schema version is {found}, this release knows {NEWEST}",
                where=where,
                remedy="Upgrade Headgate." if newer else "Run `headgate migrate`.",
            )
            return
        if database.dialect == "sqlite":
            yield from check_sqlite(connection, deep=deep)


def _look(database: Database, *, deep: bool) -> list[Check]:
    try:
        return database.read(lambda connection: check_rows(connection, deep=deep))
    except HeadgateError as error:
        return [make_check("rows", [from_error(error, where=database.where)])]


def check_rows(connection: Connection, *, deep: bool) -> list[Check]:
    """All that the catalog's rows can tell, on one picture of them."""
    log = [check_counter(connection), check_views_follow_log(connection)]
    if deep:
        log.append(check_log_replays(connection))
    silent = count_silent_attempts(connection)
    told = [f"{silent} attempts never said how they ended; newer ones take over"] if silent else []
    histories = check_all_histories if deep else check_some_histories
    return [
        make_check("log", chained(*log)),
        make_check("branches", chained(check_branches(connection), check_open(connection))),
        make_check("tags", check_tags(connection)),
        make_check("histories", histories(connection)),
        make_check("versions", check_versions(connection, deep=deep)),
        make_check("leases", check_leases(connection), told),
        make_check("intents", check_intents(connection)),
    ]


# --- bytes ----------------------------------------------------------------------------------


def check_bytes(settings: Settings, database: Database | None, *, deep: bool) -> list[Check]:
    try:
        store = open_store(settings.warehouse, settings.environ)
    except HeadgateError as error:
        return [make_check("storage", [from_error(error, where=settings.warehouse)])]
    checks = [make_check("storage", _check_storage(store))]
    if database is None or not checks[0].ok:
        return checks
    shown = database.read(list_shown)
    files = [version for version in shown if version.kind is DatasetKind.FILES]
    trees = walk_trees(Objects(store), files)
    checks += [
        make_check("objects", check_trees(store, trees, deep=deep)),
        make_check("condemned", _check_condemned(database, store, trees)),
        make_check(
            "tables",
            check_tables(
                store,
                [version for version in shown if version.kind is DatasetKind.TABLE],
                since=database.read(remembered_since),
                options=settings.environ,
                deep=deep,
            ),
        ),
        make_check("bundles", check_bundles(store, _bundles(database), deep=deep)),
    ]
    return checks


def _check_storage(store: ObjectStore) -> Iterator[Finding]:
    """It can be written, read and deleted."""
    try:
        probe(store)
    except HeadgateError as error:
        yield Finding(
            what=error.message,
            where=store.url,
            remedy="Check `[store] warehouse`, its rights, and the room that is left there.",
        )


def _check_condemned(database: Database, store: ObjectStore, trees: Trees) -> Iterator[Finding]:
    """Nothing that is shown is condemned: the door would refuse to use it again."""
    objects = Objects(store)
    places = {
        objects.location(digest): where
        for digest, where in trees.needed.items()
        if digest not in trees.unreadable
    }
    for location in sorted(database.read(lambda connection: find_condemned(connection, places))):
        yield Finding(
            what=f"object {location} is condemned, though it is needed",
            where=places[location],
            remedy="Run `headgate cleanup`: it spares what is needed again.",
        )


def _bundles(database: Database) -> dict[str, str]:
    """The bundles of what is published now, each with one JobSpec that names it."""
    found: dict[str, str] = {}
    for spec in database.read(load_jobspecs):
        digest = spec.body.get("jobspec", {}).get("bundle")
        if digest is not None:
            outputs = ", ".join(spec.body["outputs"])
            found.setdefault(digest, f"the JobSpec of {outputs} on {spec.branch}")
    return found


# --- Spark ----------------------------------------------------------------------------------


def _note_spark(settings: Settings) -> Check:
    """For information only: a store without Spark is a sound store."""
    check = Check(name="spark")
    try:
        check.notes.append(f"Spark is in {spark_home()}")
        check.notes.append(f"Java is in {find_java_home(settings.environ, settings.cache)}")
    except HeadgateError as error:
        check.notes.append(error.message)
        return check
    for coordinate in coordinates_for(settings.warehouse):
        cached = find_cached(settings.cache, coordinate)
        state = "at hand" if cached else "not fetched yet: the first use of Spark does that"
        check.notes.append(f"{coordinate} is {state}")
    return check
