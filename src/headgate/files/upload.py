"""From local files to stored contents and the entries that name them."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from headgate.errors import FileChanged, NotFound, StorageUnavailable, UnsafePath
from headgate.files.batches import BATCHES_AHEAD, batched
from headgate.files.entries import Entry, Mode, empty_directory
from headgate.files.objects import Digest, Objects
from headgate.files.parallel import in_parallel
from headgate.files.progress import Progress, counted
from headgate.model.names import check_file_path

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
