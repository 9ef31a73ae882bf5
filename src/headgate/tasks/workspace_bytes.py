"""The bytes' half of a workspace in a `files` dataset: a private copy, and a tree made from it.

Which trees those are is the catalog's to say, wherever it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from headgate.errors import Invalid
from headgate.files.batches import BATCHES_AHEAD, batched
from headgate.files.cache import ContentCache
from headgate.files.copying import PrivateCopy, copy_privately
from headgate.files.download import relative_to
from headgate.files.entries import Entry
from headgate.files.looking import Changes, LocalChange
from headgate.files.objects import Digest
from headgate.files.parallel import in_parallel
from headgate.files.progress import Progress, counted
from headgate.files.trees import FileTrees
from headgate.files.upload import hash_file
from headgate.files.writing import locations_in
from headgate.tasks.inputs import WorkspaceRef
from headgate.tasks.ports import Staged


class WorkspaceBytes:
    """Copies trees to this machine and makes new ones from what became of the copies."""

    def __init__(self, trees: FileTrees, cache: ContentCache) -> None:
        self._trees = trees
        self._contents = trees.contents(cache)

    def download(
        self,
        workspace: WorkspaceRef,
        root: Digest,
        prefix: str,
        target: Path,
        progress: Progress | None,
    ) -> PrivateCopy:
        entries = list(self._trees.walk(root, prefix))
        if any(entry.path == prefix and not entry.is_directory for entry in entries):
            raise Invalid(f"prefix {prefix!r} of {workspace.repository} is a file, no directory.")
        below = relative_to((entry for entry in entries if entry.path != prefix), prefix)
        return copy_privately(self._contents, below, target, progress)

    def stage(
        self,
        workspace: WorkspaceRef,
        root: Digest,
        prefix: str,
        changes: Changes,
        progress: Progress | None,
    ) -> Staged:
        stored = counted(self._stored(changes.put), progress)
        edited = self._trees.edit(
            root,
            put=_placed(prefix, stored),
            remove=[_path(prefix, path) for path in changes.remove],
        )
        return Staged(
            repository=workspace.repository,
            ref=edited.root,
            objects=frozenset(locations_in(self._trees, edited)),
        )

    def _stored(self, changes: Sequence[LocalChange]) -> Iterator[Entry]:
        """The entries of what is put, each once its content is in the store."""
        if not self._trees.travel_together:
            return in_parallel(self._store, changes)
        batches = batched(changes, lambda change: change.entry.size, together=True)
        return chain.from_iterable(in_parallel(self._store_batch, batches, ahead=BATCHES_AHEAD))

    def _store_batch(self, changes: list[LocalChange]) -> list[Entry]:
        if len(changes) == 1:
            return [self._store(changes[0])]
        entries = [_hashed(change) for change in changes]
        pairs = zip(entries, changes, strict=True)
        self._trees.store_files({e.digest: c.source for e, c in pairs if not e.is_directory})
        return entries

    def _store(self, change: LocalChange) -> Entry:
        """Its content is in the store when this returns, and the entry names it."""
        if change.entry.is_directory:
            return change.entry
        if change.is_hashed:
            self._trees.store_file(change.entry.digest, change.source)
            return change.entry
        digest, size = self._trees.store_unhashed(change.source)
        return replace(change.entry, digest=digest, size=size)


def _hashed(change: LocalChange) -> Entry:
    if change.is_hashed or change.entry.is_directory:
        return change.entry
    digest, size = hash_file(change.source)
    return replace(change.entry, digest=digest, size=size)


def _path(prefix: str, path: str) -> str:
    return f"{prefix}/{path}" if prefix else path


def _placed(prefix: str, entries: Sequence[Entry]) -> list[Entry]:
    return [replace(entry, path=_path(prefix, entry.path)) for entry in entries]
