"""What became of a private copy: only what was touched is read again."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from headgate.errors import NotFound, StorageUnavailable, UnsafePath
from headgate.files.copying import LARGE_BYTES, PrivateCopy, signature
from headgate.files.entries import Entry, Mode, empty_directory
from headgate.files.parallel import in_parallel
from headgate.files.upload import hash_file
from headgate.model.names import check_file_path


@dataclass(frozen=True, kw_only=True)
class LocalChange:
    """A file or empty directory that a copy has and did not have, as it is now."""

    entry: Entry
    source: Path
    # Else the entry has no digest yet: whoever stores the file finds it out on the way.
    is_hashed: bool = True


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What must be put and removed to make a tree look like the copy; paths relative to it."""

    put: tuple[LocalChange, ...] = ()
    remove: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.put or self.remove)

    @property
    def total_bytes(self) -> int:
        return sum(change.entry.size for change in self.put)


def changes_of(copy: PrivateCopy) -> Changes:
    """The difference between a copy and what it was made from; refuses what cannot be published.

    A file whose inode, size and times are as they were is not read; one that was written anew
    with the same bytes is no change. A large file of another size is a change whatever its bytes
    are, and not read either: it is hashed when it is stored.
    """
    _check_same_directory(copy)
    seen: set[str] = set()
    touched: list[LocalChange] = []
    try:
        for path, status in _walk(str(copy.directory)):
            seen.add(path)
            if status is None:
                if path not in copy.entries or not copy.entries[path].is_directory:
                    touched.append(_directory(copy, path))
            elif copy.signatures.get(path) != signature(status):
                touched.append(_described(copy, path, status))
    except OSError as error:
        reason = error.strerror or str(error)
        raise StorageUnavailable(where=str(error.filename), reason=reason) from error
    for change in touched:
        check_file_path(change.entry.path)
    hashed = in_parallel(_hashed, touched)
    return Changes(
        put=tuple(c for c in hashed if copy.entries.get(c.entry.path) != c.entry),
        remove=tuple(sorted(copy.entries.keys() - seen)),
    )


def _check_same_directory(copy: PrivateCopy) -> None:
    """A directory that somebody emptied or replaced says nothing about what the body did."""
    try:
        status = copy.directory.lstat()
    except FileNotFoundError as error:
        raise NotFound(
            f"the workspace {copy.directory} is gone; nothing of it is published.",
            path=str(copy.directory),
        ) from error
    if status.st_ino != copy.inode or not stat.S_ISDIR(status.st_mode):
        raise UnsafePath(
            path=str(copy.directory), reason="it is not the directory that the attempt was given"
        )


def _walk(root: str) -> Iterator[tuple[str, os.stat_result | None]]:
    """Every file with its status, and every directory that has nothing in it, without one."""
    pending = [""]
    while pending:
        below = pending.pop()
        count = 0
        with os.scandir(f"{root}/{below}") as found:
            for one in found:
                count += 1
                path = f"{below}/{one.name}" if below else one.name
                if one.is_dir(follow_symlinks=False):
                    pending.append(path)
                elif one.is_file(follow_symlinks=False):
                    yield path, one.stat(follow_symlinks=False)
                else:
                    raise UnsafePath(path=path, reason=_what_it_is(one))
        if below and not count:
            yield below, None


def _what_it_is(found: os.DirEntry[str]) -> str:
    if found.is_symlink():
        return "it is a symbolic link, which a workspace cannot hold; write a copy instead"
    return "it is neither a file nor a directory (a socket, pipe or device)"


def _directory(copy: PrivateCopy, path: str) -> LocalChange:
    return LocalChange(entry=empty_directory(path), source=copy.directory / path)


def _described(copy: PrivateCopy, path: str, status: os.stat_result) -> LocalChange:
    mode = Mode.EXECUTABLE if status.st_mode & stat.S_IXUSR else Mode.FILE
    entry = replace(empty_directory(path), mode=mode, size=status.st_size)
    before = copy.entries.get(path)
    may_be_equal = before is not None and not before.is_directory and before.size == entry.size
    return LocalChange(
        entry=entry,
        source=copy.directory / path,
        is_hashed=entry.size < LARGE_BYTES or may_be_equal,
    )


def _hashed(change: LocalChange) -> LocalChange:
    if change.entry.is_directory or not change.is_hashed:
        return change
    digest, size = hash_file(change.source)
    return replace(change, entry=replace(change.entry, digest=digest, size=size))
