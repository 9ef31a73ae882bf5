"""Which stored files the tables of a store need: each manifest is read once, however many share it.

Files outside the warehouse belong to whoever registered their table: they are passed over, and so
are the manifests among them, which name nothing of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial

from headgate.files.parallel import in_parallel
from headgate.model.ids import Instant
from headgate.model.ports import ObjectStore
from headgate.storage.places import key_below
from headgate.tables.naming import (
    ManifestRef,
    Named,
    get_below,
    named_by,
    open_manifests,
)
from headgate.tables.versions import TableVersions

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
