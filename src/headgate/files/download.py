"""From a tree to local files, verified on the way and never outside the target."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from headgate.errors import StorageUnavailable, UnsafePath
from headgate.files.entries import Entry
from headgate.files.objects import Objects
from headgate.files.parallel import in_parallel
from headgate.files.progress import Progress, counted
from headgate.model.names import check_file_path

_FILES_AHEAD = 1024
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
_PART = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


def download(
    objects: Objects, entries: Iterable[Entry], target: Path, progress: Progress | None = None
) -> list[Entry]:
    """Writes each entry at its path below the target, which may have other files already.

    A file appears once its content is whole and verified. A symbolic link is never followed:
    where a directory is needed it is an error, where a file is needed it is replaced.
    """
    with _reported(target):
        target.mkdir(parents=True, exist_ok=True)
    written = in_parallel(
        lambda entry: _write_one(objects, entry, target), entries, ahead=_FILES_AHEAD
    )
    return counted(written, progress)


def relative_to(entries: Iterable[Entry], prefix: str) -> Iterator[Entry]:
    """The entries as seen from a directory; an entry of that very path keeps its last name."""
    for entry in entries:
        below = entry.path.removeprefix(f"{prefix}/") if prefix else entry.path
        yield replace(entry, path=below if entry.path != prefix else prefix.rpartition("/")[2])


def _write_one(objects: Objects, entry: Entry, target: Path) -> Entry:
    # Whatever the manifest says: a tree that was tampered with must not reach outside either.
    check_file_path(entry.path)
    *directories, name = entry.path.split("/")
    with _reported(target / entry.path):
        if entry.is_directory:
            with _opened(target, [*directories, name]):
                return entry
        with _opened(target, directories) as directory:
            _write_file(objects, entry, name, directory)
    return entry


def _write_file(objects: Objects, entry: Entry, name: str, directory: int) -> None:
    part = f".headgate-{secrets.token_hex(8)}.part"
    try:
        with os.fdopen(os.open(part, _PART, 0o600, dir_fd=directory), "wb") as file:
            for chunk in objects.stream(entry.digest):
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
