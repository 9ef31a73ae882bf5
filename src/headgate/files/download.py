"""From a tree to local files, verified on the way and never outside the target."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path

from headgate.errors import StorageUnavailable, UnsafePath
from headgate.files.batches import BATCHES_AHEAD, batched
from headgate.files.entries import Entry
from headgate.files.objects import Digest, Objects
from headgate.files.parallel import in_parallel
from headgate.files.progress import Progress, counted
from headgate.model.names import check_file_path

_FILES_AHEAD = 1024
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
