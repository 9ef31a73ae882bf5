"""Local files to stored contents and back: verified on the way, never through a symbolic link."""

import contextlib
import errno
import hashlib
import os
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from headgate.errors import NotFound, UnsafePath, storage_error
from headgate.files.objects import BATCHES_AHEAD, Digest, Objects, batched, in_parallel
from headgate.files.tree import Entry, Mode, empty_directory
from headgate.model.names import check_file_path
from headgate.storage.local import open_file, storage_errors

# Called with the files and the bytes done so far, by one thread at a time.
Progress = Callable[[int, int], None]

# Enough that one large file at the head of the queue does not leave the other threads idle.
_FILES_AHEAD = 1024


def counted(entries: Iterable[Entry], progress: Progress | None) -> list[Entry]:
    """Collect the entries, and report progress after each of them."""
    done: list[Entry] = []
    files = total_bytes = 0
    for entry in entries:
        done.append(entry)
        files += not entry.is_directory
        total_bytes += entry.size
        if progress:
            progress(files, total_bytes)
    return done


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalFile:
    """A file or empty directory on disk, and the path that it is to have in the tree."""

    path: str
    source: Path
    mode: Mode
    size: int


def scan(source: Path, under: str = "") -> list[LocalFile]:
    """List the files to upload, or raise an error that names one that cannot be; store nothing.

    A file becomes `under` itself, or keeps its own name where that is empty. The content of a
    directory comes below `under`, or to the top where that is empty.
    """
    try:
        return sorted(_scan(source, under), key=lambda file: file.path)
    except FileNotFoundError as error:
        missing = str(error.filename or source)
        raise NotFound(f"there is no file or directory {missing!r}.", path=missing) from error
    except OSError as error:
        raise storage_error(error, error.filename or source) from error


def _scan(source: Path, under: str) -> Iterator[LocalFile]:
    top = source.lstat()
    found: Iterable[tuple[str, os.stat_result | None]]
    if stat.S_ISDIR(top.st_mode):
        found = walk_directory(source)
    elif stat.S_ISREG(top.st_mode):
        found, under = [("", top)], under or source.name
    else:
        raise _not_a_file(str(source), is_link=stat.S_ISLNK(top.st_mode))
    for below, status in found:
        path = f"{under}/{below}" if under and below else under or below
        if path:
            yield LocalFile(
                path=check_file_path(path),
                source=source / below,
                mode=file_mode(status) if status else Mode.DIRECTORY,
                size=status.st_size if status else 0,
            )


def walk_directory(root: Path) -> Iterator[tuple[str, os.stat_result | None]]:
    """Yield each file below a directory with its status, and each empty directory with None.

    Paths are relative to the directory, which is empty text itself.
    """
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
                    raise _not_a_file(path, is_link=one.is_symlink())
        if not count:
            yield below, None


def _not_a_file(path: str, *, is_link: bool) -> UnsafePath:
    reason = "it is neither a file nor a directory (a socket, pipe or device)"
    if is_link:
        reason = "it is a symbolic link, which a tree cannot hold; put a copy of its target instead"
    return UnsafePath(path=path, reason=reason)


def file_mode(status: os.stat_result) -> Mode:
    return Mode.EXECUTABLE if status.st_mode & stat.S_IXUSR else Mode.FILE


def hash_file(source: Path) -> tuple[Digest, int]:
    """Return digest and size of the file as it is now; raise `FileChanged` if it became a link."""
    with storage_errors(source), os.fdopen(open_file(source), "rb", 0) as file:
        return Digest(hashlib.file_digest(file, "sha256").hexdigest()), file.tell()


def upload(
    objects: Objects, files: Iterable[LocalFile], progress: Progress | None = None
) -> list[Entry]:
    """Store the contents that the store does not have; return the entries to put in a tree."""
    stored = in_parallel(
        lambda batch: _upload_batch(objects, batch),
        batched(files, lambda file: file.size, together=objects.in_batches),
        ahead=BATCHES_AHEAD if objects.in_batches else _FILES_AHEAD,
    )
    return counted(chain.from_iterable(stored), progress)


def _upload_batch(objects: Objects, batch: list[LocalFile]) -> list[Entry]:
    entries = [_hashed(file) for file in batch]
    pairs = zip(entries, batch, strict=True)
    objects.put_files({e.digest: file.source for e, file in pairs if not e.is_directory})
    return entries


def _hashed(file: LocalFile) -> Entry:
    if file.mode is Mode.DIRECTORY:
        return empty_directory(file.path)
    digest, size = hash_file(file.source)
    return Entry(path=file.path, mode=file.mode, size=size, digest=digest)


_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
_PART = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


def download(
    objects: Objects, entries: Iterable[Entry], target: Path, progress: Progress | None = None
) -> list[Entry]:
    """Write each entry at its path below the target, which may have other files already.

    A file appears once its content is complete and verified. A symbolic link is never followed:
    where a directory is needed it is an error, where a file is needed it is replaced.
    """
    with storage_errors(target):
        target.mkdir(parents=True, exist_ok=True)
    written = in_parallel(
        lambda batch: _write_batch(objects, batch, target),
        batched(entries, lambda entry: entry.size, together=objects.in_batches),
        ahead=BATCHES_AHEAD if objects.in_batches else _FILES_AHEAD,
    )
    return counted(chain.from_iterable(written), progress)


def relative_to(entries: Iterable[Entry], prefix: str) -> Iterator[Entry]:
    """Yield the entries with paths relative to a directory; a file of that path keeps its name."""
    if not prefix:
        yield from entries
        return
    for entry in entries:
        below = entry.path.removeprefix(f"{prefix}/")
        yield replace(entry, path=below if entry.path != prefix else prefix.rpartition("/")[2])


def _write_batch(objects: Objects, batch: list[Entry], target: Path) -> list[Entry]:
    """Write each content as it arrives, then get the missing ones singly."""
    waiting: dict[Digest, list[Entry]] = {}
    for entry in batch:
        waiting.setdefault(entry.digest, []).append(entry)
    if len(waiting) > 1:
        wanted = [digest for digest, [entry, *_] in waiting.items() if not entry.is_directory]
        for digest, data in objects.get_many(wanted):
            for entry in waiting.pop(digest):
                _write_one(iter((data,)), entry, target)
    for entry in chain.from_iterable(waiting.values()):
        _write_one(objects.stream(entry.digest), entry, target)
    return batch


def _write_one(chunks: Iterator[bytes], entry: Entry, target: Path) -> None:
    # A tree that was tampered with must not reach outside the target either.
    check_file_path(entry.path)
    *directories, name = entry.path.split("/")
    with storage_errors(target / entry.path):
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
    """Open the innermost directory, made where missing, without passing through a link."""
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
