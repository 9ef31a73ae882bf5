"""Private copies of trees for attempts: contents on this machine, the copy, and its changes.

A copy is made of reflinks where the disk has them, else of bytes; never of hard links. Only
files that were touched since are read again.
"""

import errno
import fcntl
import hashlib
import os
import secrets
import stat
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from headgate import errors
from headgate.files.objects import BATCHES_AHEAD, Digest, Objects, batched, in_parallel
from headgate.files.transfer import Progress, file_mode, hash_file, walk_directory
from headgate.files.tree import Entry, Mode, empty_directory
from headgate.model.names import check_file_path
from headgate.storage.local import make_private_directory, storage_errors

_FETCHES_AHEAD = 256


class Contents(Protocol):
    """Contents of a store as local files."""

    def path(self, digest: Digest) -> str:
        """Return a file that holds exactly this content and must only be read."""

    def fetch(self, entries: Iterable[Entry]) -> None:
        """Bring the contents that are not on this machine yet, many at once."""

    def missing(self, digest: Digest) -> errors.ObjectNotFound:
        """Return the error for a content that is gone."""


class ContentCache:
    """Contents by digest below a directory of this machine, each complete and verified."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def find(self, digest: Digest) -> Path | None:
        path = self._path(digest)
        return path if path.is_file() else None

    def add(self, digest: Digest, chunks: Iterator[bytes]) -> Path:
        """Keep a content that its source verifies: if the chunks raise, nothing is kept."""
        path = self._path(digest)
        with self._written_aside(chunks) as temporary:
            _move(temporary, path)
        return path

    def add_unhashed(self, chunks: Iterator[bytes]) -> tuple[Digest, Path]:
        """Keep a content whose digest is computed on the way."""
        seen = hashlib.sha256()

        def hashed() -> Iterator[bytes]:
            for chunk in chunks:
                seen.update(chunk)
                yield chunk

        with self._written_aside(hashed()) as temporary:
            digest = Digest(seen.hexdigest())
            _move(temporary, self._path(digest))
        return digest, self._path(digest)

    def find_named(self, name: str) -> Digest | None:
        """Return the digest of a content by another system's name for it."""
        try:
            return Digest(self._named(name).read_text())
        except FileNotFoundError:
            return None

    def add_name(self, name: str, digest: Digest) -> None:
        with self._written_aside(iter((digest.encode(),))) as temporary:
            _move(temporary, self._named(name))

    @contextmanager
    def _written_aside(self, chunks: Iterator[bytes]) -> Iterator[Path]:
        """Write a file that no other process sees; remove it after the block unless moved."""
        temporary = self._directory / "incoming" / f"{os.getpid()}-{secrets.token_hex(8)}"
        with storage_errors(self._directory):
            make_private_directory(temporary.parent)
            try:
                with temporary.open("xb") as file:
                    for chunk in chunks:
                        file.write(chunk)
                yield temporary
            finally:
                temporary.unlink(missing_ok=True)

    def _named(self, name: str) -> Path:
        return self._directory / "names" / name[:2] / name[2:]

    def _path(self, digest: Digest) -> Path:
        return self._directory / "sha256" / digest[:2] / digest[2:]


def _move(temporary: Path, path: Path) -> None:
    make_private_directory(path.parent)
    temporary.replace(path)


class LocalContents:
    """The contents of one store: its own files if it is local, else fetched once into a cache."""

    def __init__(self, objects: Objects, cache: ContentCache) -> None:
        self._objects = objects
        self._cache = cache

    def path(self, digest: Digest) -> str:
        here = self._objects.local_path(digest)
        if here is not None:
            return here
        found = self._cache.find(digest)
        return str(found or self._cache.add(digest, self._objects.stream(digest)))

    def fetch(self, entries: Iterable[Entry]) -> None:
        if self._objects.is_local:
            return
        sizes = {entry.digest: entry.size for entry in entries}
        wanted = sorted(digest for digest in sizes if self._cache.find(digest) is None)
        together = self._objects.in_batches
        batches = batched(wanted, sizes.__getitem__, together=together)
        ahead = BATCHES_AHEAD if together else _FETCHES_AHEAD
        for _ in in_parallel(self._fetch_batch, batches, ahead=ahead):
            pass

    def missing(self, digest: Digest) -> errors.ObjectNotFound:
        return errors.ObjectNotFound(location=self._objects.location(digest))

    def _fetch_batch(self, digests: list[Digest]) -> None:
        """Keep what arrives even if the rest fails, so that a retry fetches only the rest."""
        missing = dict.fromkeys(digests)
        if len(digests) > 1:
            for digest, data in self._objects.get_many(digests):
                self._cache.add(digest, iter((data,)))
                del missing[digest]
        for digest in missing:
            self.path(digest)


# ioctl FICLONE: the new file shares the old one's blocks until either is written.
_FICLONE = 0x40049409
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_SMALL_BYTES = 256 * 1024
# From this size on, a file is copied in a thread and has progress of its own.
LARGE_BYTES = 8 * 1024 * 1024
_PART_BYTES = 64 * 1024 * 1024
# Small files per progress report.
_BATCH = 500

# Inode, size, and nanoseconds of modification and change: differs once the file was touched.
Signature = tuple[int, int, int, int]


@dataclass(frozen=True, kw_only=True)
class PrivateCopy:
    """A directory that one attempt owns, and its content when it was made."""

    directory: Path
    entries: dict[str, Entry]
    signatures: dict[str, Signature]
    # Of the directory itself: another directory in its place is not this copy.
    inode: int
    # False: the origin keeps files only, neither their modes nor empty directories (lakeFS).
    keeps_modes: bool = True

    @property
    def total_bytes(self) -> int:
        return sum(entry.size for entry in self.entries.values())


def copy_privately(
    contents: Contents, entries: Iterable[Entry], target: Path, progress: Progress | None = None
) -> PrivateCopy:
    """Fill an empty directory with these entries, at paths relative to it."""
    wanted = list(entries)
    try:
        _make_directories(target, wanted)
        files = [entry for entry in wanted if not entry.is_directory]
        signatures = _copy_all(contents, files, target, progress)
        _wait_for_clock_tick(signatures, target)
        inode = target.stat().st_ino
    except OSError as error:
        raise errors.storage_error(error, error.filename or target) from error
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
    """Copy small files in sequence, which threads would only slow down; large ones in parallel."""
    contents.fetch(files)
    copier = _Copier(contents, str(target), _Tally(progress))
    small = [entry for entry in files if entry.size < LARGE_BYTES]
    large = [entry for entry in files if entry.size >= LARGE_BYTES]
    batches = (small[at : at + _BATCH] for at in range(0, len(small), _BATCH))
    signatures: dict[str, Signature] = {}
    for found in map(copier.copy, batches):
        signatures.update(found)
    for found in in_parallel(copier.copy, [[entry] for entry in large]):
        signatures.update(found)
    return signatures


class _Tally:
    """Adds up the progress of several threads."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._lock = threading.Lock()
        self._files = self._bytes = 0

    def add(self, *, files: int = 0, bytes: int = 0) -> None:
        if self._progress is None:
            return
        with self._lock:
            self._files += files
            self._bytes += bytes
            self._progress(self._files, self._bytes)


class _Copier:
    """Copies file by file, and records whether this disk can share blocks."""

    def __init__(self, contents: Contents, target: str, tally: _Tally) -> None:
        self._contents = contents
        self._target = target
        self._tally = tally
        self._shares_blocks = True

    def copy(self, entries: Sequence[Entry]) -> dict[str, Signature]:
        """Copy the entries in this thread; return the signature of each copy by path."""
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
            raise errors.ObjectCorrupted(
                location=self._contents.path(entry.digest),
                expected=f"{entry.size} bytes",
                actual=f"{status.st_size} bytes",
            )
        return _signature(status)

    def _fill(self, source: int, copy: int, size: int) -> None:
        if size <= _SMALL_BYTES:
            # Not a fixed large size: that buffer would be allocated and freed for each file.
            os.write(copy, os.read(source, size + 1))
            return
        if self._shares_blocks:
            try:
                fcntl.ioctl(copy, _FICLONE, source)
                self._report(size, size)
                return
            except OSError:
                # Another disk, or a file system without reflinks: not tried again.
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
            self._report(part, size)

    def _report(self, part: int, size: int) -> None:
        """Report a part of a large file; small files are reported by the batch."""
        if size >= LARGE_BYTES:
            self._tally.add(bytes=part)


def _signature(status: os.stat_result) -> Signature:
    return (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _wait_for_clock_tick(signatures: dict[str, Signature], target: Path) -> None:
    """Wait for the disk's clock: a change within the same tick would not show in a file's times."""
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
    """A file or empty directory of the copy that is new or different."""

    entry: Entry
    source: Path
    # False: the entry has no digest yet; the file is hashed when it is stored.
    is_hashed: bool = True


@dataclass(frozen=True, kw_only=True)
class Changes:
    """The entries to put and to remove to make a tree equal to the copy; paths relative to it."""

    put: tuple[LocalChange, ...] = ()
    remove: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.put or self.remove)

    @property
    def total_bytes(self) -> int:
        return sum(change.entry.size for change in self.put)


def changes_of(copy: PrivateCopy) -> Changes:
    """Return the difference between a copy and its origin; raise if it cannot be published.

    A file with unchanged inode, size and times is not read; a file that was rewritten with the
    same bytes is not a change. Nor is a mode or an empty directory that the origin cannot keep. A
    large file of another size is a change whatever its bytes are,
    and is not read either: it is hashed when it is stored.
    """
    _check_same_directory(copy)
    seen: set[str] = set()
    touched: list[LocalChange] = []
    try:
        for path, status in walk_directory(copy.directory):
            if status is None and not copy.keeps_modes:
                continue
            seen.add(path)
            if status is not None:
                if copy.signatures.get(path) != _signature(status):
                    touched.append(_touched_file(copy, path, status))
            elif path and (path not in copy.entries or not copy.entries[path].is_directory):
                change = LocalChange(entry=empty_directory(path), source=copy.directory / path)
                touched.append(change)
    except OSError as error:
        raise errors.storage_error(error, error.filename) from error
    for change in touched:
        check_file_path(change.entry.path)
    hashed = in_parallel(_hashed, touched)
    return Changes(
        put=tuple(c for c in hashed if copy.entries.get(c.entry.path) != c.entry),
        remove=tuple(sorted(copy.entries.keys() - seen)),
    )


def _check_same_directory(copy: PrivateCopy) -> None:
    """Raise if the directory was removed or replaced: its content is not the attempt's work."""
    try:
        status = copy.directory.lstat()
    except FileNotFoundError as error:
        raise errors.NotFound(
            f"the workspace {copy.directory} is gone; nothing of it is published.",
            path=str(copy.directory),
        ) from error
    if status.st_ino != copy.inode or not stat.S_ISDIR(status.st_mode):
        raise errors.UnsafePath(
            path=str(copy.directory), reason="it is not the directory that the attempt was given"
        )


def _touched_file(copy: PrivateCopy, path: str, status: os.stat_result) -> LocalChange:
    mode = file_mode(status) if copy.keeps_modes else Mode.FILE
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
