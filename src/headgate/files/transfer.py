"""From a tree to local files, verified on the way and never outside the target."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from headgate.errors import FileChanged, NotFound, StorageUnavailable, UnsafePath
from headgate.files.objects import BATCHES_AHEAD, Digest, Objects, batched, in_parallel
from headgate.files.tree import Entry, Mode, empty_directory
from headgate.model.names import check_file_path

# How long work tells what it has done.

# Called with the files and the bytes done so far, by one thread at a time.
Progress = Callable[[int, int], None]


class Tally:
    """Adds up what several threads have done, and tells whoever wants to know."""

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


def counted(entries: Iterable[Entry], progress: Progress | None) -> list[Entry]:
    """The entries as they get done, each reported once it is."""
    done: list[Entry] = []
    files = total_bytes = 0
    for entry in entries:
        done.append(entry)
        files += not entry.is_directory
        total_bytes += entry.size
        if progress:
            progress(files, total_bytes)
    return done


# From local files to stored contents and the entries that name them.

# Enough that one large file at the head of the line does not leave the other threads idle.
_FILES_AHEAD = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalFile:
    """A file or empty directory on disk, and the path that it is to have in the tree."""

    path: str
    source: Path
    mode: Mode
    size: int
    # Inode, size, and nanoseconds of modification and change: differs once the file was touched.
    signature: tuple[int, int, int, int]


def scan(source: Path, under: str = "") -> list[LocalFile]:
    """All that is to be uploaded, or an error naming what must not be; stores nothing.

    A file becomes `under` itself, or has its own name where that is empty; what is in a directory
    comes below `under`, or to the top where that is empty.
    """
    with_name = under or ("" if source.is_dir() else source.name)
    try:
        return sorted(_scan(source, with_name), key=lambda file: file.path)
    except FileNotFoundError as error:
        missing = str(error.filename or source)
        raise NotFound(f"there is no file or directory {missing!r}.", path=missing) from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise StorageUnavailable(where=str(error.filename or source), reason=reason) from error


def upload(
    contents: Objects, files: Iterable[LocalFile], progress: Progress | None = None
) -> list[Entry]:
    """Stores the contents that the store has not, and returns the entries to put in a tree."""
    together = contents.travel_together
    stored = in_parallel(
        lambda batch: _upload_batch(contents, batch),
        batched(files, lambda file: file.size, together=together),
        ahead=BATCHES_AHEAD if together else _FILES_AHEAD,
    )
    return counted(chain.from_iterable(stored), progress)


def _scan(source: Path, path: str) -> Iterator[LocalFile]:
    pending = [(source, path)]
    while pending:
        source, path = pending.pop()
        if path:
            check_file_path(path)
        status = source.lstat()
        if stat.S_ISDIR(status.st_mode):
            inside = list(source.iterdir())
            pending.extend((one, f"{path}/{one.name}" if path else one.name) for one in inside)
            if path and not inside:
                yield _describe(source, path, status, Mode.DIRECTORY)
        elif stat.S_ISREG(status.st_mode):
            executable = status.st_mode & stat.S_IXUSR
            yield _describe(source, path, status, Mode.EXECUTABLE if executable else Mode.FILE)
        else:
            raise UnsafePath(path=path or str(source), reason=_what_it_is(status.st_mode))


def _describe(source: Path, path: str, status: os.stat_result, mode: Mode) -> LocalFile:
    return LocalFile(
        path=path,
        source=source,
        mode=mode,
        size=0 if mode is Mode.DIRECTORY else status.st_size,
        signature=(status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns),
    )


def _what_it_is(mode: int) -> str:
    if stat.S_ISLNK(mode):
        return "it is a symbolic link; upload what it points to instead"
    return "it is neither a file nor a directory (a socket, pipe or device)"


def _upload_batch(contents: Objects, batch: list[LocalFile]) -> list[Entry]:
    entries = [_hashed(file) for file in batch]
    pairs = zip(entries, batch, strict=True)
    contents.put_files({e.digest: file.source for e, file in pairs if not e.is_directory})
    return entries


def _hashed(file: LocalFile) -> Entry:
    if file.mode is Mode.DIRECTORY:
        return empty_directory(file.path)
    digest, size = hash_file(file.source)
    return Entry(path=file.path, mode=file.mode, size=size, digest=digest)


def hash_file(source: Path) -> tuple[Digest, int]:
    """Digest and size of the bytes as they are now; never those behind a link put there since."""
    try:
        with os.fdopen(os.open(source, os.O_RDONLY | os.O_NOFOLLOW), "rb", 0) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            return Digest(digest), file.tell()
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ELOOP}:
            raise FileChanged(path=str(source)) from error
        reason = error.strerror or str(error)
        raise StorageUnavailable(where=str(source), reason=reason) from error


_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
_PART = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


def download(
    contents: Objects, entries: Iterable[Entry], target: Path, progress: Progress | None = None
) -> list[Entry]:
    """Writes each entry at its path below the target, which may have other files already.

    A file appears once its content is whole and verified. A symbolic link is never followed:
    where a directory is needed it is an error, where a file is needed it is replaced.
    """
    with _reported(target):
        target.mkdir(parents=True, exist_ok=True)
    together = contents.travel_together
    written = in_parallel(
        lambda batch: _write_batch(contents, batch, target),
        batched(entries, lambda entry: entry.size, together=together),
        ahead=BATCHES_AHEAD if together else _FILES_AHEAD,
    )
    return counted(chain.from_iterable(written), progress)


def relative_to(entries: Iterable[Entry], prefix: str) -> Iterator[Entry]:
    """The entries as seen from a directory; an entry of that very path keeps its last name."""
    if not prefix:
        yield from entries
        return
    for entry in entries:
        below = entry.path.removeprefix(f"{prefix}/")
        yield replace(entry, path=below if entry.path != prefix else prefix.rpartition("/")[2])


def _write_batch(contents: Objects, batch: list[Entry], target: Path) -> list[Entry]:
    """Each as it comes; what did not come with the others is asked for by itself."""
    waiting: dict[Digest, list[Entry]] = {}
    for entry in batch:
        waiting.setdefault(entry.digest, []).append(entry)
    if len(waiting) > 1:
        wanted = [digest for digest, [entry, *_] in waiting.items() if not entry.is_directory]
        for digest, data in contents.get_many(wanted):
            for entry in waiting.pop(digest):
                _write_one(iter((data,)), entry, target)
    for entry in chain.from_iterable(waiting.values()):
        _write_one(contents.stream(entry.digest), entry, target)
    return batch


def _write_one(chunks: Iterator[bytes], entry: Entry, target: Path) -> None:
    # Whatever the manifest says: a tree that was tampered with must not reach outside either.
    check_file_path(entry.path)
    *directories, name = entry.path.split("/")
    with _reported(target / entry.path):
        if entry.is_directory:
            with _opened(target, [*directories, name]):
                return
        with _opened(target, directories) as directory:
            _write_file(chunks, entry, name, directory)


def _write_file(chunks: Iterator[bytes], entry: Entry, name: str, directory: int) -> None:
    part = f".headgate-{secrets.token_hex(8)}.part"
    try:
        with os.fdopen(os.open(part, _PART, 0o600, dir_fd=directory), "wb") as file:
            for chunk in chunks:
                file.write(chunk)
            os.fchmod(file.fileno(), entry.mode.value)
        os.replace(part, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part, dir_fd=directory)
        raise


@contextmanager
def _opened(target: Path, directories: Iterable[str]) -> Iterator[int]:
    """The innermost directory, made where missing, reached without passing through a link."""
    here = os.open(target, _DIRECTORY)
    try:
        for name in directories:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, dir_fd=here)
            inner = _enter(name, here)
            os.close(here)
            here = inner
        yield here
    finally:
        os.close(here)


def _enter(name: str, directory: int) -> int:
    try:
        return os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
    except OSError as error:
        if error.errno in {errno.ENOTDIR, errno.ELOOP}:
            reason = "the target has a file or symbolic link of that name, not a directory"
            raise UnsafePath(path=name, reason=reason) from error
        raise


@contextmanager
def _reported(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise StorageUnavailable(where=str(path), reason=reason) from error
