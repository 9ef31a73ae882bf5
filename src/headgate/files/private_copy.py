"""What became of a private copy: only what was touched is read again."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from headgate.errors import (
    NotFound,
    ObjectCorrupted,
    ObjectNotFound,
    StorageUnavailable,
    UnsafePath,
)
from headgate.files.objects import Digest, in_parallel
from headgate.files.transfer import Progress, Tally, hash_file
from headgate.files.tree import Entry, Mode, empty_directory
from headgate.model.names import check_file_path

# Private copies of files: reflinks where the disk can, else bytes; never hard links.

# ioctl FICLONE: the new file shares the old one's blocks until either is written.
_FICLONE = 0x40049409
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_SMALL_BYTES = 256 * 1024
# From here on a file is worth a thread, and a report of its own.
LARGE_BYTES = 8 * 1024 * 1024
_PART_BYTES = 64 * 1024 * 1024
# So many small files are told at once.
_BATCH = 500

# Inode, size, and nanoseconds of modification and change: differs once the file was touched.
Signature = tuple[int, int, int, int]


class Contents(Protocol):
    """Where contents lie as local files."""

    def path(self, digest: Digest) -> str:
        """A file that holds exactly this content and must only be read."""
        ...

    def fetch(self, entries: Iterable[Entry]) -> None:
        """Brings what is not on this machine yet, many at once."""
        ...

    def missing(self, digest: Digest) -> ObjectNotFound:
        """The error for a content that is gone."""
        ...


@dataclass(frozen=True, kw_only=True)
class PrivateCopy:
    """A directory that one attempt owns, and what was in it when it was made."""

    directory: Path
    entries: dict[str, Entry]
    signatures: dict[str, Signature]
    # The directory itself: another one in its place is not this copy.
    inode: int

    @property
    def total_bytes(self) -> int:
        return sum(entry.size for entry in self.entries.values())


def signature(status: os.stat_result) -> Signature:
    return (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def copy_privately(
    contents: Contents, entries: Iterable[Entry], target: Path, progress: Progress | None = None
) -> PrivateCopy:
    """Fills an empty directory with these entries, at paths relative to it."""
    wanted = list(entries)
    try:
        _make_directories(target, wanted)
        files = [entry for entry in wanted if not entry.is_directory]
        signatures = _copy_all(contents, files, target, progress)
        _outlast(signatures, target)
        inode = target.stat().st_ino
    except OSError as error:
        reason = error.strerror or str(error)
        raise StorageUnavailable(where=str(error.filename or target), reason=reason) from error
    return PrivateCopy(
        directory=target,
        entries={entry.path: entry for entry in wanted},
        signatures=signatures,
        inode=inode,
    )


def _make_directories(target: Path, entries: Iterable[Entry]) -> None:
    wanted = {
        entry.path if entry.is_directory else entry.path.rpartition("/")[0] for entry in entries
    }
    target.mkdir(parents=True, exist_ok=True)
    for directory in sorted(wanted - {""}):
        check_file_path(directory)
        (target / directory).mkdir(parents=True, exist_ok=True)


def _copy_all(
    contents: Contents, files: list[Entry], target: Path, progress: Progress | None
) -> dict[str, Signature]:
    """Small files one after the other, which threads would only slow down; large ones at once."""
    contents.fetch(files)
    copier = _Copier(contents, str(target), Tally(progress))
    small = [entry for entry in files if entry.size < LARGE_BYTES]
    large = [entry for entry in files if entry.size >= LARGE_BYTES]
    batches = (small[at : at + _BATCH] for at in range(0, len(small), _BATCH))
    signatures: dict[str, Signature] = {}
    for found in map(copier.copy, batches):
        signatures.update(found)
    for found in in_parallel(copier.copy, [[entry] for entry in large]):
        signatures.update(found)
    return signatures


class _Copier:
    """Copies file by file, and remembers whether this disk can share blocks."""

    def __init__(self, contents: Contents, target: str, tally: Tally) -> None:
        self._contents = contents
        self._target = target
        self._tally = tally
        self._shares_blocks = True

    def copy(self, entries: Sequence[Entry]) -> dict[str, Signature]:
        """What each became, in this thread one after the other."""
        copied = {entry.path: self._copy(entry) for entry in entries}
        small = sum(entry.size for entry in entries if entry.size < LARGE_BYTES)
        self._tally.add(files=len(copied), bytes=small)
        return copied

    def _copy(self, entry: Entry) -> Signature:
        check_file_path(entry.path)
        try:
            source = os.open(self._contents.path(entry.digest), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise self._contents.missing(entry.digest) from error
        try:
            copy = os.open(f"{self._target}/{entry.path}", _NEW, entry.mode)
            try:
                self._fill(source, copy, entry.size)
                status = os.fstat(copy)
            finally:
                os.close(copy)
        finally:
            os.close(source)
        if status.st_size != entry.size:
            raise ObjectCorrupted(
                location=self._contents.path(entry.digest),
                expected=f"{entry.size} bytes",
                actual=f"{status.st_size} bytes",
            )
        return signature(status)

    def _fill(self, source: int, copy: int, size: int) -> None:
        if size <= _SMALL_BYTES:
            # No more than that: room for a large file would be made and given back for each.
            os.write(copy, os.read(source, size + 1))
            return
        if self._shares_blocks:
            try:
                fcntl.ioctl(copy, _FICLONE, source)
                self._told(size, size)
                return
            except OSError:
                # Another disk, or a file system without it: then for all of them.
                self._shares_blocks = False
        while True:
            try:
                part = os.copy_file_range(source, copy, _PART_BYTES)
            except OSError as error:
                if error.errno not in {errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS}:
                    raise
                part = os.sendfile(copy, source, None, _PART_BYTES)
            if not part:
                return
            self._told(part, size)

    def _told(self, part: int, size: int) -> None:
        """Only a large file is worth it; small ones are told by the batch."""
        if size >= LARGE_BYTES:
            self._tally.add(bytes=part)


def _outlast(signatures: dict[str, Signature], target: Path) -> None:
    """Waits out the disk's clock tick: a change within it would not show in a file's times."""
    newest = max((found[3] for found in signatures.values()), default=0)
    probe = target / f".headgate-{os.getpid()}.tick"
    try:
        probe.touch()
        while probe.stat().st_ctime_ns <= newest:
            probe.touch()
    finally:
        probe.unlink(missing_ok=True)


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
