"""Whether the tables that the catalog shows can be read: metadata, manifests, files, in this order.

What lies outside the warehouse belongs to whoever registered its table; it is looked at only when
looking deep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache, partial
from typing import TypeVar

from headgate.catalog.soundness import Finding
from headgate.catalog.soundness_branches import Shown
from headgate.errors import HeadgateError
from headgate.files.parallel import in_parallel
from headgate.model.ids import Instant
from headgate.model.ports import ObjectStore
from headgate.storage.outside import open_outside, split
from headgate.storage.places import canonical, key_below
from headgate.tables.naming import ManifestRef, get_below, named_by, open_manifests
from headgate.tables.shape import Metadata
from headgate.tables.versions import TableVersions

Item = TypeVar("Item")
Result = TypeVar("Result")

_BACKUP = "Restore it from a backup, or reset the branch to a transaction that can be read."
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
                yield Finding(what=found.message, where=version.where, remedy=_BACKUP)
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
                yield Finding(what=f"manifest list: {refs.message}", where=where, remedy=_BACKUP)
                continue
            for ref in refs:
                if self._is_looked_at(ref.path):
                    manifests.setdefault(ref.path, (where, ref))
        refs_only = {ref: where for where, ref in manifests.values()}
        for (_, where), files in _each(reader.files, refs_only):
            if isinstance(files, HeadgateError):
                yield Finding(what=f"manifest: {files.message}", where=where, remedy=_BACKUP)
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
            yield Finding(what=what, where=where, remedy=_BACKUP)
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
